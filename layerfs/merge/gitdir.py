"""What lies inside a captured git directory: the role of each file, and its contents compared as values.

Invariant: nothing is executed and nothing is guessed. A file this module cannot read completely – a checksum that does
not fit, an unknown index extension that matters – compares as different, so the merge reports a conflict. Object files
only ever accumulate: an object one side removed may be the parent of what the other side wrote.

Deliberately elsewhere: the semantic driver that joins diverged branches and staged changes (a later issue); which role
leads to which outcome (``treemerge``). Formats: gitformat-index(5), git-pack-refs(1).
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple


class Role(Enum):
    """What a file in a git directory is, as far as merging is concerned."""

    OBJECT = auto()
    """A loose object: content-addressed, so equal names mean equal objects however they were compressed."""
    PACK = auto()
    """Part of a pack; the files of one pack belong together."""
    DERIVED = auto()
    """Can be rebuilt from the objects."""
    INDEX = auto()
    LOG = auto()
    REF = auto()
    SCRATCH = auto()
    """Left behind by the last command, read by none that matters."""
    LOCK = auto()
    TEXT = auto()
    """Written by people: configuration, hooks, exclude patterns."""
    STATE = auto()
    """A running merge, rebase or bisect, and everything unknown: only valid together."""


_NESTED = rb"(?:(?:modules/.+?|worktrees/[^/]+)/)??"
_ROLES = tuple(
    (role, re.compile(_NESTED + rb"(?:" + pattern + rb")", re.DOTALL))
    for role, pattern in (
        (Role.LOCK, rb"(?:.*/)?(?:[^/]+\.lock|gc\.pid|fsmonitor--daemon\.ipc)"),
        (
            Role.DERIVED,
            rb"objects/(?:info/(?:packs|commit-graphs?(?:/.*)?)|pack/(?:multi-pack-index.*|[^/]*\.bitmap)"
            rb"|(?:.*/)?tmp_[^/]*)|info/refs",
        ),
        (Role.OBJECT, rb"objects/[0-9a-f]{2}(?:/[0-9a-f]+)?|(?:lfs|annex)/objects(?:/.*)?"),
        (Role.PACK, rb"objects(?:/pack(?:/.*)?)?"),
        (Role.INDEX, rb"index"),
        (Role.LOG, rb"logs(?:/.*)?"),
        (Role.REF, rb"refs(?:/.*)?|packed-refs|HEAD"),
        (Role.SCRATCH, rb"ORIG_HEAD|FETCH_HEAD|COMMIT_EDITMSG|AUTO_MERGE|gitk\.cache"),
        (Role.TEXT, rb"config(?:\.worktree)?|description|info(?:/.*)?|hooks(?:/.*)?|objects/info/alternates"),
    )
)


def role_of(path: bytes) -> Role:
    """Return the role of a path relative to the git directory; submodules and worktrees inside it count as their own."""
    for role, pattern in _ROLES:
        if pattern.fullmatch(path):
            return role
    return Role.STATE


def inside(path: bytes) -> tuple[bytes, bytes]:
    """Split a path of class git into the git directory's path and the path relative to it."""
    parts = path.split(b"/")
    at = parts.index(b".git")
    return b"/".join(parts[: at + 1]), b"/".join(parts[at + 1 :])


class IndexEntry(NamedTuple):
    """One staged path as a value: everything but the stat data git keeps to find changes quickly."""

    path: bytes
    stage: int
    mode: int
    oid: bytes
    flags: int


_HEAD = struct.Struct(">4sII")
_STAT = struct.Struct(">10I")
_FLAGS = struct.Struct(">H")
_EXTENSION = struct.Struct(">4sI")
_ASSUME_VALID = 0x8000
_EXTENDED = 0x4000
_NAME_LENGTH = 0x0FFF
_INTENT_AND_SKIP = 0x6000


def read_index(data: bytes) -> tuple[IndexEntry, ...] | None:
    """Return the staged entries of a git index (versions 2 to 4), or None if it cannot be read completely.

    Split indexes are None as well: their meaning lies partly in another file.
    """
    for digest in (hashlib.sha1, hashlib.sha256):
        size = digest().digest_size
        body, trailer = data[:-size], data[-size:]
        if len(data) > _HEAD.size + size and trailer in (digest(body).digest(), bytes(size)):
            try:
                return _read_entries(body, size)
            except (struct.error, ValueError):
                continue
    return None


def _read_entries(body: bytes, oid_size: int) -> tuple[IndexEntry, ...] | None:
    signature, version, count = _HEAD.unpack_from(body)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return None
    at = _HEAD.size
    entries: list[IndexEntry] = []
    path = b""
    for _ in range(count):
        begun = at
        mode = _STAT.unpack_from(body, at)[6]
        at += _STAT.size
        oid = body[at : at + oid_size]
        at += oid_size
        (flags,) = _FLAGS.unpack_from(body, at)
        at += _FLAGS.size
        extended = 0
        if flags & _EXTENDED:
            (extended,) = _FLAGS.unpack_from(body, at)
            at += _FLAGS.size
        if version == 4:
            strip, at = _read_offset(body, at)
            end = body.index(b"\0", at)
            path = path[: len(path) - strip] + body[at:end]
            at = end + 1
        else:
            end = body.index(b"\0", at)
            path = body[at:end]
            at = begun + ((end - begun) // 8 + 1) * 8
        kept = (flags & _ASSUME_VALID) | (extended & _INTENT_AND_SKIP)
        entries.append(IndexEntry(path, flags >> 12 & 3, mode, oid, kept))
    while at < len(body):
        name, size = _EXTENSION.unpack_from(body, at)
        at += _EXTENSION.size + size
        if name == b"link" or at > len(body):
            return None
    return tuple(entries)


_CACHES = frozenset((b"TREE", b"UNTR", b"FSMN", b"EOIE", b"IEOT"))
"""Extensions that git makes again from the rest whenever it likes."""


def is_same_index(one: bytes, other: bytes) -> bool:
    """Whether two indexes stage the same, so that only stat data and caches differ, as after ``git status``.

    It compares bytes in place, without making values: this is asked of every status in a repository of any size.
    Versions 2 and 3 only; False for what cannot be read.
    """
    for digest in (hashlib.sha1, hashlib.sha256):
        size = digest().digest_size
        bodies = [data[:-size] for data in (one, other)]
        sound = all(
            len(data) > _HEAD.size + size and data[-size:] in (digest(body).digest(), bytes(size))
            for data, body in zip((one, other), bodies, strict=True)
        )
        if sound:
            try:
                return _is_same_body(bodies[0], bodies[1], size)
            except (struct.error, ValueError, IndexError):
                return False
    return False


def _is_same_body(one: bytes, other: bytes, oid_size: int) -> bool:
    signature, version, count = _HEAD.unpack_from(one)
    if signature != b"DIRC" or version not in (2, 3) or one[: _HEAD.size] != other[: _HEAD.size]:
        return False
    at = _HEAD.size
    names = _STAT.size + oid_size + _FLAGS.size
    for _ in range(count):
        flags = one[at + names - 2] << 8 | one[at + names - 1]
        begin = at + names + (_FLAGS.size if flags & _EXTENDED else 0)
        length = flags & _NAME_LENGTH
        end = begin + length if length < _NAME_LENGTH else one.index(b"\0", begin)
        following = at + ((end - at) // 8 + 1) * 8
        if (
            one[at + 40 : following] != other[at + 40 : following]
            or one[at + 24 : at + 28] != other[at + 24 : at + 28]
        ):
            return False
        at = following
    return _kept_extensions(one, at) == _kept_extensions(other, at)


def _kept_extensions(body: bytes, at: int) -> list[tuple[bytes, bytes]]:
    found = []
    while at < len(body):
        name, size = _EXTENSION.unpack_from(body, at)
        at += _EXTENSION.size
        if name not in _CACHES:
            found.append((name, body[at : at + size]))
        at += size
    return found


def _read_offset(body: bytes, at: int) -> tuple[int, int]:
    """Read the offset encoding of index version 4: base 128, each continuation adding one."""
    if at >= len(body):
        raise ValueError("truncated")
    byte = body[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        if at >= len(body):
            raise ValueError("truncated")
        byte = body[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1


_LOG_TIME = re.compile(rb"> (\d+) [+-]\d{4}(?:\t|$)")


def merge_logs(base: bytes, ours: bytes, theirs: bytes) -> bytes:
    """Return the union of two reflogs: what both have, then what each added, by time.

    Lines that a side expired stay expired. Lines are whole; a torn last line is completed.
    """
    b, o, t = (_log_lines(data) for data in (base, ours, theirs))
    in_base, in_ours, in_theirs = set(b), set(o), set(t)
    common = [line for line in o if line in in_theirs]
    our_tail = [line for line in o if line not in in_theirs and line not in in_base]
    their_tail = [line for line in t if line not in in_ours and line not in in_base]
    return b"".join(line + b"\n" for line in common + _by_time(our_tail, their_tail))


def _log_lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line]


def _log_time(line: bytes) -> int:
    found = _LOG_TIME.search(line)
    return int(found[1]) if found else 0


def _by_time(ours: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes]:
    """Interleave two lists by time without reordering either; equal times go by bytes, so that sides do not matter."""
    merged: list[bytes] = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if (_log_time(ours[i]), ours[i]) <= (_log_time(theirs[j]), theirs[j]):
            merged.append(ours[i])
            i += 1
        else:
            merged.append(theirs[j])
            j += 1
    return [*merged, *ours[i:], *theirs[j:]]
