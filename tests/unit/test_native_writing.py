"""Writing new files: the kernel and its twin leave the same files and tell the same faults."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import load, on_both
from odd_tree import USER_CAPABILITY, describe

from layerfs.kernels import native
from layerfs.kernels.rows import CREATE, OWNER, TIMES, XATTR, FileFault
from layerfs.objects.entry import Entry, EntryKind, Xattrs

ROOT = os.geteuid() == 0
HOLE_MIN = 64 * 1024
MTIME = 1_500_000_000_123_456_789


def entry(
    data: bytes, mode: int = 0o644, owner: tuple[int, int] = (os.geteuid(), os.getegid()), xattrs: Xattrs = ()
) -> Entry:
    return Entry(EntryKind.FILE, mode, *owner, MTIME, len(data), b"", xattrs)


def write(
    which: str, place: Path, files: list[native.NewFile], owners: bool = ROOT, hole_min: int = HOLE_MIN
) -> list[FileFault]:
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return load(which).write_files(directory, files, owners, hole_min)
    finally:
        os.close(directory)


@pytest.fixture
def small_disk(tmp_path: Path, need_root_mounts: None) -> Iterator[Path]:
    """A file system of 3 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", place], check=True, timeout=20)
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=20)


contents = st.lists(
    st.sampled_from(
        [b"", b"x", b"text\n" * 100, bytes(4096), bytes(HOLE_MIN), b"\0" * 4095 + b"1", b"a" * 5000]
    ),
    max_size=4,
).map(b"".join)
new_files = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & set(name)),
        contents,
        st.integers(0, 0o7777),
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from([(0, 0), (1234, 0), (0, 5678), (1, 2)]),
        st.sampled_from(
            [(), ((b"user.a", b"1"),), ((b"user.a", b""), (b"user.b", b"\0")), ((b"nowhere.x", b""),)]
        ),
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(batch=new_files, owners=st.booleans(), umask=st.sampled_from([0, 0o022, 0o077]))
def test_both_leave_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    batch: list[tuple[bytes, bytes, int, int, tuple[int, int], Xattrs]],
    owners: bool,
    umask: int,
) -> None:
    found = []
    files: list[native.NewFile] = [
        (name, Entry(EntryKind.FILE, mode, *owner, mtime, len(data), b"", xattrs), data)
        for name, data, mode, mtime, owner, xattrs in batch
    ]
    before = os.umask(umask)
    try:
        for which in ("kernel", "twin"):
            place = tmp_path_factory.mktemp(which)
            faults = write(which, place, files, owners)
            os.utime(place, ns=(0, 0))
            found.append((faults, describe(place) if ROOT else sorted(os.listdir(place))))
    finally:
        os.umask(before)
    assert found[0] == found[1]


@on_both
def test_a_file_is_what_its_entry_says(which: str, tmp_path: Path) -> None:
    data = b"content\n"
    modes = [0o644, 0o755, 0o400, 0o000, 0o6755, 0o1666, 0o2070]
    files: list[native.NewFile] = [(b"%o" % mode, entry(data, mode), memoryview(data)) for mode in modes]
    before = os.umask(0o077)
    try:
        assert write(which, tmp_path, files) == []
    finally:
        os.umask(before)
    for mode in modes:
        found = os.lstat(tmp_path / f"{mode:o}")
        assert stat.S_IMODE(found.st_mode) == mode
        assert (found.st_size, found.st_mtime_ns) == (len(data), MTIME)
    assert (tmp_path / "644").read_bytes() == data


@on_both
@pytest.mark.skipif(not ROOT, reason="gives files away")
def test_set_id_bits_and_capabilities_outlive_the_owner(which: str, tmp_path: Path) -> None:
    capability: Xattrs = ((b"security.capability", USER_CAPABILITY),)
    files: list[native.NewFile] = [
        (b"setuid", entry(b"x", 0o6755, (1, 2)), b"x"),
        (b"capable", entry(b"x", 0o755, (1, 1), capability), b"x"),
    ]
    assert write(which, tmp_path, files) == []
    found = os.lstat(tmp_path / "setuid")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1, 2, 0o6755)
    assert os.getxattr(tmp_path / "capable", "security.capability") == USER_CAPABILITY
    alone = tmp_path / "alone"
    alone.mkdir()
    assert write(which, alone, files[:1], owners=False) == []
    assert os.lstat(alone / "setuid").st_uid == 0


@on_both
def test_nothing_that_is_there_is_touched(which: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    place = tmp_path / "place"
    place.mkdir()
    (place / "link").symlink_to("../outside")
    (place / "dangling").symlink_to("../fresh")
    (place / "file").write_bytes(b"mine")
    (place / "dir").mkdir()
    for name in (b"link", b"dangling", b"file", b"dir"):
        assert write(which, place, [(name, entry(b"yours"), b"yours")]) == [
            FileFault(0, CREATE, errno.EEXIST, None)
        ]
    for name in (b"../outside", b"dir/inside", b"/etc/nothing", b"a\0b"):
        with pytest.raises(ValueError):
            write(which, place, [(b"first", entry(b""), b""), (name, entry(b""), b"")])
    assert (tmp_path / "outside").read_bytes() == (place / "file").read_bytes() == b"mine"
    assert sorted(os.listdir(place)) == ["dangling", "dir", "file", "link"]
    assert not (tmp_path / "fresh").exists()


@on_both
def test_the_first_that_fails_ends_the_batch(which: str, tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    files: list[native.NewFile] = [(name, entry(b"x"), b"x") for name in (b"a", b"b", b"c")]
    assert write(which, tmp_path, files) == [FileFault(1, CREATE, errno.EEXIST, None)]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    long: list[native.NewFile] = [(b"n" * 256, entry(b"x"), b"x")]
    assert write(which, tmp_path, long) == [FileFault(0, CREATE, errno.ENAMETOOLONG, None)]


@on_both
def test_a_disk_that_fills_up_leaves_no_half_file(which: str, tmp_path: Path, small_disk: Path) -> None:
    data = os.urandom(100_000)
    files: list[native.NewFile] = [(b"%03d" % number, entry(data), data) for number in range(100)]
    faults = write(which, small_disk, files)
    assert [fault.errno for fault in faults] == [errno.ENOSPC]
    names = sorted(os.fsencode(name) for name in os.listdir(small_disk))
    assert names == [b"%03d" % number for number in range(faults[0].number)]
    assert all((small_disk / os.fsdecode(name)).read_bytes() == data for name in names)


@on_both
def test_what_a_file_may_lack_is_told(which: str, tmp_path: Path) -> None:
    files: list[native.NewFile] = [
        (b"a", entry(b"x", xattrs=((b"nowhere.name", b"v"), (b"user.name", b"v"))), b"x"),
        (b"b", entry(b"x", owner=(2**32 - 1, 2**32 - 1)), b"x"),
        (b"c", entry(b"x"), b"x"),
    ]
    faults = write(which, tmp_path, files)
    assert (0, XATTR, errno.EOPNOTSUPP, b"nowhere.name") in faults
    assert os.getxattr(tmp_path / "a", "user.name") == b"v"
    assert (tmp_path / "c").read_bytes() == b"x"
    assert {fault.step for fault in faults} <= {XATTR, OWNER}


@on_both
def test_long_runs_of_zeros_are_holes(which: str, tmp_path: Path) -> None:
    cases = {
        b"all": bytes(2 * HOLE_MIN),
        b"middle": b"a" * 4096 + bytes(HOLE_MIN) + b"z",
        b"end": b"a" * 5000 + bytes(HOLE_MIN + 4096),
        b"too short": b"a" * 4096 + bytes(HOLE_MIN - 4096) + b"z" * 4096,
    }
    assert write(which, tmp_path, [(name, entry(data), data) for name, data in cases.items()]) == []
    for name, data in cases.items():
        path = tmp_path / os.fsdecode(name)
        assert path.read_bytes() == data
        sparse = os.lstat(path).st_blocks * 512 < len(data) - HOLE_MIN // 2
        assert sparse == (name != b"too short")


@on_both
def test_times_of_all_ages(which: str, tmp_path: Path) -> None:
    times = [0, -1, 1, -5_000_000_001, 10**18, 2**62]
    files: list[native.NewFile] = [
        (b"%d" % number, entry(b"")._replace(mtime_ns=time), b"") for number, time in enumerate(times)
    ]
    assert write(which, tmp_path, files) == []
    for number, time in enumerate(times):
        path = tmp_path / f"{number}"
        (tmp_path / "plain").touch()
        os.utime(tmp_path / "plain", ns=(time, time))
        assert os.lstat(path).st_mtime_ns == os.lstat(tmp_path / "plain").st_mtime_ns


@on_both
def test_wrong_arguments_are_refused(which: str, tmp_path: Path) -> None:
    good: native.NewFile = (b"a", entry(b""), b"")
    for files, hole_min in (([good], 0), ([(b"a", entry(b""))], 1), ([(b"a", (1, 2), b"")], 1)):
        with pytest.raises(ValueError):
            write(which, tmp_path, files, hole_min=hole_min)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write(which, tmp_path, [(b"a", entry(b""), "text")])  # type: ignore[list-item]
    assert os.listdir(tmp_path) == []
    assert write(which, tmp_path, []) == []
    assert TIMES > XATTR
