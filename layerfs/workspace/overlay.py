"""The overlay mount: stack a private upper on shared read-only lowers, and take it down again.

Owns the mount options, which are always given explicitly because kernels are built with different defaults, and
the ways around two old limits: the page that mount(2) takes as options, and the ``:``, ``,`` and ``\\`` that mean
something in it. A mount made here is recognised by its source name (:func:`source_name`), so nothing that belongs to
somebody else is ever unmounted. Whether overlay works on this machine is found in ``overlayprobe``; what the upper
holds is read in ``upper``; who keeps a mount busy is found in ``busy``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from layerfs.errors import Refused, Unable, quote
from layerfs.store.places import empty_directory
from layerfs.workspace import kernel
from layerfs.workspace.busy import MountBusy, find_holders
from layerfs.workspace.mountinfo import Mount, mount_at, read_mounts

Option = tuple[bytes, bytes | None]

TRUSTED_OPTIONS: tuple[Option, ...] = (
    (b"redirect_dir", b"on"),
    (b"metacopy", b"on"),
    (b"xino", b"on"),
    (b"index", b"off"),
)
"""As root: renaming a lower directory and changing a lower file's mode cost nothing; inode numbers never change."""

USER_OPTIONS: tuple[Option, ...] = (
    (b"userxattr", None),
    (b"redirect_dir", b"nofollow"),
    (b"metacopy", b"off"),
    (b"xino", b"on"),
    (b"index", b"off"),
)
"""In a user namespace the kernel refuses redirects and metacopy, whose attributes a user could forge."""

_IN_USE_OPTIONS: tuple[Option, ...] = ((b"index", b"on"),)

MAX_LOWERS = 500
_SPECIAL = frozenset(b":,\\")


class Layers(NamedTuple):
    """What is stacked: lowers from the newest to the base, the upper, and its work directory on the same disk."""

    lowers: tuple[bytes, ...]
    upper: bytes
    work: bytes


def source_name(store_id: str, workspace: str) -> bytes:
    """Return the name under which a mount shows up in the mount table."""
    return os.fsencode(f"layerfs:{store_id}:{workspace}")


def mount_options(*, volatile: bool, userxattr: bool) -> tuple[Option, ...]:
    """Return every option of a mount apart from its directories."""
    options = USER_OPTIONS if userxattr else TRUSTED_OPTIONS
    return (*options, (b"volatile", None)) if volatile else options


def mount_overlay(
    layers: Layers, target: bytes, *, source: bytes, volatile: bool = False, userxattr: bool = False
) -> None:
    """Mount the layers at ``target``, which must be a real directory (a symlink is refused, not followed).

    Raises OSError with the kernel's reason, and Unable where this kernel cannot stack that many lowers.
    """
    if not layers.lowers or len(layers.lowers) > MAX_LOWERS:
        raise Unable(f"overlay cannot stack {len(layers.lowers)} layers", "layerfs warm squashes deep stacks")
    options = mount_options(volatile=volatile, userxattr=userxattr)
    with ExitStack() as opened:
        target_fd = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, target_fd)
        if _can_append_lowers():
            mount_fd = _create(layers, source, options, opened)
            opened.callback(os.close, mount_fd)
            kernel.move_mount(mount_fd, target_fd)
        else:
            data = _option_page(layers, options, opened)
            kernel.mount(source, b"/proc/self/fd/%d" % target_fd, b"overlay", 0, data)


def _can_append_lowers() -> bool:
    """Whether the kernel (6.8 or newer) takes lowers one by one."""
    try:
        fd = kernel.fsopen(b"overlay")
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return False
        raise
    try:
        kernel.fsconfig_string(fd, b"lowerdir+", b"/")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _create(layers: Layers, source: bytes, options: Sequence[Option], opened: ExitStack) -> int:
    fd = kernel.fsopen(b"overlay")
    opened.callback(os.close, fd)
    kernel.fsconfig_string(fd, b"source", source)
    for lower in layers.lowers:
        kernel.fsconfig_string(fd, b"lowerdir+", _plain_name(lower, opened))
    kernel.fsconfig_string(fd, b"upperdir", _plain_name(layers.upper, opened))
    kernel.fsconfig_string(fd, b"workdir", _plain_name(layers.work, opened))
    for key, value in options:
        if value is None:
            kernel.fsconfig_flag(fd, key)
        else:
            kernel.fsconfig_string(fd, key, value)
    kernel.fsconfig_create(fd)
    return kernel.fsmount(fd)


def _plain_name(path: bytes, opened: ExitStack) -> bytes:
    """Return a name for a directory that fits fsconfig: its path, or its descriptor if too long or with a ``\\``."""
    if len(path) <= kernel.FSCONFIG_STRING_LIMIT and b"\\" not in path:
        return path
    return _descriptor_name(path, opened)


def _descriptor_name(path: bytes, opened: ExitStack) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    return b"/proc/self/fd/%d" % fd


def _option_page(layers: Layers, options: Sequence[Option], opened: ExitStack) -> bytes:
    """Return mount(2) options for older kernels: real paths if they fit and mean nothing special, else descriptors."""
    directories = (*layers.lowers, layers.upper, layers.work)
    fixed = b",".join(key if value is None else key + b"=" + value for key, value in options)
    data = _join_options(directories, fixed)
    if len(data) > kernel.MOUNT_DATA_LIMIT or any(_SPECIAL.intersection(path) for path in directories):
        data = _join_options([_descriptor_name(path, opened) for path in directories], fixed)
    if len(data) > kernel.MOUNT_DATA_LIMIT:
        raise Unable(
            f"this kernel cannot stack {len(layers.lowers)} layers",
            "Linux 6.8 can; layerfs warm squashes deep stacks",
        )
    return data


def _join_options(directories: Sequence[bytes], fixed: bytes) -> bytes:
    *lowers, upper, work = directories
    return b"lowerdir=" + b":".join(lowers) + b",upperdir=" + upper + b",workdir=" + work + b"," + fixed


def find_mount(target: bytes, source: bytes) -> Mount | None:
    """Return the overlay mount in sight at ``target`` if it is the one called ``source``, else None."""
    mount = mount_at(read_mounts(), target)
    return mount if mount is not None and mount.fstype == b"overlay" and mount.source == source else None


def is_mounted(target: bytes, source: bytes) -> bool:
    """Whether our mount is what one sees at ``target`` in this mount namespace."""
    return find_mount(target, source) is not None


def is_upper_in_use(upper: bytes) -> bool:
    """Whether any overlay of this machine, in whatever mount namespace, has this directory as its upper.

    The kernel marks an upper in use, and with ``index=on`` refuses a second mount of it before it looks at the work
    directory. So a mount is tried that must fail: with EBUSY if the upper is in use, and otherwise with EINVAL for a work
    directory that is the upper itself. It changes nothing. Whoever may not mount learns nothing and is told no.
    """
    if not os.path.isdir(upper):
        return False
    with ExitStack() as opened:
        layers = Layers((b"/",), upper, upper)
        try:
            if _can_append_lowers():
                opened.callback(os.close, _create(layers, b"layerfs:probe", _IN_USE_OPTIONS, opened))
            else:
                kernel.mount(
                    b"layerfs:probe", upper, b"overlay", 0, _option_page(layers, _IN_USE_OPTIONS, opened)
                )
        except OSError as error:
            return error.errno == errno.EBUSY
    return False


def unmount(target: bytes, source: bytes, *, detach: bool = False) -> None:
    """Take our mount at ``target`` away.

    Raises Refused if something else is mounted there, Busy with the processes that hold it. ``detach`` leaves them in a
    mount nobody else can reach any more; it is for cleaning up what failed, never for saving work.
    """
    mount = find_mount(target, source)
    if mount is None:
        raise Refused(f"no workspace of this store is mounted at {quote(target)}")
    try:
        kernel.umount(target, kernel.UMOUNT_NOFOLLOW | (kernel.MNT_DETACH if detach else 0))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        holders = find_holders(target, mount.device)
        raise MountBusy(target, holders) from None


def volatile_marker(work: bytes) -> bytes:
    """Return the directory by which the kernel remembers that an upper was mounted volatile."""
    return os.path.join(work, b"work", b"incompat", b"volatile")


def was_volatile(work: bytes) -> bool:
    """Whether the upper of this work directory was mounted volatile: if the machine went down since, it may be torn."""
    return os.path.isdir(volatile_marker(work))


def reset_work(work: bytes) -> None:
    """Empty a work directory nobody has mounted, so that an upper that was mounted volatile can be mounted again.

    The work directory never holds anything that a user wrote. The caller has checked that the machine was not rebooted
    meanwhile, or has warned.
    """
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        empty_directory(fd)
    finally:
        os.close(fd)
