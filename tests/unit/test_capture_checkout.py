"""Capture and checkout: what goes in comes out, with every attribute, and only what changed is read again."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from odd_tree import build_odd_tree, describe

from layerfs.capture.capture import capture_directory
from layerfs.capture.captured import Captured, Rules
from layerfs.capture.capturerules import exclusion, exclusion_stamp
from layerfs.capture.statcache import StatCache, load_cache, save_cache
from layerfs.checkout.checkout import create_into
from layerfs.checkout.target import prepare_target
from layerfs.checkout.transition import apply_changes
from layerfs.errors import Refused, TornRead
from layerfs.kernels import native
from layerfs.kernels.rows import FileRead
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import diff_trees, lookup_path, walk
from layerfs.objects.memory import MemoryObjects

ROOT = os.geteuid() == 0


def capture(
    path: Path,
    objects: MemoryObjects,
    base: Entry | None = None,
    cache: StatCache | None = None,
    rules: Rules | None = None,
) -> Captured:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return capture_directory(fd, objects, base=base, cache=cache, rules=rules)
    finally:
        os.close(fd)


def checkout(path: Path, objects: MemoryObjects, root: Entry) -> None:
    prepare_target(os.fsencode(path))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert create_into(objects, fd, root, owners=ROOT).complete
    finally:
        os.close(fd)


def test_every_oddity_survives(tmp_path: Path) -> None:
    source, target, objects = tmp_path / "source", tmp_path / "target", MemoryObjects()
    source.mkdir()
    build_odd_tree(source, root=ROOT)
    before = describe(source)
    captured = capture(source, objects)
    assert captured.problems == []
    assert sum(len(payload) for _, payload in objects.objects.values()) < 4_500_000
    checkout(target, objects, captured.root)
    assert describe(target) == before
    again = capture(target, objects)
    assert again.root == captured.root


def test_unchanged_files_are_not_opened_again(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    source.mkdir()
    build_odd_tree(source, root=ROOT)
    first = capture(source, objects)
    settle(source)
    second = capture(source, objects, first.root, first.cache)
    third = capture(source, objects, second.root, stored(tmp_path, second.cache))
    assert third.totals.read_files == 0
    assert third.root == first.root
    assert (third.totals.files, third.totals.size) == (first.totals.files, first.totals.size)


def test_a_directory_in_many_runs_is_captured_like_one_in_a_single_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    for number in range(40):
        inner = source / f"{number:02d}-directory"
        inner.mkdir(parents=True)
        (inner / "file").write_bytes(b"%d" % number)
        (source / f"{number:02d}-file").write_bytes(b"%d" % number)
    os.link(source / "07-file", source / "31-directory" / "link")
    os.link(source / "20-file", source / "21-link")
    settle(source)
    objects = MemoryObjects()
    whole = capture(source, objects)
    monkeypatch.setattr(native, "ROWS_AT_ONCE", 3)
    first = capture(source, objects)
    assert (first.root, first.cache) == (whole.root, whole.cache)

    for number in range(10, 16):
        (source / f"{number:02d}-file").unlink()
    for name in ("00-aa", "21-new", "zz"):
        (source / name).write_bytes(b"new")
    (source / "21-link").unlink()
    os.link(source / "20-file", source / "39-link")
    (source / "31-directory" / "file").write_bytes(b"changed")
    os.rename(source / "33-directory", source / "33-moved")
    settle(source)
    second = capture(source, objects, first.root, stored(tmp_path, first.cache))
    assert second.root == capture(source, MemoryObjects()).root
    assert second.totals.read_files < 10
    third = capture(source, objects, second.root, stored(tmp_path, second.cache))
    assert (third.root, third.totals.read_files) == (second.root, 0)


def stored(tmp_path: Path, cache: StatCache) -> StatCache:
    """Return the cache as a later process has it."""
    place = os.fsencode(tmp_path / "stat-cache")
    save_cache(place, cache)
    return load_cache(place)


def settle(path: Path) -> None:
    """Wait until nothing below ``path`` is racy any more."""
    import time

    time.sleep(0.05)


def test_edits_that_hide_are_found(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    source.mkdir()
    for name in ("same size", "touched back", "same tick", "mode"):
        (source / name).write_bytes(b"old content\n")
    first = capture(source, objects)
    (source / "same tick").write_bytes(b"new content\n")
    second = capture(source, objects, first.root, first.cache)
    assert changed(objects, first, second) == {b"same tick"}
    settle(source)
    third = capture(source, objects, second.root, second.cache)
    info = os.stat(source / "touched back")
    (source / "touched back").write_bytes(b"NEW content\n")
    os.utime(source / "touched back", ns=(info.st_atime_ns, info.st_mtime_ns))
    (source / "same size").write_bytes(b"NEW content\n")
    (source / "mode").chmod(0o600)
    fourth = capture(source, objects, third.root, third.cache)
    assert changed(objects, third, fourth) == {b"same size", b"touched back", b"mode"}


def changed(objects: MemoryObjects, old: Captured, new: Captured) -> set[bytes]:
    return {change.path for change in diff_trees(objects, old.root, new.root) if change.path}


def test_a_linked_name_more_keeps_the_group(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    (source / "d").mkdir(parents=True)
    (source / "m").write_bytes(b"x")
    os.link(source / "m", source / "d" / "n")
    first = capture(source, objects)
    group = lookup_path(objects, first.root, b"m")
    assert group is not None and group.link_group != 0
    os.link(source / "m", source / "a")
    os.unlink(source / "d" / "n")
    second = capture(source, objects, first.root, first.cache)
    groups = {path: entry.link_group for path, entry in walk(objects, second.root) if entry.size}
    assert groups == {b"a": group.link_group, b"m": group.link_group}
    os.unlink(source / "a")
    third = capture(source, objects, second.root, second.cache)
    assert lookup_path(objects, third.root, b"m") == group
    (source / "n").write_bytes(b"x")
    os.rename(source / "n", source / "m")
    os.link(source / "m", source / "z")
    fourth = capture(source, objects, third.root, third.cache)
    groups = {path: entry.link_group for path, entry in walk(objects, fourth.root) if entry.size}
    assert groups == {b"m": group.link_group, b"z": group.link_group}
    os.unlink(source / "z")
    (source / "z").write_bytes(b"x")
    fifth = capture(source, objects, fourth.root, fourth.cache)
    groups = {path: entry.link_group for path, entry in walk(objects, fifth.root) if entry.size}
    assert groups == {b"m": group.link_group, b"z": 0}


def test_a_file_that_never_holds_still_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    source.mkdir()
    victim = source / "log"
    victim.write_bytes(os.urandom(200_000))
    original = os.fstat
    calls = 0

    def unsettled(fd: int) -> os.stat_result:
        nonlocal calls
        calls += 1
        if calls > 1:
            with open(victim, "ab") as file:
                file.write(b"more")
        return original(fd)

    monkeypatch.setattr("layerfs.capture.filecontent.os.fstat", unsettled)
    monkeypatch.setattr("layerfs.capture.filecontent.TORN_PAUSE_SECONDS", 0)
    with pytest.raises(TornRead, match="'log'"):
        capture(source, objects)
    assert capture(source, objects, rules=Rules(allow_torn=True)).totals.files == 1


def test_excluded_paths_are_left_out(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    (source / "keep").mkdir(parents=True)
    (source / "keep" / "file").write_bytes(b"1")
    (source / "skip").mkdir()
    captured = capture(source, objects, rules=Rules(excluded=lambda path: path == b"skip"))
    assert [path for path, _ in walk(objects, captured.root)] == [b"", b"keep", b"keep/file"]


def test_other_exclusions_are_seen_though_nothing_moved(tmp_path: Path) -> None:
    """What was excluded lies in directories whose rows do not change when it no longer is, and the other way round."""
    source, objects = tmp_path / "source", MemoryObjects()
    for name in ("keep/file", "keep/deep/a.log", "keep/deep/b.txt", "skip/file"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode())
    settle(source)
    patterns = ([], [b"*.log"], [b"skip", b"*.log"], [b"skip"], [b"*.log"], [])
    last = capture(source, objects)
    for excluded in patterns:
        rules = Rules(excluded=exclusion(excluded), stamp=exclusion_stamp(excluded))
        found = capture(source, objects, last.root, stored(tmp_path, last.cache), rules=rules)
        assert found.root == capture(source, MemoryObjects(), rules=rules).root
        assert found.totals.read_files <= 2, "what was known already is not read again"
        last = capture(source, objects, found.root, stored(tmp_path, found.cache), rules=rules)
        assert (last.root, last.totals.read_files) == (found.root, 0)


def test_checkout_refuses_what_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("full", "link", "full/file"):
        with pytest.raises(Refused):
            prepare_target(os.fsencode(tmp_path / name))


def test_applying_changes_equals_checking_out(tmp_path: Path) -> None:
    one, two, objects = tmp_path / "one", tmp_path / "two", MemoryObjects()
    one.mkdir()
    build_odd_tree(one, root=ROOT)
    first = capture(one, objects)
    checkout(two, objects, first.root)
    edit_odd_tree(two)
    second = capture(two, objects)
    fd = os.open(one, os.O_RDONLY)
    forward = list(diff_trees(objects, first.root, second.root))
    apply_changes(objects, fd, forward, second.root, owners=ROOT)
    assert describe(one) == describe(two)
    back = list(diff_trees(objects, second.root, first.root))
    apply_changes(objects, fd, back, first.root, owners=ROOT)
    os.close(fd)
    assert capture(one, objects).root == first.root


def edit_odd_tree(top: Path) -> None:
    (top / "plain").write_bytes(b"changed\n")
    (top / "executable").unlink()
    (top / "executable").mkdir()
    (top / "executable" / "inside").write_bytes(b"file became directory\n")
    for path in (top / "dir" / "deep" / "er" / "file", top / "closed" / "file", top / "fifo"):
        path.parent.chmod(0o755)
        path.unlink()
    (top / "dir" / "deep" / "er").rmdir()
    (top / "dir" / "deep" / "er").symlink_to("directory became link")
    (top / "symlink").unlink()
    (top / "symlink").write_bytes(b"link became file\n")
    (top / "sticky").chmod(0o700)
    (top / "link one").write_bytes(b"changed through one name\n")
    os.link(top / "link one", top / "link four")
    with open(top / "large", "r+b") as file:
        file.seek(1_000_000)
        file.write(b"middle")


def test_nothing_is_written_through_a_planted_link(tmp_path: Path) -> None:
    source, outside, objects = tmp_path / "source", tmp_path / "outside", MemoryObjects()
    (source / "d").mkdir(parents=True)
    outside.mkdir()
    first = capture(source, objects)
    (source / "d" / "file").write_bytes(b"payload")
    second = capture(source, objects)
    target = tmp_path / "target"
    checkout(target, objects, first.root)
    (target / "d").rmdir()
    (target / "d").symlink_to(outside)
    fd = os.open(target, os.O_RDONLY)
    with pytest.raises(Refused):
        apply_changes(objects, fd, diff_trees(objects, first.root, second.root), second.root, owners=ROOT)
    os.close(fd)
    assert list(outside.iterdir()) == []


def test_a_fifo_that_takes_the_place_of_a_file_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    source.mkdir()
    (source / "swapped").write_bytes(b"a file when scanned")
    from layerfs.kernels import native

    original = native.read_files

    def swap(fd: int, names: list[bytes], limit: int) -> object:
        (source / "swapped").unlink()
        os.mkfifo(source / "swapped")
        return original(fd, names, limit)

    monkeypatch.setattr("layerfs.kernels.native.read_files", swap)
    captured = capture(source, objects)
    entry = lookup_path(objects, captured.root, b"swapped")
    assert entry is not None and stat.S_ISFIFO(os.lstat(source / "swapped").st_mode)
    assert entry.kind.name == "FIFO"


def test_a_change_below_unchanged_directories_is_found_and_nothing_else_moves(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    deep = source / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"one")
    (source / "a" / "other" / "x").mkdir(parents=True)
    (source / "a" / "other" / "x" / "file").write_bytes(b"other")
    first = capture(source, objects)
    settle(source)
    second = capture(source, objects, first.root, first.cache)
    assert capture(source, objects, second.root, second.cache).cache == second.cache
    (deep / "file").write_bytes(b"two")
    third = capture(source, objects, second.root, second.cache)
    assert third.root == capture(source, objects).root != second.root
    os.setxattr(source / "a" / "b", "user.mark", b"value")
    (source / "a" / "other" / "x").chmod(0o700)
    fourth = capture(source, objects, third.root, third.cache)
    assert fourth.root == capture(source, objects).root != third.root
    again = capture(source, objects, fourth.root, stored(tmp_path, fourth.cache))
    assert again.root == fourth.root


def test_an_unchanged_tree_is_not_read_from_the_store(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    (source / "d" / "e").mkdir(parents=True)
    (source / "d" / "e" / "file").write_bytes(b"x")
    os.link(source / "d" / "e" / "file", source / "linked")
    first = capture(source, objects)
    settle(source)
    second = capture(source, objects, first.root, first.cache)
    objects.reads = objects.puts = 0
    third = capture(source, objects, second.root, stored(tmp_path, second.cache))
    assert (objects.reads, objects.puts) == (0, 0)
    assert third.root == second.root == first.root
    assert third.cache == second.cache
    counted = (first.totals.directories, first.totals.files, first.totals.size)
    assert (third.totals.directories, third.totals.files, third.totals.size) == counted == (3, 2, 2)


def test_a_link_that_comes_beside_an_unchanged_one_joins_its_group(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    for name in ("a", "b", "c"):
        (source / name).mkdir(parents=True)
    (source / "a" / "one").write_bytes(b"x")
    os.link(source / "a" / "one", source / "b" / "two")
    first = capture(source, objects)
    settle(source)
    second = capture(source, objects, first.root, first.cache)
    (source / "c" / "other").write_bytes(b"y")
    third = capture(source, objects, second.root, second.cache)
    os.link(source / "a" / "one", source / "c" / "three")
    fourth = capture(source, objects, third.root, third.cache)
    groups = {path: entry.link_group for path, entry in walk(objects, fourth.root) if entry.kind is EntryKind.FILE}
    assert groups.pop(b"c/other") == 0
    assert len(groups) == 3 and len(set(groups.values())) == 1 and all(groups.values())
    assert capture(source, objects, fourth.root).root == fourth.root


def test_what_cannot_be_read_is_reported_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    (source / "d").mkdir(parents=True)
    (source / "d" / "fine").write_bytes(b"x")
    (source / "d" / "secret").write_bytes(b"x")
    whole = capture(source, objects)
    (source / "d" / "secret").write_bytes(b"y")
    settle(source)
    original = native.read_files

    def refusing(fd: int, names: list[bytes], limit: int) -> list[FileRead]:
        found = zip(names, original(fd, names, limit), strict=True)
        closed = FileRead(None, errno.EACCES, True, 0, 0, 0, 0, 0)
        return [closed if name == b"secret" else result for name, result in found]

    monkeypatch.setattr("layerfs.capture.leaves.native.read_files", refusing)
    last = whole
    for _ in range(3):
        last = capture(source, objects, last.root, stored(tmp_path, last.cache))
        assert [(problem.path, problem.kept) for problem in last.problems] == [(b"d/secret", True)]
    monkeypatch.undo()
    assert capture(source, objects, last.root, last.cache).root == capture(source, objects).root


def test_a_cache_that_is_damaged_is_no_cache(tmp_path: Path) -> None:
    source, objects = tmp_path / "source", MemoryObjects()
    source.mkdir()
    (source / "file").write_bytes(b"x")
    cache = capture(source, objects).cache
    place = tmp_path / "stat-cache"
    save_cache(os.fsencode(place), cache)
    whole = place.read_bytes()
    assert load_cache(os.fsencode(place)) == cache != StatCache()
    for damaged in (b"", whole[:5], whole[:-1], whole + b"x", whole[:40] + b"\xff" + whole[41:], b"LFSTAT03" + whole[8:]):
        place.write_bytes(damaged)
        assert load_cache(os.fsencode(place)) == StatCache()
