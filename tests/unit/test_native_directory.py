"""Directory scans and small-file reads, against what ``os.stat`` and ``open`` say."""

from __future__ import annotations

import errno
import itertools
import os
import random
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kernels import load, on_both

from layerfs.capture.statcache import RECORD_HEAD, StatCache
from layerfs.kernels import native
from layerfs.kernels.rows import NOT_REGULAR, ROW_HEADER, FileRead, Row

NAMES = [b"a", b"a-", b"a.b", b"aa", b"B", b"\xff\xfe odd", b"new\nline", b"\xc3\xa9", b"-", b"..."]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def populate(path: Path) -> None:
    for number, name in enumerate(NAMES):
        place = os.fsencode(path) + b"/" + name
        Path(os.fsdecode(place)).write_bytes(b"x" * number)
        os.utime(place, ns=(0, (number - 3) * 1_500_000_007))
        os.chmod(place, 0o7000 + number)
    (path / "dir").mkdir()
    os.symlink("nowhere", path / "link")
    os.mkfifo(path / "fifo")
    os.link(path / "aa", path / "second name")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path / "sock"))


def expected_row(path: Path, name: bytes) -> Row:
    found = os.lstat(os.fsencode(path) + b"/" + name)
    return Row(
        name,
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_nlink,
        found.st_dev,
        found.st_rdev,
        found.st_size,
        found.st_ino,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


@on_both
def test_rows_say_what_lstat_says(which: str, tmp_path: Path) -> None:
    kernels = load(which)
    populate(tmp_path)
    with opened(tmp_path) as fd:
        rows = kernels.parse_rows(kernels.scan_directory(fd))
    assert rows == [expected_row(tmp_path, name) for name in sorted(os.listdir(os.fsencode(tmp_path)))]
    assert all(type(row) is Row for row in rows)
    assert rows[0]._replace(name=b"z").name == b"z"


def test_kernel_and_twin_give_the_same_blob(tmp_path: Path) -> None:
    populate(tmp_path)
    with opened(tmp_path) as fd:
        blob = load("kernel").scan_directory(fd)
        assert blob == load("twin").scan_directory(fd)
        assert blob == load("kernel").scan_directory(fd)
    assert load("kernel").parse_rows(blob) == load("twin").parse_rows(blob)
    with opened(Path("/dev")) as fd:
        devices = {row.name: row for row in load("kernel").parse_rows(load("kernel").scan_directory(fd))}
    assert devices[b"null"] == expected_row(Path("/dev"), b"null")


@on_both
def test_reading_does_not_change_a_blob_and_writing_does(which: str, tmp_path: Path) -> None:
    scan = load(which).scan_directory
    (tmp_path / "f").write_bytes(b"one")
    os.utime(tmp_path / "f", ns=(0, 0))
    with opened(tmp_path) as fd:
        before = scan(fd)
        (tmp_path / "f").read_bytes()
        assert scan(fd) == before
        (tmp_path / "f").write_bytes(b"two")
        assert scan(fd) != before


@on_both
def test_empty_directory(which: str, tmp_path: Path) -> None:
    kernels = load(which)
    with opened(tmp_path) as fd:
        assert kernels.scan_directory(fd) == b""
    assert kernels.parse_rows(b"") == []


@on_both
def test_not_a_directory(which: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        with pytest.raises(NotADirectoryError):
            load(which).scan_directory(fd)
    finally:
        os.close(fd)


@on_both
def test_entries_that_go_away_during_the_scan_are_left_out(which: str, tmp_path: Path) -> None:
    kernels = load(which)
    for number in range(300):
        (tmp_path / f"stays{number}").touch()
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            (tmp_path / f"goes{number % 50}").touch()
            os.unlink(tmp_path / f"goes{number % 50}")
            number += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with opened(tmp_path) as fd:
            for _ in range(30):
                names = [row.name for row in kernels.parse_rows(kernels.scan_directory(fd))]
                assert sum(name.startswith(b"stays") for name in names) == 300
    finally:
        stop.set()
        thread.join()


@on_both
def test_rows_that_are_cut_short_are_refused(which: str) -> None:
    kernels = load(which)
    row = ROW_HEADER.pack(3, 0, *[1] * 14) + b"abc"
    assert len(kernels.parse_rows(row + row)) == 2
    for length in range(1, len(row)):
        with pytest.raises(ValueError, match="inside a row"):
            kernels.parse_rows(row + row[:length])
    with pytest.raises(ValueError, match="inside a row"):
        kernels.parse_rows(ROW_HEADER.pack(3, 1, *[1] * 14) + b"abc")
    with pytest.raises(ValueError, match="inside a row"):
        kernels.parse_rows(ROW_HEADER.pack(0, 0, *[1] * 14))


@on_both
def test_rows_can_be_decoded_a_few_at_a_time(which: str, tmp_path: Path) -> None:
    kernels = load(which)
    populate(tmp_path)
    with opened(tmp_path) as fd:
        blob = kernels.scan_directory(fd)
    rows: list[Row] = []
    at = 0
    while at < len(blob):
        some, at = kernels.parse_some_rows(blob, at, 4)
        assert 1 <= len(some) <= 4
        rows += some
    assert rows == kernels.parse_rows(blob) == list(native.iter_rows(blob))
    assert kernels.parse_some_rows(blob, at, 4) == ([], len(blob))
    for start, limit in ((-1, 4), (len(blob) + 1, 4), (0, -1)):
        with pytest.raises(ValueError, match="no such place"):
            kernels.parse_some_rows(blob, start, limit)


@on_both
def test_times_beyond_64_bits_of_nanoseconds(which: str) -> None:
    header = ROW_HEADER.pack(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 40, -(1 << 40), 5, 6)
    (row,) = load(which).parse_rows(header + b"n")
    assert (row.mtime_ns, row.ctime_ns) == ((1 << 40) * 10**9 + 5, -(1 << 40) * 10**9 + 6)


@on_both
def test_device_numbers_of_every_size(which: str) -> None:
    numbers = [0, 0xFF, 0x100, 0xFFF, 0x1000, 0xFFFFF, 0x7FFFFFFF]
    for major, minor in itertools.product(numbers, numbers):
        header = ROW_HEADER.pack(1, 0, 0, 0, 0, 0, major, minor, minor, major, 0, 0, 0, 0, 0, 0)
        (row,) = load(which).parse_rows(header + b"n")
        assert (row.dev, row.rdev) == (os.makedev(major, minor), os.makedev(minor, major))
    header = ROW_HEADER.pack(1, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0, 0, 0, 0, 0, 0)
    assert load(which).parse_rows(header + b"n")[0].dev == (1 << 64) - 1


@on_both
def test_a_read_file_tells_whether_it_has_extended_attributes(which: str, tmp_path: Path) -> None:
    for name in ("bare", "marked", "large"):
        (tmp_path / name).write_bytes(b"content" if name != "large" else bytes(101))
    try:
        os.setxattr(tmp_path / "marked", "user.mark", b"")
    except OSError:
        pytest.skip("no user attributes on this file system")
    with opened(tmp_path) as fd:
        bare, marked, large = load(which).read_files(fd, [b"bare", b"marked", b"large"], 100)
    assert (bare.has_xattrs, marked.has_xattrs) == (False, True)
    assert large.data is None and large.has_xattrs


@on_both
def test_files_are_read_whole(which: str, tmp_path: Path) -> None:
    choose = random.Random(1)
    contents = {
        b"f%03d" % number: choose.randbytes(choose.choice([0, 1, 100, 5000, 70_000])) for number in range(150)
    }
    for name, content in contents.items():
        (tmp_path / os.fsdecode(name)).write_bytes(content)
    with opened(tmp_path) as fd:
        results = load(which).read_files(fd, list(contents), 70_000)
    assert [result.data for result in results] == list(contents.values())
    for name, result in zip(contents, results, strict=True):
        found = os.lstat(tmp_path / os.fsdecode(name))
        assert type(result) is FileRead
        assert result[1:] == (
            0, True, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode, False
        )  # fmt: skip


@on_both
def test_what_cannot_be_read_says_why(which: str, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    (tmp_path / "fits").write_bytes(b"x" * 100)
    (tmp_path / "dir").mkdir()
    os.symlink("fits", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    names = [b"big", b"fits", b"dir", b"link", b"fifo", b"none"]
    with opened(tmp_path) as fd:
        results = load(which).read_files(fd, names, 100)
    assert [result.errno for result in results] == [
        errno.EFBIG,
        0,
        NOT_REGULAR,
        errno.ELOOP,
        NOT_REGULAR,
        errno.ENOENT,
    ]
    assert [result.data for result in results] == [None, b"x" * 100, None, None, None, None]
    assert results[0].size == 101
    assert stat.S_ISFIFO(results[4].mode)
    with pytest.raises(ValueError, match="negative"), opened(tmp_path) as fd:
        load(which).read_files(fd, names, -1)


@on_both
def test_access_time_stays(which: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    os.utime(tmp_path / "f", ns=(0, 10**18))
    with opened(tmp_path) as fd:
        assert load(which).read_files(fd, [b"f"], 100)[0].data == b"content"
    assert os.lstat(tmp_path / "f").st_atime_ns == 0


@on_both
def test_a_file_that_moves_is_never_returned_torn(which: str, tmp_path: Path) -> None:
    """A writer empties and fills a file; a stable read never mixes two fillings, an unstable one has no data."""
    kernels = load(which)
    contents = [b"a" * 40_000, b"b" * 60_000]
    (tmp_path / "f").write_bytes(contents[0])
    stop = threading.Event()

    def write() -> None:
        turn = 0
        with open(tmp_path / "f", "r+b", buffering=0) as file:
            while not stop.is_set():
                turn ^= 1
                file.truncate(0)
                os.pwrite(file.fileno(), contents[turn], 0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with opened(tmp_path) as fd:
            for _ in range(200):
                (result,) = kernels.read_files(fd, [b"f"], 1 << 20)
                assert result.errno == 0
                assert (result.data is not None) == result.stable
                if result.data is not None:
                    assert len(result.data) == result.size
                    assert len(set(result.data)) <= 1
    finally:
        stop.set()
        thread.join()


@on_both
def test_wrong_types_are_refused(which: str) -> None:
    with pytest.raises(TypeError):
        load(which).read_files(0, [1], 10)  # type: ignore[list-item]


def record(path: bytes, rows: bytes, linked: bool, below: bytes = b"") -> bytes:
    span = RECORD_HEAD.size + len(path) + len(rows) + len(below)
    return RECORD_HEAD.pack(span, len(path), len(rows), linked, 1, 0, 0, 0, bytes(32)) + path + rows + below


def records_of(top: Path, path: str = "") -> bytes:
    """Return the records of a tree as it is now; directories called ``linked`` are marked so."""
    place = top / path
    with opened(place) as fd:
        rows = load("twin").scan_directory(fd)
    names = sorted(each.name for each in place.iterdir() if each.is_dir() and not each.is_symlink())
    below = b"".join(records_of(top, f"{path}/{name}" if path else name) for name in names)
    return record(os.fsencode(path), rows, place.name == "linked", below)


@on_both
@pytest.mark.parametrize("threads", [1, 5])
def test_changed_directories_are_found_in_a_whole_tree(which: str, threads: int, tmp_path: Path) -> None:
    kernels = load(which)
    top = tmp_path / "top"
    for number in range(100):
        inner = top / f"d{number % 10}" / f"e{number}"
        inner.mkdir(parents=True)
        (inner / "file").write_bytes(b"one")
    (top / "d3" / "linked").mkdir()
    (top / "d4" / "empty").mkdir()
    records = records_of(top)
    cache = StatCache(records)
    with opened(top) as fd:
        changed, linked = kernels.changed_records(fd, records, threads)
        assert changed == []
        assert [cache.at(place).path for place in linked] == [b"d3/linked"]
        (top / "d7" / "e7" / "file").write_bytes(b"two")
        (top / "d4" / "empty" / "new").touch()
        (top / "d5" / "e5" / "file").chmod(0o600)
        os.rename(top / "d9" / "e99", tmp_path / "moved")
        os.symlink(tmp_path / "moved", top / "d9" / "e99")
        changed, _ = kernels.changed_records(fd, records, threads)
    assert [cache.at(place).path for place in changed] == [
        b"",
        b"d4",
        b"d4/empty",
        b"d5/e5",
        b"d7/e7",
        b"d9",
        b"d9/e99",
    ]


@on_both
def test_a_record_that_is_cut_off_is_refused(which: str, tmp_path: Path) -> None:
    kernels = load(which)
    records = record(b"", b"", False) + record(b"a", b"rows", False)
    with opened(tmp_path) as fd:
        assert kernels.changed_records(fd, records, 2)[0] == [RECORD_HEAD.size]
        for cut in (1, RECORD_HEAD.size - 1, RECORD_HEAD.size + 1, len(records) - 1):
            with pytest.raises(ValueError, match="ends inside a record"):
                kernels.changed_records(fd, records[:cut], 2)
        assert kernels.changed_records(fd, b"", 2) == ([], [])


@on_both
def test_a_record_of_no_possible_path_has_changed(which: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    records = record(b"a", b"", False) + record(b"a\0b", b"", False) + record(b"x" * 5000, b"", False)
    with opened(tmp_path) as fd:
        changed, _ = load(which).changed_records(fd, records, 2)
    assert changed == [RECORD_HEAD.size + 1, 2 * RECORD_HEAD.size + 4]
