"""The upper reader, case by case: what the model cannot make, and what the reading costs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mounting import Stand, capture, copy_root_attributes, flat, mounted, read_upper

from layerfs.errors import StoreDamaged
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import walk
from layerfs.objects.memory import MemoryObjects
from layerfs.workspace.overlay import Layers, reset_work
from layerfs.workspace.upper import scan_upper
from layerfs.workspace.uppercache import decode_cache, is_racy


class Ground(Stand):
    """A lower with a few directories, its tree, and an empty upper."""

    @property
    def layers(self) -> Layers:
        return Layers((self.path(b"lower"),), self.path(b"upper"), self.path(b"work"))

    def file(self, name: str) -> Path:
        return Path(os.fsdecode(self.target), name)


@pytest.fixture
def ground(tmp_path: Path, overlay_mounts: None) -> Ground:
    stand = Ground(os.fsencode(tmp_path))
    lower = Path(os.fsdecode(stand.path(b"lower")))
    for name in ("big/one/two", "small"):
        (lower / name).mkdir(parents=True)
    for number in range(200):
        (lower / "big" / f"f{number}").write_text(str(number))
    (lower / "big/one/two/leaf").write_text("leaf")
    (lower / "small/a").write_text("a")
    os.link(lower / "small/a", lower / "small/b")
    stand.path(b"upper")
    copy_root_attributes(stand.path(b"lower"), stand.path(b"upper"))
    return stand


def base_of(ground: Ground) -> tuple[MemoryObjects, Entry]:
    store = MemoryObjects()
    return store, capture(store, ground.path(b"lower"))


def test_a_renamed_directory_costs_one_edit_and_no_walk(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        os.rename(ground.file("big"), ground.file("moved"))
    store.reads = 0
    made, scan, read = read_upper(store, base, ground.path(b"upper"))
    changes = {entry.path: entry for entry in scan.changes}
    assert set(changes) == {b"", b"big", b"moved"}
    assert changes[b"moved"].moved_from == b"big"
    assert changes[b""].is_only_times
    assert (read, store.reads < 15) == (0, True)
    assert b"moved/one/two/leaf" in flat(store, made)


def test_a_mode_change_of_a_lower_file_reads_nothing(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        for number in range(200):
            ground.file(f"big/f{number}").chmod(0o600)
    _, scan, read = read_upper(store, base, ground.path(b"upper"))
    assert read == 0
    assert all(entry.old and entry.new and entry.old.ref == entry.new.ref for entry in scan.changes)
    assert len(scan.changes) == 200


def test_copied_up_but_equal_is_no_change(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        path = ground.file("big/one/two/leaf")
        times = path.stat()
        path.write_text("leaf")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    made, scan, read = read_upper(store, base, ground.path(b"upper"))
    assert (read, scan.changes, made) == (1, [], base)


def test_a_directory_made_again_with_the_same_files_differs_in_its_times_only(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        path = ground.file("big/one/two/leaf")
        times = path.stat()
        path.unlink()
        path.parent.rmdir()
        path.parent.mkdir()
        path.write_text("leaf")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    _, scan, _ = read_upper(store, base, ground.path(b"upper"))
    assert {entry.path for entry in scan.changes} == {b"big/one", b"big/one/two"}
    assert all(entry.is_only_times for entry in scan.changes)


@pytest.mark.varies
def test_whiteouts_that_are_files(ground: Ground) -> None:
    """What mkcomposefs and nested overlays write: an empty file with an attribute, in a directory that says so.

    In the upper of a mount the kernel hides such a name from lookups, yet lists it: lookups are what counts here.
    """
    store, base = base_of(ground)
    upper = Path(os.fsdecode(ground.path(b"upper")), "small")
    upper.mkdir()
    copy_root_attributes(os.path.join(ground.path(b"lower"), b"small"), os.fsencode(upper))
    (upper / "a").touch()
    os.setxattr(upper / "a", "trusted.overlay.whiteout", b"")
    os.setxattr(upper, "trusted.overlay.opaque", b"x")
    made, _, _ = read_upper(store, base, ground.path(b"upper"))
    with mounted(ground.layers, ground.target):
        hidden = not ground.file("small/a").exists()
    paths = [path for path in flat(store, made) if path.startswith(b"small/")]
    assert [path.removeprefix(b"small/").decode() for path in paths] == ["b"]
    if not hidden:
        pytest.skip("this kernel does not know whiteouts that are files (before 6.7)")


def test_a_metacopy_file_without_its_content_is_damage(ground: Ground) -> None:
    store, base = base_of(ground)
    stray = Path(os.fsdecode(ground.path(b"upper")), "stray")
    stray.write_bytes(b"\0" * 10)
    os.setxattr(stray, "trusted.overlay.metacopy", b"")
    for redirect in (b"/../../etc/passwd", b"/big/none", b"/big"):
        os.setxattr(stray, "trusted.overlay.redirect", redirect)
        with pytest.raises(StoreDamaged, match="'stray'"):
            read_upper(store, base, ground.path(b"upper"))


def test_linking_to_a_split_off_name_makes_a_new_group(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        ground.file("small/a").write_text("split")
        os.link(ground.file("small/a"), ground.file("small/c"))
    made, _, read = read_upper(store, base, ground.path(b"upper"))
    entries = flat(store, made)
    assert entries[b"small/a"] == entries[b"small/c"]
    assert entries[b"small/a"].link_group
    assert not entries[b"small/b"].link_group
    assert read == 1


def test_a_file_made_again_with_all_its_names_is_no_change(ground: Ground) -> None:
    """As tar and git do it. With a name less, or one that the base still shows elsewhere, it is another file."""
    store, base = base_of(ground)
    seen = os.lstat(os.path.join(ground.path(b"lower"), b"small/a"))

    def make_again(*names: str) -> None:
        for name in names:
            ground.file(name).unlink(missing_ok=True)
        ground.file(names[0]).write_text("a")
        for name in names[1:]:
            os.link(ground.file(names[0]), ground.file(name))
        os.utime(ground.file(names[0]), ns=(seen.st_mtime_ns, seen.st_mtime_ns))

    with mounted(ground.layers, ground.target):
        make_again("small/a", "small/b")
    reset_work(ground.path(b"work"))
    _, first, _ = read_upper(store, base, ground.path(b"upper"))
    assert [entry.path for entry in first.changes if not entry.is_only_times] == []
    store.reads = 0
    _, again, _ = read_upper(store, base, ground.path(b"upper"), first.cache())
    assert [entry.path for entry in again.changes if not entry.is_only_times] == []
    assert store.reads < 10, "what was found out once is remembered"
    with mounted(ground.layers, ground.target):
        make_again("small/a", "small/b", "small/c")
    reset_work(ground.path(b"work"))
    made, _, _ = read_upper(store, base, ground.path(b"upper"), again.cache())
    entries = flat(store, made)
    assert entries[b"small/a"] == entries[b"small/b"] == entries[b"small/c"]


def test_a_file_made_again_beside_its_moved_names_is_another(ground: Ground) -> None:
    store, base = base_of(ground)
    seen = os.lstat(os.path.join(ground.path(b"lower"), b"small/a"))
    with mounted(ground.layers, ground.target):
        os.rename(ground.file("small"), ground.file("away"))
        os.mkdir(ground.file("small"))
        ground.file("small/a").write_text("a")
        os.link(ground.file("small/a"), ground.file("small/b"))
        os.utime(ground.file("small/a"), ns=(seen.st_mtime_ns, seen.st_mtime_ns))
    made, _, _ = read_upper(store, base, ground.path(b"upper"))
    groups = {path: entry.link_group for path, entry in walk(store, made) if entry.link_group}
    assert groups[b"small/a"] == groups[b"small/b"] != groups[b"away/a"] == groups[b"away/b"]


def test_a_group_keeps_its_number_from_scan_to_scan(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        ground.file("x").write_text("x")
        os.link(ground.file("x"), ground.file("y"))
    reset_work(ground.path(b"work"))
    _, first, _ = read_upper(store, base, ground.path(b"upper"))
    before = first.edits()[b"y"]
    with mounted(ground.layers, ground.target):
        os.rename(ground.file("x"), ground.file("z"))
    _, second, _ = read_upper(store, base, ground.path(b"upper"), first.cache())
    after = second.edits()[b"y"]
    assert before is not None and after is not None
    assert before.link_group == after.link_group != 0


def test_the_cache_survives_its_encoding_and_nothing_else(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        for number in range(5):
            ground.file(f"new{number}").write_text("x" * number)
        os.symlink("nowhere", ground.file("link"))
    _, scan, read = read_upper(store, base, ground.path(b"upper"))
    assert read == 4
    data = scan.cache().encode()
    again = decode_cache(data, base.ref)
    assert read_upper(store, base, ground.path(b"upper"), again)[2] == 0
    assert decode_cache(data, b"other base").rows == {}
    for at in range(0, len(data), 7):
        assert decode_cache(data[:at], base.ref).rows == {}
        flipped = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        assert decode_cache(flipped, base.ref).rows == {}


def test_an_edit_with_its_mtime_put_back_is_found(ground: Ground) -> None:
    """Case A20: same size, same mtime; ctime tells."""
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        path = ground.file("new")
        path.write_text("one")
        times = path.stat()
        _, first, _ = read_upper(store, base, ground.path(b"upper"))
        time.sleep(0.05)
        path.write_text("two")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert read_upper(store, base, ground.path(b"upper"), first.cache())[2] == 1


def test_what_changed_within_a_tick_of_the_reading_is_read_again(ground: Ground) -> None:
    store, base = base_of(ground)
    with mounted(ground.layers, ground.target):
        ground.file("new").write_text("one")
        _, scan, _ = read_upper(store, base, ground.path(b"upper"), started_ns=time.time_ns())
        assert scan.cache().rows == {}
        time.sleep(0.05)
        _, scan, _ = read_upper(store, base, ground.path(b"upper"), started_ns=time.time_ns())
        assert list(scan.cache().rows) == [b"new"]
    assert is_racy(5_000_000_000, 6_500_000_000)
    assert not is_racy(5_000_000_001, 6_500_000_000)


def test_without_root_owners_and_privileged_attributes_stay_as_the_base_has_them(ground: Ground) -> None:
    store, base = base_of(ground)
    lower = Path(os.fsdecode(ground.path(b"lower")))
    os.chown(lower / "small", 7, 8)
    os.setxattr(lower / "small", "trusted.mark", b"1")
    base = capture(store, os.fsencode(lower))
    upper = Path(os.fsdecode(ground.path(b"upper")))
    (upper / "small").mkdir()
    os.setxattr(upper / "small", "user.mine", b"2")
    (upper / "small" / "new").touch()
    fd = os.open(upper, os.O_RDONLY)
    try:
        scan = scan_upper(fd, store, base, started_ns=1, userxattr=True, keep_owners=True)
    finally:
        os.close(fd)
    edits = scan.edits()
    small, new = edits[b"small"], edits[b"small/new"]
    assert small is not None and new is not None
    assert (small.uid, small.gid) == (7, 8)
    assert small.xattrs == ((b"trusted.mark", b"1"), (b"user.mine", b"2"))
    assert (new.uid, new.kind) == (os.geteuid(), EntryKind.FILE)


def test_skipped_paths_are_no_part_of_the_environment(ground: Ground) -> None:
    store, base = base_of(ground)
    Path(os.fsdecode(ground.path(b"upper")), ".layerfs").write_text("pointer")
    fd = os.open(ground.path(b"upper"), os.O_RDONLY)
    try:
        scan = scan_upper(fd, store, base, started_ns=1, skip=frozenset((b".layerfs",)))
    finally:
        os.close(fd)
    assert all(entry.is_only_times for entry in scan.changes)


def test_depth_costs_no_stack(ground: Ground) -> None:
    """900 levels: more than the interpreter would recurse, less than there are descriptors."""
    store, base = base_of(ground)
    top = os.open(ground.path(b"upper"), os.O_RDONLY)
    fd = top
    for _ in range(900):
        os.mkdir(b"d", dir_fd=fd)
        below = os.open(b"d", os.O_RDONLY, dir_fd=fd)
        if fd != top:
            os.close(fd)
        fd = below
    os.close(fd)
    scan = scan_upper(top, store, base, started_ns=1)
    os.close(top)
    assert max(entry.path.count(b"/") for entry in scan.found) == 899
