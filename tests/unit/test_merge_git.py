"""Git directories that two sides worked in: roles, the index as a value, reflogs, objects that only accumulate."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from trees import MERGE_NS, OLD_NS, Spec, file, git_index, listing, tree

from layerfs.capture.capture import capture_directory
from layerfs.checkout.checkout import create_into
from layerfs.checkout.target import prepare_target
from layerfs.merge.gitdir import Role, inside, is_same_index, merge_logs, read_index, role_of
from layerfs.merge.gitrefs import read_packed_refs, write_packed_refs
from layerfs.merge.treemerge import MergeResult, merge_trees
from layerfs.objects.entry import Entry
from layerfs.objects.memory import MemoryObjects


@pytest.mark.parametrize(
    ("path", "role"),
    [
        (b"index", Role.INDEX),
        (b"modules/a/b/index", Role.INDEX),
        (b"objects/ab/cdef", Role.OBJECT),
        (b"objects/pack/pack-1.idx", Role.PACK),
        (b"objects/pack/pack-1.bitmap", Role.DERIVED),
        (b"objects/info/commit-graphs/x", Role.DERIVED),
        (b"objects/pack/tmp_pack_1", Role.DERIVED),
        (b"refs/heads/index", Role.REF),
        (b"packed-refs", Role.REF),
        (b"worktrees/w/HEAD", Role.REF),
        (b"logs/refs/heads/main", Role.LOG),
        (b"index.lock", Role.LOCK),
        (b"COMMIT_EDITMSG", Role.SCRATCH),
        (b"config", Role.TEXT),
        (b"MERGE_HEAD", Role.STATE),
    ],
)
def test_roles(path: bytes, role: Role) -> None:
    assert role_of(path) is role


def test_paths_are_split_at_the_git_directory() -> None:
    assert inside(b"a/b/.git/refs/heads/m") == (b"a/b/.git", b"refs/heads/m")
    assert inside(b".git") == (b".git", b"")


def test_an_index_is_its_entries() -> None:
    entries = {b"a": b"\1" * 20, b"dir/longer-name": b"\2" * 20}
    plain = read_index(git_index(entries))
    assert plain is not None and [entry.path for entry in plain] == [b"a", b"dir/longer-name"]
    assert plain == read_index(git_index(entries, stat=77, extension=b"TREEcached"))
    assert plain != read_index(git_index({**entries, b"a": b"\3" * 20}))


def test_an_index_only_refreshed_is_the_same() -> None:
    entries = {b"a": b"\1" * 20, b"dir/" + b"n" * 5000: b"\2" * 20}
    plain = git_index(entries)
    assert is_same_index(plain, git_index(entries, stat=77, extension=b"TREEcached"))
    for other in (
        git_index({**entries, b"a": b"\3" * 20}),
        git_index({**entries, b"b": b"\1" * 20}),
        git_index({b"A": b"\1" * 20, b"dir/" + b"n" * 5000: b"\2" * 20}),
        git_index(entries, extension=b"REUCresolved"),
        plain[:-1],
        b"",
    ):
        assert not is_same_index(plain, other) and not is_same_index(other, plain)


def test_an_index_that_cannot_be_read_completely_is_none() -> None:
    good = git_index({b"a": b"\1" * 20})
    assert read_index(good[:40] + b"!" + good[41:]) is None
    assert read_index(good[:-1]) is None and read_index(b"") is None
    assert read_index(git_index({b"a": b"\1" * 20}, extension=b"link" + bytes(24))) is None


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="uses git")


def git(directory: Path, *arguments: str, clock: int = 1_700_000_000) -> bytes:
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": f"{clock} +0000",
        "GIT_COMMITTER_DATE": f"{clock} +0000",
    }
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, env=environment, capture_output=True, check=True
    )
    return done.stdout


@needs_git
@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_indexes_git_wrote(tmp_path: Path, version: str) -> None:
    git(tmp_path, "init", "-q")
    for name in ("a", "ab", "abc/d", "abc/de", "z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", ".")
    git(tmp_path, "update-index", f"--index-version={version}")
    if version == "3":
        git(tmp_path, "update-index", "--skip-worktree", "ab")
    git(tmp_path, "update-index", "--assume-unchanged", "z")
    entries = read_index((tmp_path / ".git/index").read_bytes())
    assert entries is not None
    shown = git(tmp_path, "ls-files", "--stage").decode().splitlines()
    assert [
        f"{entry.mode:o} {entry.oid.hex()} {entry.stage}\t{entry.path.decode()}" for entry in entries
    ] == shown
    assert [entry.flags for entry in entries] == [0, 0x4000 if version == "3" else 0, 0, 0, 0x8000]


def test_reflogs_are_united_by_time() -> None:
    def line(who: bytes, when: int) -> bytes:
        return b"0 1 %s <e> %d +0000\tcommit: x\n" % (who, when)

    base = line(b"b", 1)
    ours = base + line(b"o", 5) + line(b"o", 9)
    theirs = base + line(b"t", 4) + line(b"t", 6)
    merged = base + line(b"t", 4) + line(b"o", 5) + line(b"t", 6) + line(b"o", 9)
    assert merge_logs(base, ours, theirs) == merge_logs(base, theirs, ours) == merged
    assert merge_logs(base, line(b"o", 5), base + line(b"t", 6)) == line(b"o", 5) + line(b"t", 6)


def both(
    objects: MemoryObjects, base: Mapping[str, Spec], ours: Mapping[str, Spec], theirs: Mapping[str, Spec]
) -> MergeResult:
    b, o, t = (tree(objects, {".git": spec, "file": b"f\n"}) for spec in (base, ours, theirs))
    return merge_trees(objects, objects, b, o, t, merge_time_ns=MERGE_NS)


def test_an_index_only_refreshed_gives_way() -> None:
    objects = MemoryObjects()
    one, two = {b"a": b"\1" * 20}, {b"a": b"\2" * 20}
    base, staged = git_index(one), git_index(two)
    result = both(objects, {"index": base}, {"index": git_index(one, stat=5)}, {"index": staged})
    assert listing(objects, result.root)[".git/index"] == staged
    refreshed = both(
        objects, {"index": base}, {"index": git_index(one, stat=5)}, {"index": git_index(one, stat=6)}
    )
    assert refreshed.is_clean
    clash = both(objects, {"index": base}, {"index": staged}, {"index": git_index({b"b": b"\3" * 20})})
    assert [str(conflict.kind) for conflict in clash.conflicts] == ["git-index"]


def test_refs_that_both_moved_conflict_and_objects_accumulate() -> None:
    objects = MemoryObjects()
    base: Mapping[str, Spec] = {
        "refs": {"heads": {"main": b"1\n"}},
        "objects": {"aa": {"01": b"x"}, "pack": {"p.pack": b"P"}},
    }
    collected: Mapping[str, Spec] = {
        "refs": {"heads": {"main": b"1\n"}},
        "objects": {"pack": {"q.pack": b"Q"}},
    }
    worked: Mapping[str, Spec] = {
        "refs": {"heads": {"main": b"2\n", "topic": b"3\n"}},
        "objects": {"aa": {"01": b"x", "02": b"y"}, "pack": {"p.pack": b"P"}},
    }
    for ours, theirs in ((collected, worked), (worked, collected)):
        found = listing(objects, both(objects, base, ours, theirs).root)
        for name in ("aa/01", "aa/02", "pack/p.pack", "pack/q.pack"):
            assert f".git/objects/{name}" in found
        assert found[".git/refs/heads/main"] == b"2\n" and found[".git/refs/heads/topic"] == b"3\n"
    clash = both(objects, base, worked, {**worked, "refs": {"heads": {"main": b"4\n", "topic": b"3\n"}}})
    assert [(conflict.path, str(conflict.kind)) for conflict in clash.conflicts] == [
        (b".git/refs/heads/main", "git-ref")
    ]


def test_leftovers_and_locks() -> None:
    objects = MemoryObjects()
    result = both(
        objects,
        {"ORIG_HEAD": b"0\n", "config": b"[a]\n"},
        {"ORIG_HEAD": b"1\n", "config": b"[a]\n", "index.lock": b"1"},
        {"ORIG_HEAD": b"2\n", "config": b"[b]\n", "index.lock": b"2"},
    )
    found = listing(objects, result.root)
    assert (
        found[".git/ORIG_HEAD"] == b"1\n"
        and found[".git/config"] == b"[b]\n"
        and ".git/index.lock" not in found
    )
    assert [str(note.kind) for note in result.notes] == ["derived-dropped", "overridden"]


def captured(path: Path, objects: MemoryObjects) -> Entry:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return capture_directory(fd, objects).root
    finally:
        os.close(fd)


@needs_git
@pytest.mark.parametrize("ours_collects", [False, True])
def test_two_agents_in_one_repository(tmp_path: Path, ours_collects: bool) -> None:
    """Both ran their tests and looked at the status; one committed, the other collected garbage: nothing is lost."""
    start = tmp_path / "start"
    start.mkdir()
    git(start, "init", "-q")
    for number in range(5):
        (start / f"f{number}").write_text(f"{number}\n" * 10)
    git(start, "add", ".")
    git(start, "commit", "-qm", "first")
    for name in ("ours", "theirs"):
        shutil.copytree(start, tmp_path / name, symlinks=True)
        (tmp_path / name / "__pycache__").mkdir()
        (tmp_path / name / "__pycache__" / "t.pyc").write_text(name)
        git(tmp_path / name, "status")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (ours / "f1").write_text("ours\n")
    git(ours, "commit", "-qam", "second", clock=1_700_000_100)
    git(theirs, "gc", "-q", "--prune=now")
    if ours_collects:
        git(ours, "gc", "-q", "--prune=now")
    (theirs / "f2").write_text("theirs\n")
    git(theirs, "status")
    objects = MemoryObjects()
    roots = [captured(path, objects) for path in (start, ours, theirs)]
    for base, mine, other in (roots, (roots[0], roots[2], roots[1])):
        result = merge_trees(objects, objects, base, mine, other, merge_time_ns=MERGE_NS)
        assert result.conflicts == ()
        assert result.root is not None
        target = tmp_path / "merged"
        prepare_target(os.fsencode(target))
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        try:
            create_into(objects, fd, result.root, owners=os.geteuid() == 0)
        finally:
            os.close(fd)
        git(target, "fsck", "--full", "--strict")
        assert git(target, "log", "--format=%s").split() == [b"second", b"first"]
        assert git(target, "status", "--porcelain") == b" M f2\n"
        assert (target / "f1").read_text() == "ours\n" and (target / "f2").read_text() == "theirs\n"
        shutil.rmtree(target)


def test_times_inside_git_are_kept() -> None:
    objects = MemoryObjects()
    packed = file(objects, b"P", mtime_ns=OLD_NS + 3)
    result = both(objects, {"x": b"1"}, {"x": b"1", "objects": {"pack": {"p.pack": packed}}}, {"x": b"2"})
    assert result.root is not None and result.is_clean


def test_a_ref_moved_loose_by_one_and_packed_by_the_other_conflicts() -> None:
    objects = MemoryObjects()

    def packed(digit: bytes) -> bytes:
        return b"# pack-refs with: peeled fully-peeled sorted \n" + digit * 40 + b" refs/heads/main\n"

    base: Mapping[str, Spec] = {"packed-refs": packed(b"a"), "refs": {"heads": {}}}
    loose: Mapping[str, Spec] = {**base, "refs": {"heads": {"main": b"b" * 40 + b"\n"}}}
    moved: Mapping[str, Spec] = {**base, "packed-refs": packed(b"c")}
    for ours, theirs in ((loose, moved), (moved, loose)):
        clash = both(objects, base, ours, theirs)
        assert [(c.path, str(c.kind)) for c in clash.conflicts] == [(b".git/refs/heads/main", "git-ref")]
    only_packed: Mapping[str, Spec] = {"packed-refs": packed(b"a") + b"# again\n", "refs": {}}
    assert (
        listing(objects, both(objects, base, loose, only_packed).root)[".git/refs/heads/main"]
        == b"b" * 40 + b"\n"
    )


def test_packed_refs_are_read_as_git_writes_them() -> None:
    data = (
        b"# pack-refs with: peeled fully-peeled sorted \n"
        + b"1" * 40
        + b" refs/heads/main\n"
        + b"2" * 40
        + b" refs/tags/v1\n^"
        + b"3" * 40
        + b"\n"
    )
    refs = read_packed_refs(data)
    assert refs is not None and refs[b"refs/tags/v1"].peeled == b"3" * 40
    assert write_packed_refs(refs) == data
    assert read_packed_refs(b"<<<<<<< ours\n") is None
