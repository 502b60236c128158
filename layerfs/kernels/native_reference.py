"""Python twins of the native kernels: the same results, slower, with nothing but the standard library and fastcdc.

Owns the fallback for machines without a C compiler and the readable statement of what each kernel does. The invariant:
for every input a twin returns what the C kernel of the same name returns, and raises the same class of error. Line
diffs are long enough to live in ``linediff_reference``.

``fastcdc`` is imported only here, inside the one function that needs it: importing it pulls in click and may write to
stdout.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from bisect import bisect_left
from collections.abc import Sequence
from mmap import mmap
from typing import Any, TypeVar

from layerfs.kernels.linediff_reference import diff_lines
from layerfs.kernels.rows import (
    CREATE,
    MODE,
    NOT_REGULAR,
    OWNER,
    ROW_HEADER,
    TIMES,
    WRITE,
    XATTR,
    FileFault,
    FileRead,
    IndexLayout,
    Row,
)

__all__ = [
    "changed_records",
    "cut_points",
    "diff_lines",
    "index_places",
    "parse_rows",
    "parse_some_rows",
    "plain_cut_points",
    "plain_entries",
    "read_files",
    "scan_directory",
    "write_files",
    "zero_runs",
]

BytesLike = bytes | bytearray | memoryview
EntryLike = TypeVar("EntryLike", bound=tuple[Any, ...])
NewFile = tuple[bytes, tuple[Any, ...], BytesLike]

_MINIMUM_RANGE = (64, 1 << 26)
_AVERAGE_RANGE = (256, 1 << 28)
_MAXIMUM_RANGE = (1024, 1 << 30)
_READ_SIZE = 1 << 16
_SUFFIX_BYTES = 15
_KIND_BITS = 3
_MOST_PLACE_BYTES = 16
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_RECORD_HEAD = struct.Struct("<QIII52x")
_ENTRY = struct.Struct("<BBHIIqIQHH")
_LINKED = 2
_GROUP_SIZE = 8
_ID_SIZE = 32
_DEVICE_SIZE = 8
_NAME_MAX = 255
_TARGET_MAX = 4095
_FILE, _DIRECTORY, _SYMLINK, _SOCKET, _LAST_KIND = 1, 2, 3, 5, 7

_fastcdc: Any = None


def _package() -> Any:
    """Return the package's module, imported once and with anything it prints thrown away."""
    global _fastcdc
    if _fastcdc is None:
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()):
            import fastcdc
        _fastcdc = fastcdc
    return _fastcdc


def _check_sizes(minimum: int, average: int, maximum: int) -> None:
    for value, (low, high) in (
        (minimum, _MINIMUM_RANGE),
        (average, _AVERAGE_RANGE),
        (maximum, _MAXIMUM_RANGE),
    ):
        if not low <= value <= high:
            raise ValueError("chunk size out of range")


def _forced_size(minimum: int, maximum: int) -> int:
    """Return the length at which a chunk ends whatever its content; the package looks at so many bytes at once."""
    return max(min(minimum, max(_READ_SIZE, maximum)), maximum)


def cut_points(data: BytesLike, minimum: int, average: int, maximum: int, final: bool, /) -> list[int]:
    """Cut with the ``fastcdc`` package; see ``native.cut_points``."""
    _check_sizes(minimum, average, maximum)
    view = memoryview(data).cast("B")
    if not view:
        return []
    split = _package().fastcdc
    ends = [chunk.offset + chunk.length for chunk in split(view, minimum, average, maximum)]
    if not final:
        start = ends[-2] if len(ends) > 1 else 0
        length = ends[-1] - start
        if length < _forced_size(minimum, maximum):
            # The last piece ends where the data end. It ends *there by content* only if it still does with more after.
            longer = bytes(view[start:]) + bytes(64)
            if next(iter(split(longer, minimum, average, maximum))).length != length:
                ends.pop()
    return ends


def plain_cut_points(data: BytesLike, minimum: int, average: int, maximum: int, final: bool, /) -> list[int]:
    """State the cut rule in plain Python, for tests: what the C kernel and the package both compute.

    A gear hash shifts right, so it remembers about 32 bytes. No cut before ``minimum``; up to ``centre`` a hash with
    ``bits + 1`` zero bits cuts, after it ``bits - 1`` are enough, at ``maximum`` the chunk ends in any case. ``centre``
    is ``average - 1.5 * minimum`` (the package's reading of normalised chunking), so with the parameters of layerfs
    (8, 16, 32 KiB) it lies before ``minimum`` and only the second mask is ever used.
    """
    _check_sizes(minimum, average, maximum)
    from fastcdc.fastcdc_py import GEAR

    view = memoryview(data).cast("B")
    window = max(_READ_SIZE, maximum)
    bits = (average * average).bit_length() // 2  # log2, rounded to the nearest whole number
    centre = min(average - min(minimum + (minimum + 1) // 2, average), maximum)
    strict, loose = (1 << (bits + 1)) - 1, (1 << (bits - 1)) - 1
    ends: list[int] = []
    start = 0
    while start < len(view):
        size = min(len(view) - start, window)
        at = min(minimum, size)
        pattern = 0
        by_content = False
        while at < min(maximum, size):
            pattern = (pattern >> 1) + GEAR[view[start + at]]
            at += 1
            if not pattern & (strict if at <= centre else loose):
                by_content = True
                break
        if not (final or by_content or at >= _forced_size(minimum, maximum)):
            break
        start += at
        ends.append(start)
    return ends


def zero_runs(data: BytesLike, page: int, /) -> list[tuple[int, int]]:
    """Compare page by page; see ``native.zero_runs``."""
    if page < 64 or page & (page - 1):
        raise ValueError("page size is not a power of two of at least 64")
    view = memoryview(data).cast("B")
    zero = bytes(page)
    runs: list[tuple[int, int]] = []
    start = -1
    end = len(view) - len(view) % page
    for at in range(0, end, page):
        if view[at : at + page] == zero:
            if start < 0:
                start = at
        elif start >= 0:
            runs.append((start, at))
            start = -1
    if start >= 0:
        runs.append((start, end))
    return runs


def scan_directory(dirfd: int, /) -> bytearray:
    """Scan with ``os.listdir`` and ``os.stat``; see ``native.scan_directory``."""
    os.lseek(dirfd, 0, os.SEEK_SET)
    rows = bytearray()
    for name in sorted(os.fsencode(each) for each in os.listdir(dirfd)):
        try:
            found = os.stat(name, dir_fd=dirfd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        mtime, mtime_ns = divmod(found.st_mtime_ns, 1_000_000_000)
        ctime, ctime_ns = divmod(found.st_ctime_ns, 1_000_000_000)
        header = ROW_HEADER.pack(
            len(name),
            0,
            found.st_mode,
            found.st_uid,
            found.st_gid,
            found.st_nlink,
            os.major(found.st_dev),
            os.minor(found.st_dev),
            os.major(found.st_rdev),
            os.minor(found.st_rdev),
            found.st_size,
            found.st_ino,
            mtime,
            ctime,
            mtime_ns,
            ctime_ns,
        )
        rows += header + name
    return rows


def changed_records(dirfd: int, records: BytesLike, threads: int, /) -> tuple[list[int], list[int]]:
    """Compare one directory after the other; see ``native.changed_records``."""
    changed: list[int] = []
    linked: list[int] = []
    at = 0
    while at < len(records):
        start = at + _RECORD_HEAD.size
        if start > len(records):
            raise ValueError("stat cache ends inside a record")
        _, path_length, rows_length, is_linked = _RECORD_HEAD.unpack_from(records, at)
        end = start + path_length + rows_length
        if end > len(records):
            raise ValueError("stat cache ends inside a record")
        path = bytes(records[start : start + path_length])
        if not _scans_to(dirfd, path, records[start + path_length : end]):
            changed.append(at)
        if is_linked:
            linked.append(at)
        at = end
    return changed, linked


def _scans_to(dirfd: int, path: bytes, rows: BytesLike) -> bool:
    """Whether a directory below ``dirfd``, reached without following a symlink, scans to these rows."""
    current = os.open(b".", _DIRECTORY_FLAGS, dir_fd=dirfd)
    try:
        for name in path.split(b"/") if path else ():
            inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=current)
            os.close(current)
            current = inner
        return scan_directory(current) == rows
    except (OSError, ValueError):  # ValueError: no path at all, with a NUL in it
        return False
    finally:
        os.close(current)


def parse_rows(blob: BytesLike, /) -> list[Row]:
    """Decode with ``struct``; see ``native.parse_rows``."""
    return parse_some_rows(blob, 0, len(blob))[0]


def _device(major: int, minor: int) -> int:
    """Return what ``makedev`` makes of any two numbers of 32 bits; ``os.makedev`` takes only some of them."""
    return (major & ~0xFFF) << 32 | (major & 0xFFF) << 8 | (minor & ~0xFF) << 12 | minor & 0xFF


def parse_some_rows(blob: BytesLike, start: int, limit: int, /) -> tuple[list[Row], int]:
    """Decode at most ``limit`` rows from offset ``start`` on; return them and where they end."""
    view = memoryview(blob).cast("B")
    rows: list[Row] = []
    at, end = start, len(view)
    if not 0 <= start <= end or limit < 0:
        raise ValueError("no such place in the directory rows")
    while at < end and len(rows) < limit:
        name = at + ROW_HEADER.size
        if name > end:
            raise ValueError("directory rows end inside a row")
        (
            length, reserved, mode, uid, gid, nlink, dev_major, dev_minor, rdev_major, rdev_minor,
            size, ino, mtime, ctime, mtime_ns, ctime_ns,
        ) = ROW_HEADER.unpack_from(view, at)  # fmt: skip
        at = name + length
        if reserved or not length or at > end:
            raise ValueError("directory rows end inside a row")
        rows.append(
            Row(
                bytes(view[name:at]),
                mode,
                uid,
                gid,
                nlink,
                _device(dev_major, dev_minor),
                _device(rdev_major, rdev_minor),
                size,
                ino,
                mtime * 1_000_000_000 + mtime_ns,
                ctime * 1_000_000_000 + ctime_ns,
            )
        )
    return rows, at


def index_places(
    data: BytesLike | mmap, layout: IndexLayout, keys: Sequence[bytes]
) -> list[tuple[int, int, int, int] | None]:
    """Find places in a pack index."""
    bits = layout[-3:]
    wide = min(layout.wide, _MOST_PLACE_BYTES)
    ends = (
        layout.fanout + 4 * 256,
        layout.prefixes + _SUFFIX_BYTES * layout.objects,
        layout.places + layout.wide * layout.objects,
        layout.offsets + 8 * layout.frames,
    )
    fits = max(ends) <= len(data) and min(layout) >= 0
    if not fits or max(bits) >= 64 or _KIND_BITS + sum(bits) > 8 * wide:
        raise ValueError("an index of this layout is larger")
    fanout = struct.unpack_from("<256I", data, layout.fanout)

    def suffix(row: int) -> bytes:
        at = layout.prefixes + row * _SUFFIX_BYTES
        return bytes(data[at : at + _SUFFIX_BYTES])

    def place(key: bytes) -> tuple[int, int, int, int] | None:
        if len(key) <= _SUFFIX_BYTES or fanout[key[0]] > layout.objects:
            raise ValueError("a key is too short, or the index is impossible")
        low, high = fanout[key[0] - 1] if key[0] else 0, fanout[key[0]]
        row = bisect_left(range(high), key[1 : 1 + _SUFFIX_BYTES], low, high, key=suffix)
        if row >= high or suffix(row) != key[1 : 1 + _SUFFIX_BYTES]:
            return None
        at = layout.places + row * layout.wide
        value = int.from_bytes(data[at : at + wide], "little")
        fields = []
        for width in (_KIND_BITS, *bits):
            fields.append(value & ((1 << width) - 1))
            value >>= width
        kind, start, length, frame = fields
        if frame >= layout.frames:
            raise ValueError("a key is too short, or the index is impossible")
        return struct.unpack_from("<Q", data, layout.offsets + 8 * frame)[0], start, length, kind

    return [place(key) for key in keys]


def plain_entries(
    payload: bytes, start: int, entry_type: type[EntryLike], kinds: tuple[Any, ...], /
) -> tuple[list[tuple[bytes, EntryLike]], int]:
    """Check and unpack one entry after the other; see ``native.plain_entries``."""
    if not 0 <= start <= len(payload) or len(kinds) <= _LAST_KIND or not issubclass(entry_type, tuple):
        raise ValueError("not a place in a tree node, or not the entry's type and kinds")
    found: list[tuple[bytes, EntryLike]] = []
    at, last = start, b""
    while at + _ENTRY.size <= len(payload):
        kind, flags, mode, uid, gid, seconds, nanos, size, name_length, ref_length = _ENTRY.unpack_from(
            payload, at
        )
        middle = at + _ENTRY.size + name_length
        end = middle + ref_length
        name, ref = payload[middle - name_length : middle], payload[middle:end]
        group = 0
        if flags == _LINKED:
            group = int.from_bytes(payload[end : end + _GROUP_SIZE], "little")
            end += _GROUP_SIZE
        if end > len(payload) or flags not in (0, _LINKED) or (flags and not group):
            break
        if mode > 0o7777 or nanos >= 1_000_000_000 or not _fits_kind(kind, size, ref, group):
            break
        impossible = name_length > _NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b"..")
        if impossible or name <= last:
            break
        fields = (kinds[kind], mode, uid, gid, seconds * 1_000_000_000 + nanos, size, ref, (), group)
        found.append((name, tuple.__new__(entry_type, fields)))
        at, last = end, name
    return found, at


def _fits_kind(kind: int, size: int, ref: bytes, group: int) -> bool:
    """Whether an entry's reference is one that its kind can have."""
    if kind == _FILE:
        return len(ref) == (_ID_SIZE if size else 0)
    if size or not _FILE <= kind <= _LAST_KIND:
        return False
    if kind == _SYMLINK:
        return 0 < len(ref) <= _TARGET_MAX and b"\0" not in ref
    if kind == _DIRECTORY:
        return len(ref) == _ID_SIZE and not group
    return len(ref) == (_DEVICE_SIZE if kind > _SOCKET else 0)


def read_files(dirfd: int, names: Sequence[bytes], max_size: int, /) -> list[FileRead]:
    """Open, stat, read and stat again, one file after the other; see ``native.read_files``."""
    if max_size < 0:
        raise ValueError("negative size limit")
    return [_read_file(dirfd, name, max_size) for name in names]


def _read_file(dirfd: int, name: bytes, max_size: int) -> FileRead:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            fd = os.open(name, flags | os.O_NOATIME, dir_fd=dirfd)
        except PermissionError as error:
            if error.errno != errno.EPERM:
                raise
            fd = os.open(name, flags, dir_fd=dirfd)
    except OSError as error:
        return FileRead(None, error.errno or errno.EIO, True, 0, 0, 0, 0, 0)
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            return _read_outcome(None, NOT_REGULAR, True, before)
        if before.st_size > max_size:
            return _read_outcome(None, errno.EFBIG, True, before)
        try:
            data = _read_up_to(fd, before.st_size + 1)
        except OSError as error:
            return _read_outcome(None, error.errno or errno.EIO, True, before)
        has_xattrs = _has_xattrs(fd)
        after = os.fstat(fd)
        stable = (
            len(data) == before.st_size == after.st_size
            and before.st_mtime_ns == after.st_mtime_ns
            and before.st_ctime_ns == after.st_ctime_ns
        )
        return _read_outcome(data if stable else None, 0, stable, after, has_xattrs)
    finally:
        os.close(fd)


def _read_up_to(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(fd, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _has_xattrs(fd: int) -> bool:
    try:
        return bool(os.listxattr(fd))
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP


def _read_outcome(
    data: bytes | None, code: int, stable: bool, found: os.stat_result, has_xattrs: bool = True
) -> FileRead:
    times = found.st_mtime_ns, found.st_ctime_ns
    return FileRead(data, code, stable, found.st_size, *times, found.st_ino, found.st_mode, has_xattrs)


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o600
_PAGE = 4096


def write_files(dirfd: int, files: Sequence[NewFile], owners: bool, hole_min: int, /) -> list[FileFault]:
    """Make one file after the other; see ``native.write_files``."""
    if hole_min <= 0:
        raise ValueError("a hole has no length")
    batch = tuple(files)
    for name, _, _ in batch:
        if b"/" in name or b"\0" in name:
            raise ValueError("not a name, an entry and its content")
    faults: list[FileFault] = []
    for number, (name, entry, data) in enumerate(batch):
        if not _write_file(dirfd, number, name, entry, memoryview(data), owners, hole_min, faults):
            break
    return faults


def _write_file(
    dirfd: int,
    number: int,
    name: bytes,
    entry: tuple[Any, ...],
    data: memoryview,
    owners: bool,
    hole_min: int,
    faults: list[FileFault],
) -> bool:
    _, mode, uid, gid, mtime_ns, _, _, xattrs, _ = entry
    known = not owners or (uid, gid) == (os.geteuid(), os.getegid())
    step = CREATE
    try:
        fd = os.open(name, _CREATE, mode & 0o777 if known else _PRIVATE, dir_fd=dirfd)
        try:
            step = WRITE
            _write_sparse(fd, data, hole_min)
            found = os.fstat(fd)
            _dress(fd, number, found, mode, (uid, gid) if owners else None, xattrs, faults)
            step = TIMES
            os.utime(fd, ns=(mtime_ns, mtime_ns))
            step = WRITE
        except OSError:
            os.unlink(name, dir_fd=dirfd)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        faults.append(FileFault(number, step, error.errno or errno.EIO, None))
        return False
    return True


def _dress(
    fd: int,
    number: int,
    found: os.stat_result,
    mode: int,
    owner: tuple[int, int] | None,
    xattrs: tuple[tuple[bytes, bytes], ...],
    faults: list[FileFault],
) -> None:
    changed = owner is not None and (found.st_uid, found.st_gid) != owner
    if owner is not None and changed:
        try:
            os.fchown(fd, *owner)
        except OSError as error:
            faults.append(FileFault(number, OWNER, error.errno or errno.EIO, None))
    for key, value in xattrs:
        try:
            os.setxattr(fd, key, value)
        except OSError as error:
            faults.append(FileFault(number, XATTR, error.errno or errno.EIO, key))
    if changed or xattrs or stat.S_IMODE(found.st_mode) != mode:
        try:
            os.fchmod(fd, mode)
        except OSError as error:
            faults.append(FileFault(number, MODE, error.errno or errno.EIO, None))


def _write_sparse(fd: int, data: memoryview, hole_min: int) -> None:
    at = 0
    if len(data) >= hole_min:
        for start, end in zero_runs(data, _PAGE):
            if end - start >= hole_min:
                _write_all(fd, data[at:start], at)
                at = end
    _write_all(fd, data[at:], at)
    if at and at == len(data):
        os.ftruncate(fd, at)


def _write_all(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        at += written
        data = data[written:]
