"""Being inside a workspace: a mount namespace in which it lies over the captured path.

Owns what happens between fork and exec of ``run`` and ``shell``: new namespaces, the workspace mounted over the captured
path, what was mounted below that path put back on top, the same sub-directory. As root only the mount table is new;
otherwise a user namespace makes mounting possible, in which the caller keeps the uid and gid it has and, after exec,
has no capability. Nothing done here is visible outside, and the kernel takes it away with the last process. Starting,
waiting and ending processes is in ``supervise``.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from layerfs.workspace import kernel
from layerfs.workspace.mountinfo import is_below, mounts_below, read_mounts
from layerfs.workspace.overlay import Layers, mount_overlay
from layerfs.workspace.overlayprobe import enter_user_namespace

_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(NamedTuple):
    """A workspace to be entered: over ``target`` (absolute, free of symlinks) come ``layers``, or a directory ``bound``.

    Exactly one of the two is given. ``userns`` makes the mount in a user namespace; ``userxattr`` says that the marks in
    the layers are ``user.`` attributes, as they must be there. ``pass_through`` are paths relative to the target that
    show what lies there outside of the workspace.
    ``elsewhere`` mounts nothing at all, for machines that allow none: the command just goes to the directory ``bound``.
    """

    target: bytes
    source: bytes
    layers: Layers | None = None
    bound: bytes | None = None
    volatile: bool = True
    userns: bool = False
    userxattr: bool = False
    pass_through: tuple[bytes, ...] = ()
    elsewhere: bool = False


class Entered(NamedTuple):
    """How it went: the directory one is in now, and the mounts that could not be put back."""

    directory: bytes
    kept: tuple[bytes, ...]
    lost: tuple[bytes, ...]


def mounts_inside(target: bytes) -> tuple[bytes, ...]:
    """Return the mount points below a captured path: they are not versioned, and are shown through in a workspace."""
    return tuple(_outermost([mount.target for mount in mounts_below(read_mounts(), target)]))


def _outermost(paths: list[bytes]) -> list[bytes]:
    """Leave out what lies below another one of the paths, since a copy of a mount brings along what is on it."""
    kept: list[bytes] = []
    for path in sorted(paths):
        if not kept or not (path == kept[-1] or is_below(path, kept[-1])):
            kept.append(path)
    return kept


def enter(place: Place, directory: bytes) -> Entered:
    """Move this process, which must have one thread only, into the workspace; ``directory`` is where the caller is.

    Raises OSError naming the call that was refused; the process is then fit for nothing but to say so and end.
    """
    if place.elsewhere:
        return _go_elsewhere(place, directory)
    if place.userns:
        enter_user_namespace()
    else:
        kernel.unshare(kernel.CLONE_NEWNS)
    kernel.make_private()
    os.makedirs(place.target, exist_ok=True)
    passed = [os.path.join(place.target, path) for path in place.pass_through]
    inside = _outermost([*mounts_inside(place.target), *passed])
    copies: list[tuple[bytes, int]] = []
    lost: list[bytes] = []
    for path in inside:
        try:
            copies.append((path, kernel.open_tree_clone(path)))
        except OSError:
            lost.append(path)
    _cover(place)
    kept = [path for path, copy in copies if _put_back(place.target, path, copy)]
    lost += [path for path, _ in copies if path not in kept]
    return Entered(_change_directory(place.target, directory), tuple(kept), tuple(sorted(lost)))


def _go_elsewhere(place: Place, directory: bytes) -> Entered:
    assert place.bound is not None
    if directory == place.target or is_below(directory, place.target):
        inner = os.path.relpath(directory, place.target)
        directory = place.bound if inner == b"." else os.path.join(place.bound, inner)
    else:
        directory = place.bound
    return Entered(_change_directory(place.bound, directory), (), mounts_inside(place.target))


def _cover(place: Place) -> None:
    if place.layers is not None:
        mount_overlay(
            place.layers,
            place.target,
            source=place.source,
            volatile=place.volatile,
            userxattr=place.userxattr,
        )
        return
    assert place.bound is not None
    mount_fd = kernel.open_tree_clone(place.bound)
    try:
        target_fd = os.open(place.target, _PATH_ONLY | os.O_DIRECTORY)
        try:
            kernel.move_mount(mount_fd, target_fd)
        finally:
            os.close(target_fd)
    finally:
        os.close(mount_fd)


def _put_back(target: bytes, path: bytes, copy: int) -> bool:
    """Attach a copied mount at its old path if the workspace has something there; never through a symlink."""
    top = os.open(target, _PATH_ONLY | os.O_DIRECTORY)
    try:
        point = kernel.open_beneath(top, os.path.relpath(path, target), _PATH_ONLY)
        try:
            kernel.move_mount(copy, point)
        finally:
            os.close(point)
    except OSError:
        return False
    finally:
        os.close(copy)
        os.close(top)
    return True


def _change_directory(target: bytes, directory: bytes) -> bytes:
    """Go to the caller's directory as the workspace has it, or to the nearest one above that it has."""
    if directory != target and not is_below(directory, target):
        os.chdir(directory)
        return directory
    while directory != target:
        try:
            os.chdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            directory = os.path.dirname(directory)
        else:
            return directory
    os.chdir(target)
    return target
