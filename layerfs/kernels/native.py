"""Native kernels: one door to the hot loops, compiled where possible and in Python where not.

Owns the choice between the C module ``_native`` and its twin ``native_reference``. Both have the same signatures and
the same results for every input – the tests run one body on both – so a caller never asks which one runs. The C kernels
release the GIL around every scan and every loop of system calls; the twins cannot.

The kernel is chosen if it was built, else the twin. :func:`select` overrides that (``context`` calls
``select(kernel=False)`` for ``LAYERFS_NATIVE=0``; this module does not read the environment). The row layout is in
``rows``; which bytes are cut, scanned or read is decided by the callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from mmap import mmap
from typing import Any, Protocol, TypeVar, cast

from layerfs.kernels.rows import NOT_REGULAR, FileFault, FileRead, IndexLayout, Row

__all__ = [
    "NOT_REGULAR",
    "BytesLike",
    "FileFault",
    "FileRead",
    "Hunk",
    "IndexLayout",
    "Row",
    "available",
    "changed_records",
    "cut_points",
    "diff_lines",
    "index_places",
    "iter_rows",
    "parse_rows",
    "plain_entries",
    "read_files",
    "row_runs",
    "scan_directory",
    "select",
    "write_files",
    "zero_runs",
]

BytesLike = bytes | bytearray | memoryview
Hunk = tuple[int, int, int, int]
EntryLike = TypeVar("EntryLike", bound=tuple[Any, ...])
NewFile = tuple[bytes, tuple[Any, ...], BytesLike]
"""A name, its entry and its content."""

ROWS_AT_ONCE = 4096


class Kernels(Protocol):
    """What both implementations are made of; the functions below say what each one promises."""

    def cut_points(
        self, data: BytesLike, minimum: int, average: int, maximum: int, final: bool, /
    ) -> list[int]: ...
    def zero_runs(self, data: BytesLike, page: int, /) -> list[tuple[int, int]]: ...
    def diff_lines(self, a: BytesLike, b: BytesLike, indent_heuristic: bool, /) -> list[Hunk]: ...
    def scan_directory(self, dirfd: int, /) -> bytearray: ...
    def changed_records(
        self, dirfd: int, records: BytesLike, threads: int, /
    ) -> tuple[list[int], list[int]]: ...
    def parse_rows(self, blob: BytesLike, /) -> list[Row]: ...
    def parse_some_rows(self, blob: BytesLike, start: int, limit: int, /) -> tuple[list[Row], int]: ...
    def index_places(
        self, data: BytesLike | mmap, layout: IndexLayout, keys: Sequence[bytes], /
    ) -> list[tuple[int, int, int, int] | None]: ...
    def plain_entries(
        self, payload: bytes, start: int, entry_type: type[EntryLike], kinds: tuple[Any, ...], /
    ) -> tuple[list[tuple[bytes, EntryLike]], int]: ...
    def read_files(self, dirfd: int, names: Sequence[bytes], max_size: int, /) -> list[FileRead]: ...
    def write_files(
        self, dirfd: int, files: Sequence[NewFile], owners: bool, hole_min: int, /
    ) -> list[FileFault]: ...


def _load(kernel: bool) -> Kernels:
    return cast(Kernels, import_module(f"layerfs.kernels.{'_native' if kernel else 'native_reference'}"))


def _choose() -> Kernels:
    try:
        return _load(kernel=True)
    except ImportError:
        return _load(kernel=False)


_active = _choose()


def available() -> bool:
    """Return whether the compiled kernels are the ones in use."""
    return getattr(_active, "__name__", "") == "layerfs.kernels._native"


def select(*, kernel: bool) -> None:
    """Use the compiled kernels (``ImportError`` if they were not built) or their Python twins from now on."""
    global _active
    _active = _load(kernel)


def cut_points(data: BytesLike, minimum: int, average: int, maximum: int, final: bool = True) -> list[int]:
    """Return the end offset of each chunk of ``data``, exactly where the ``fastcdc`` package cuts (FastCDC, 2016).

    With ``final`` the last offset is ``len(data)``. Without it, a last piece that neither its content nor the largest
    size ends is left out: a caller that streams carries the bytes after the last cut over to the next call and gets
    the cuts of the whole. Raises ``ValueError`` for sizes the package refuses.
    """
    return _active.cut_points(data, minimum, average, maximum, final)


def zero_runs(data: BytesLike, page: int = 4096) -> list[tuple[int, int]]:
    """Return the maximal runs of whole zero pages as ``(start, end)`` byte offsets; a partial last page is data.

    Pages count from the start of ``data``, which the caller has aligned. ``page`` is a power of two, at least 64.
    """
    return _active.zero_runs(data, page)


def diff_lines(a: BytesLike, b: BytesLike, indent_heuristic: bool = False) -> list[Hunk]:
    r"""Return where ``b`` differs from ``a`` as line ranges ``(a_start, a_end, b_start, b_end)``, 0-based, half open.

    Lines end with ``\n`` and nothing else; a last line without it differs from the same line with it. The hunks are
    those of git's default diff (Myers 1986 with its cost limits, groups slid down and joined); git also applies the
    indent heuristic in ``diff`` and ``blame``, and does not in merges.
    """
    return _active.diff_lines(a, b, indent_heuristic)


def scan_directory(dirfd: int) -> bytearray:
    """Return the rows of the directory open as ``dirfd``, sorted by name, in the layout of ``rows``.

    The caller may write into them. Symbolic links are not followed and nothing is automounted. An entry that goes away
    during the scan is left out; any other failure raises ``OSError`` with the name. The offset of ``dirfd`` is moved.
    """
    return _active.scan_directory(dirfd)


def changed_records(dirfd: int, records: BytesLike, threads: int) -> tuple[list[int], list[int]]:
    """Compare a whole tree with the records of a stat cache (``statcache``); the kernel works in so many threads.

    Returns the places of the records whose directory, below the one open as ``dirfd``, does not scan to the same rows or
    cannot be read, and the places of those marked as linked. ``ValueError`` if the bytes are not whole records.
    """
    return _active.changed_records(dirfd, records, threads)


def parse_rows(blob: BytesLike) -> list[Row]:
    """Return the rows of a scan; ``ValueError`` if the bytes are not whole rows."""
    return _active.parse_rows(blob)


def row_runs(blob: BytesLike) -> Iterator[tuple[int, list[Row]]]:
    """Yield runs of some thousand rows of a scan and where each begins, at least one: all at once may take 400 MB."""
    at = 0
    while True:
        rows, end = _active.parse_some_rows(blob, at, ROWS_AT_ONCE)
        yield at, rows
        at = end
        if at == len(blob):
            return


def iter_rows(blob: BytesLike) -> Iterator[Row]:
    """Yield the rows of a scan one by one."""
    return chain.from_iterable(rows for _, rows in row_runs(blob))


def index_places(
    data: BytesLike | mmap, layout: IndexLayout, keys: Sequence[bytes]
) -> list[tuple[int, int, int, int] | None]:
    """Look for many objects, by the first 16 bytes of their ids, in a pack index; see ``objects/packindex``.

    One result per key: the frame's offset, start and length in it and the kind, or None for what is not there. Raises
    ``ValueError`` for a layout that does not fit the data, a key that is too short, and a place in no frame of the list.
    """
    return _active.index_places(data, layout, keys)


def plain_entries(
    payload: bytes, start: int, entry_type: type[EntryLike], kinds: tuple[Any, ...]
) -> tuple[list[tuple[bytes, EntryLike]], int]:
    """Decode the entries of a tree node from ``start`` on, up to the first that is not plain; return where that is.

    Plain is a whole and valid entry without extended attributes whose name sorts after the one before (the first: after
    nothing). What comes out is what ``objects/entry`` decodes; the rest, and what is wrong with it, is its affair.
    ``entry_type`` is its ``Entry``, ``kinds`` the kinds by number, the first of them unused.
    """
    return _active.plain_entries(payload, start, entry_type, kinds)


def read_files(dirfd: int, names: Sequence[bytes], max_size: int) -> list[FileRead]:
    """Read each regular file named in the directory, at most ``max_size`` bytes each, and say whether it held still.

    One result per name, in order; see ``rows.FileRead`` for its four cases. Links are not followed, FIFOs do not block,
    access times stay where the kernel lets us (``O_NOATIME``). A change that leaves size, mtime and ctime as they were
    between the two ``fstat`` calls cannot be seen.
    """
    return _active.read_files(dirfd, names, max_size)


def write_files(dirfd: int, files: Sequence[NewFile], owners: bool, hole_min: int) -> list[FileFault]:
    """Make new files in a directory, each whole – content, owner, extended attributes, mode, times – and return faults.

    Nothing that exists is touched and no link is followed: a name that is taken is a fault, one with a slash a
    ``ValueError``. The first file that cannot be had ends the batch and leaves nothing of itself; what a file may lack
    is told, and the rest goes on (``rows.FileFault``). ``owners`` gives them the entries' owners; runs of at least
    ``hole_min`` zero bytes in whole pages become holes. An entry is one of ``objects/entry``.
    """
    return _active.write_files(dirfd, files, owners, hole_min)
