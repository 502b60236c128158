"""Doctor: what this machine can do for layerfs, found by trying.

Owns the list of findings: each capability is probed with the very operation that needs it, in the directory where the
store is or would be, and said together with why it matters. Nothing is changed and nothing is left behind. For a store
it also tells which files of its newest state name absolute paths, into the captured directory or out of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import tempfile
from importlib.util import find_spec
from typing import NamedTuple

from layerfs.ids import CommitId
from layerfs.kernels import native
from layerfs.store.store import Store
from layerfs.store.storeformat import file_system_kind, is_remote
from layerfs.workspace.overlayprobe import why_no_namespace, why_not, why_not_in_namespace
from layerfs.workspace.references import Reference, find_references, is_of_the_system

_FICLONE = 0x40049409


class Finding(NamedTuple):
    """One capability: ``works``, what was found, and what it means where it does not work."""

    name: str
    works: bool
    found: str
    meaning: str = ""


class Departures(NamedTuple):
    """The absolute paths in a state: those into the captured directory, and those out of it that may be missing.

    ``missing`` do not exist on this machine or cannot be followed, ``foreign`` exist but belong to no operating system;
    ``system`` counts the rest, such as ``/bin/sh``.
    """

    into: tuple[Reference, ...]
    missing: tuple[Reference, ...]
    foreign: tuple[Reference, ...]
    system: int


def find_departures(store: Store, commit: CommitId) -> Departures:
    """Look at every file of a state that is likely to name absolute paths."""
    references = find_references(store, commit)
    source = store.format.source or b"/"
    missing: list[Reference] = []
    foreign: list[Reference] = []
    system = 0
    for reference in references.out:
        target = os.path.normpath(os.path.join(source, os.path.dirname(reference.path), reference.target))
        if not os.path.exists(target):
            missing.append(reference)
        elif not is_of_the_system(target):
            foreign.append(reference)
        else:
            system += 1
    return Departures(references.into, tuple(missing), tuple(foreign), system)


def examine(directory: bytes) -> list[Finding]:
    """Try everything in ``directory`` (the store, or where stores would go) and return what was found."""
    place = _existing(directory)
    kind = file_system_kind(place)
    findings = [
        Finding("python", True, platform.python_version()),
        Finding("kernel", True, f"{platform.system()} {platform.release()}"),
        Finding(
            "native-kernels",
            native.available(),
            "compiled" if native.available() else "Python twins",
            "capture and diff are many times slower; install with a C compiler",
        ),
        Finding(
            "file-system",
            not is_remote(kind),
            f"{os.fsdecode(place)} is on {kind}",
            "locks and durability of a network file system are not trusted",
        ),
    ]
    if not os.access(place, os.W_OK | os.X_OK):
        return [
            *findings,
            Finding("writable", False, "the directory cannot be written", "nothing else was tried"),
        ]
    return [
        *findings,
        _overlay("overlay", why_not(place), "'layerfs mount' makes copies instead"),
        _overlay(
            "overlay-in-namespace",
            why_not_in_namespace(place),
            "'layerfs run' without root makes copies instead",
        ),
        _namespaces(),
        _xattrs(place),
        _reflinks(place),
        _fuse(),
    ]


def _existing(directory: bytes) -> bytes:
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return directory


def _overlay(name: str, reason: str | None, meaning: str) -> Finding:
    return Finding(name, reason is None, reason or "mounted and written to", meaning)


def _namespaces() -> Finding:
    reason = why_no_namespace()
    meaning = "'layerfs run' needs --no-at-source if files of the state name the captured path"
    return Finding(
        "private-mounts", reason is None, reason or "a command can have mounts of its own", meaning
    )


def _xattrs(place: bytes) -> Finding:
    with tempfile.NamedTemporaryFile(dir=place, prefix=b".probe-") as file:
        try:
            os.setxattr(file.fileno(), "user.layerfs.probe", b"1")
        except OSError as error:
            reason = (error.strerror or "refused").lower()
            return Finding("user-xattrs", False, reason, "checkouts here lose extended attributes and say so")
    return Finding("user-xattrs", True, "set and read")


def _reflinks(place: bytes) -> Finding:
    meaning = "checkouts and copies write every byte"
    with (
        tempfile.NamedTemporaryFile(dir=place, prefix=b".probe-") as one,
        tempfile.NamedTemporaryFile(dir=place, prefix=b".probe-") as other,
    ):
        one.write(b"probe")
        one.flush()
        try:
            fcntl.ioctl(other.fileno(), _FICLONE, one.fileno())
        except OSError as error:
            known = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV)
            reason = (
                "the file system has none" if error.errno in known else (error.strerror or "refused").lower()
            )
            return Finding("reflinks", False, reason, meaning)
    return Finding("reflinks", True, "cloned a file")


def _fuse() -> Finding:
    meaning = "the fuse engine, which this version does not have yet, needs both"
    if find_spec("pyfuse3") is None:
        return Finding("fuse", False, "pyfuse3 is not installed", meaning)
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Finding("fuse", False, f"/dev/fuse: {(error.strerror or 'refused').lower()}", meaning)
    return Finding("fuse", True, "/dev/fuse opens and pyfuse3 is there", meaning)
