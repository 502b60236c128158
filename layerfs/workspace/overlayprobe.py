"""What overlay can do here, found by doing it.

Owns the probe: a child process enters a mount namespace of its own (and a user namespace where it is not root), mounts a
tiny overlay in the given directory with the very options a workspace gets, writes, renames a lower directory, and ends,
which takes everything it mounted away. Versions and configurations are never guessed from. An answer that overlay
works holds for one boot, one user (of one container) and one directory, and is kept there in ``cache/`` until it proves
wrong (:func:`forget`); a refusal is always looked for anew, since people change what refused.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import NamedTuple

from layerfs.store.places import remove_tree
from layerfs.workspace import kernel
from layerfs.workspace.childprocess import ChildFailed, call_in_child
from layerfs.workspace.overlay import Layers, mount_overlay
from layerfs.workspace.overlayxattrs import REDIRECT, prefix

_CACHE = b"cache"
_FILE = b"overlay-probe"


class Probe(NamedTuple):
    """The answer: ``works`` as root (``trusted``) or in a user namespace, or ``reason`` why not.

    ``redirects`` says whether renaming a lower directory costs nothing; without it programs get EXDEV and copy.
    """

    works: bool
    trusted: bool
    redirects: bool
    reason: str


def why_not(directory: bytes) -> str | None:
    """Return why this process cannot mount an overlay for all to see, its upper in ``directory``; None if it can."""
    probe = probe_overlay(directory, userns=False)
    return None if probe.works else probe.reason


def why_not_in_namespace(directory: bytes) -> str | None:
    """Return why a child of this process cannot mount an overlay in a user namespace of its own; None if it can."""
    probe = probe_overlay(directory, userns=True)
    return None if probe.works else probe.reason


def why_no_namespace() -> str | None:
    """Return why a child of this process cannot have mounts of its own, which is all that a bound copy needs."""
    userns = os.geteuid() != 0
    try:
        call_in_child(lambda: _enter_private(userns))
    except ChildFailed as failure:
        return _explain(failure, userns)
    return None


def _enter_private(userns: bool) -> bytes:
    if userns:
        enter_user_namespace()
    else:
        kernel.unshare(kernel.CLONE_NEWNS)
    kernel.make_private()
    return b""


def probe_overlay(directory: bytes, *, userns: bool) -> Probe:
    """Return what an overlay with its upper in ``directory`` can do, as root or in a user namespace."""
    if not userns and os.geteuid() != 0:
        return Probe(False, True, False, "mounting for everybody to see needs root")
    kept = _read_kept(directory, userns)
    if kept is not None:
        return kept
    import tempfile

    scratch = os.fsencode(tempfile.mkdtemp(prefix=b"probe-", dir=directory))
    try:
        answer = call_in_child(lambda: _try(scratch, userns))
        probe = Probe(True, not userns, answer == b"redirects", "")
    except ChildFailed as failure:
        return Probe(False, not userns, False, _explain(failure, userns))
    finally:
        remove_tree(scratch)
    _keep(directory, userns, probe)
    return probe


def _try(scratch: bytes, userns: bool) -> bytes:
    """Run in the child: mount, use, and let the end of the process clean up."""
    _enter_private(userns)
    lower, upper, work, merged = (os.path.join(scratch, name) for name in (b"low", b"up", b"work", b"merged"))
    for path in (lower, upper, work, merged, os.path.join(lower, b"one")):
        os.mkdir(path)
    mount_overlay(Layers((lower,), upper, work), merged, source=b"layerfs:probe", userxattr=userns)
    with open(os.path.join(merged, b"file"), "wb"):
        pass
    try:
        os.rename(os.path.join(merged, b"one"), os.path.join(merged, b"two"))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return b""
    os.getxattr(os.path.join(upper, b"two"), prefix(userns) + REDIRECT)
    return b"redirects"


def enter_user_namespace() -> None:
    """Move this (single-threaded) process to new user and mount namespaces in which it keeps its own uid and gid.

    Until its next exec it has every capability inside; afterwards it is the ordinary user it was.
    """
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    _write_once("/proc/self/setgroups", b"deny")
    _write_once("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    _write_once("/proc/self/gid_map", b"%d %d 1" % (gid, gid))


def _write_once(path: str, data: bytes) -> None:
    """Write in a single call, as these files demand."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _explain(failure: ChildFailed, userns: bool) -> str:
    number = failure.errno
    if userns and failure.text.startswith("unshare") and number in (errno.EPERM, errno.ENOSPC, errno.EUSERS):
        return "user namespaces are denied"
    if userns and number == errno.EACCES:
        return "user namespaces are restricted (a security policy took their capabilities away)"
    if number == errno.EPERM:
        return "mounting is not permitted here"
    if number == errno.ENODEV:
        return "this kernel has no overlayfs"
    if number == errno.EINVAL:
        return f"the store's file system cannot hold an overlay's upper ({failure.text})"
    return failure.text


def _key(userns: bool) -> bytes:
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read().strip()
    return b"%s %s %d %d" % (boot, os.readlink(b"/proc/self/ns/user"), os.geteuid(), userns)


def _read_kept(directory: bytes, userns: bool) -> Probe | None:
    try:
        with open(os.path.join(directory, _CACHE, _FILE), "rb") as file:
            lines = file.read(4096).splitlines()
    except OSError:
        return None
    key = _key(userns)
    for line in lines:
        if line.rpartition(b" ")[0] == key:
            return Probe(True, not userns, line.endswith(b" 1"), "")
    return None


def forget(directory: bytes) -> None:
    """Drop what is kept for a directory: an answer that overlay works was no longer true."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, _CACHE, _FILE))


def _keep(directory: bytes, userns: bool, probe: Probe) -> None:
    """Remember an answer; it may be lost at any time, so it is not written durably and never an error."""
    path = os.path.join(directory, _CACHE, _FILE)
    if not os.path.isdir(os.path.dirname(path)):
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        if os.fstat(fd).st_size > 2048:
            os.ftruncate(fd, 0)
        if os.geteuid() == 0:
            above = os.stat(os.path.dirname(path))
            os.fchown(fd, above.st_uid, above.st_gid)
        os.write(fd, _key(userns) + b" %d\n" % probe.redirects)
    finally:
        os.close(fd)
