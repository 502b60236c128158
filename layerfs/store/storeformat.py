"""The ``format`` file of a store: what it is, who may open it, and on what it may lie.

Owns the one JSON document written when a store is created and never changed afterwards, the rule that a store belongs to
one uid, and the check of the file system below it. A store whose version this program does not know is refused before
anything else of it is read. Where stores are found is in ``layout``; the physical files are in ``store``.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from layerfs.durable.atomicfile import Files
from layerfs.errors import NotAStore, Refused, StoreDamaged, Unable, quote

VERSION = 1
FORMAT_FILE = b"format"
FORMAT_LIMIT = 64 * 1024
DURABLE = "durable"
DISPOSABLE = "disposable"
CHUNK_MINIMUM = 8 * 1024
CHUNK_AVERAGE = 16 * 1024
CHUNK_MAXIMUM = 32 * 1024
ONE_PIECE_LIMIT = 128 * 1024
REMOTE_KINDS = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "coda",
        "glusterfs",
        "lustre",
        "ncp",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "virtiofs",
    }
)


class StoreFormat(NamedTuple):
    """What a store's ``format`` file says."""

    version: int
    store_id: bytes
    created_ns: int
    source: bytes | None = None
    durability: str = DURABLE
    chunk_minimum: int = CHUNK_MINIMUM
    chunk_average: int = CHUNK_AVERAGE
    chunk_maximum: int = CHUNK_MAXIMUM
    one_piece_limit: int = ONE_PIECE_LIMIT


def encode_format(value: StoreFormat) -> bytes:
    """Return the document; a source path that is not UTF-8 has a ``_b64`` twin that is the truth."""
    import base64
    import json

    document: dict[str, object] = {
        "format": value.version,
        "id": value.store_id.hex(),
        "created_ns": value.created_ns,
        "durability": value.durability,
        "chunks": {
            "algorithm": "fastcdc",
            "minimum": value.chunk_minimum,
            "average": value.chunk_average,
            "maximum": value.chunk_maximum,
            "one_piece_limit": value.one_piece_limit,
        },
        "source": None,
    }
    if value.source is not None:
        try:
            document["source"] = value.source.decode("utf-8")
        except UnicodeDecodeError:
            document["source"] = value.source.decode("utf-8", "replace")
            document["source_b64"] = base64.b64encode(value.source).decode("ascii")
    return json.dumps(document, indent=1).encode("utf-8") + b"\n"


def decode_format(data: bytes, path: bytes) -> StoreFormat:
    """Read the document; an unknown version is Unable, anything unreadable is StoreDamaged."""
    import base64
    import json

    try:
        document = json.loads(data)
        version = document["format"]
        if not isinstance(version, int):
            raise ValueError("version")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StoreDamaged(f"store format file cannot be read: {quote(path)}") from None
    if version != VERSION:
        raise Unable(
            f"store {quote(path)} has format {version}, this layerfs knows format {VERSION}",
            "open it with the layerfs that wrote it, or a newer one",
        )
    try:
        chunks = document["chunks"]
        source: bytes | None = None
        if document["source"] is not None:
            source = document["source"].encode("utf-8")
        if "source_b64" in document:
            source = base64.b64decode(document["source_b64"], validate=True)
        value = StoreFormat(
            version=version,
            store_id=bytes.fromhex(document["id"]),
            created_ns=int(document["created_ns"]),
            source=source,
            durability=document["durability"],
            chunk_minimum=int(chunks["minimum"]),
            chunk_average=int(chunks["average"]),
            chunk_maximum=int(chunks["maximum"]),
            one_piece_limit=int(chunks["one_piece_limit"]),
        )
        known = chunks["algorithm"] == "fastcdc" and value.durability in (DURABLE, DISPOSABLE)
        if len(value.store_id) != 16 or not known:
            raise ValueError("field")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreDamaged(f"store format file cannot be read: {quote(path)}") from None
    return value


def read_format(files: Files, dir_fd: int, path: bytes) -> StoreFormat:
    """Read the ``format`` file of the directory open as ``dir_fd``; ``path`` is for messages."""
    try:
        data = files.read(dir_fd, FORMAT_FILE, FORMAT_LIMIT)
    except FileNotFoundError:
        raise NotAStore(f"cannot open store {quote(path)}: not a layerfs store") from None
    return decode_format(data, path)


def check_owner(path: bytes, dir_fd: int) -> tuple[int, int] | None:
    """Apply the rule of one uid: return (uid, gid) to give new files to when root works on somebody's store."""
    status = os.fstat(dir_fd)
    me = os.geteuid()
    if status.st_uid == me:
        return None
    if me == 0:
        return status.st_uid, status.st_gid
    raise Refused(
        f"store {quote(path)} belongs to uid {status.st_uid}, not to uid {me}",
        "use your own store, or act as its owner",
    )


def file_system_kind(path: bytes) -> str:
    """Return the kernel's name of the file system that holds ``path`` (``ext4``, ``overlay``, ``fuse.sshfs``, …).

    Read from mountinfo, the last and longest mount point above the real path: it names FUSE servers, which
    statfs(2) does not, and needs no foreign-function call. Unknown (no /proc) is the empty string.
    """
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        mounted, _, described = line.partition(b" - ")
        fields = mounted.split(b" ")
        if len(fields) < 5 or not described:
            continue
        point = _unescape(fields[4])
        inside = point == b"/" or real == point or real.startswith(point + b"/")
        if inside and len(point) >= best:
            best, kind = len(point), described.split(b" ")[0].decode("ascii", "replace")
    return kind


def _unescape(field: bytes) -> bytes:
    for code, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, character)
    return field


def is_remote(kind: str) -> bool:
    """Return whether locks or durability cannot be trusted on a file system of this kind."""
    return kind in REMOTE_KINDS or kind == "fuse" or kind.startswith("fuse.")


def check_file_system(path: bytes, allow_remote: bool) -> str:
    """Refuse a network or FUSE file system unless allowed; return the kind, so that a caller can note ``overlay``."""
    kind = file_system_kind(path)
    if is_remote(kind) and not allow_remote:
        raise Refused(
            f"store {quote(path)} would lie on a {kind} file system",
            "locks and syncs cannot be trusted there; choose a local directory, or allow it explicitly",
        )
    return kind
