"""The layer cache on real mounts: whatever the way a layer came to be, it shows exactly its commit."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounting import mounted
from odd_tree import build_odd_tree, describe

from layerfs.capture.initialise import initialise
from layerfs.checkout.export import export_commit
from layerfs.history.authorship import Author
from layerfs.history.revision import resolve
from layerfs.store.refs import Refs
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord, read_workspace
from layerfs.workspace import kernel, layercache, overlay
from layerfs.workspace.attach import MountRequest, attach, mount_name
from layerfs.workspace.commit import commit_workspace
from layerfs.workspace.detach import DetachRequest, detach
from layerfs.workspace.layercache import ensure_stack, find_stack
from layerfs.workspace.mountinfo import mounts_below, read_mounts
from layerfs.workspace.recording import CommitRequest

AUTHOR = Author("Test", 1_700_000_000_000_000_000, 0)


@pytest.fixture
def store(tmp_path: Path, need_overlay: None) -> Iterator[Store]:
    source = tmp_path / "source"
    source.mkdir()
    build_odd_tree(source, root=True)
    os.removexattr(source / "dir" / "deep", "user.overlay.opaque")
    path = os.fsencode(tmp_path / "store")
    initialise(os.fsencode(source), path, AUTHOR, clock=lambda: AUTHOR.time_ns)
    try:
        with Store.open(path, clock=lambda: AUTHOR.time_ns) as opened:
            yield opened
    finally:
        for found in mounts_below(read_mounts(), path):
            kernel.umount(found.target, kernel.MNT_DETACH)


def mount(store: Store, revision: str = "work") -> WorkspaceRecord:
    return attach(store, MountRequest(resolve(store, revision), AUTHOR, engine="overlay")).record


def commit(store: Store, record: WorkspaceRecord) -> WorkspaceRecord:
    assert commit_workspace(store, record, CommitRequest(AUTHOR, "test")).commit is not None
    return read_workspace(Refs(store.db), record.name)


def leave(store: Store, record: WorkspaceRecord) -> None:
    assert not detach(store, record, DetachRequest(AUTHOR)).kept


def as_checked_out(store: Store, tmp_path: Path, revision: str) -> dict[bytes, tuple[object, ...]]:
    target = tmp_path / "checked-out"
    export_commit(store, resolve(store, revision).commit, os.fsencode(target))
    found = describe(target)
    shutil.rmtree(target)
    return found


def change_something(top: Path, rng: random.Random) -> None:
    """Do a few of the things that leave whiteouts, opaque directories, redirects and bare attributes in an upper."""
    present = [(path, path.lstat().st_mode) for path in sorted(top.rglob("*"))]
    directories = [path for path, mode in present if stat.S_ISDIR(mode)]
    files = [path for path, mode in present if stat.S_ISREG(mode)]
    for _ in range(4):
        match rng.randrange(8):
            case 0:
                (rng.choice([top, *directories]) / f"new{rng.randrange(10**6)}").write_bytes(
                    rng.randbytes(50)
                )
            case 1:
                victim = rng.choice(files)
                victim.unlink(missing_ok=True)
            case 2 if directories:
                shutil.rmtree(rng.choice(directories), ignore_errors=True)
            case 3 if directories:
                moved = rng.choice(directories)
                if moved.exists():
                    moved.rename(top / f"moved{rng.randrange(10**6)}")
            case 4:
                victim = rng.choice(files)
                if victim.exists():
                    victim.chmod(rng.choice([0o600, 0o755]))
            case 5:
                victim = rng.choice(files)
                if victim.exists():
                    with victim.open("ab") as file:
                        file.write(b"more")
            case 6:
                victim = rng.choice(files)
                if victim.exists():
                    victim.unlink()
                    victim.mkdir()
                    (victim / "inside").write_bytes(b"a directory now")
            case _:
                made = top / f"made{rng.randrange(10**6)}"
                made.mkdir()
                os.setxattr(made, "user.note", b"x")


@pytest.mark.parametrize("seed", range(3))
def test_promoted_uppers_show_their_commits(
    store: Store, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layercache, "MAX_DEPTH", 4)
    rng = random.Random(seed)
    for number in range(6):
        record = mount(store)
        top = Path(os.fsdecode(record.path))
        (top / f"round{number}").write_bytes(b"x")
        change_something(top, rng)
        record = commit(store, record)
        leave(store, record)
        stack = find_stack(store, layercache.CommitReader(store.objects).commit(record.last).root)
        assert stack is None or len(stack.names) <= 4
        record = mount(store)
        try:
            shown = describe(Path(os.fsdecode(record.path)))
        finally:
            leave(store, record)
        assert shown == as_checked_out(store, tmp_path, "work")


def test_a_commit_near_a_cached_one_costs_the_difference(store: Store) -> None:
    record = mount(store)
    (Path(os.fsdecode(record.path)) / "file").write_bytes(b"x")
    record = commit(store, record)
    detach(store, record, DetachRequest(AUTHOR, discard=True))
    stack = ensure_stack(store, record.last, AUTHOR.time_ns)
    assert len(stack.names) == 2
    assert sorted(os.listdir(stack.paths[0])) == [b"file"]


def test_cached_layers_of_another_boot_count_only_if_synced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = resolve(store, "work").commit
    unsynced = ensure_stack(store, head, AUTHOR.time_ns)
    root = layercache.CommitReader(store.objects).commit(head).root
    monkeypatch.setattr(layercache, "boot_id", lambda: "another boot")
    assert find_stack(store, root) is None
    monkeypatch.undo()
    assert ensure_stack(store, head, AUTHOR.time_ns, sync=True) == unsynced
    monkeypatch.setattr(layercache, "boot_id", lambda: "another boot")
    assert find_stack(store, root) == unsynced


def test_a_deleted_cache_is_made_again(store: Store) -> None:
    record = mount(store)
    (Path(os.fsdecode(record.path)) / "uncommitted").write_bytes(b"mine")
    overlay.unmount(record.path, mount_name(store, record))
    for name in os.listdir(os.path.join(store.path, b"cache")):
        target = os.path.join(store.path, b"cache", name)
        if os.path.isdir(target):
            shutil.rmtree(target)
    record = mount(store)
    assert (Path(os.fsdecode(record.path)) / "uncommitted").read_bytes() == b"mine"
    detach(store, record, DetachRequest(AUTHOR, discard=True))


def test_a_linked_file_that_changes_brings_its_names_without_a_search(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names of one file lie in one layer; which they are is known from the base, and from each delta after it."""
    record = mount(store)

    def no_search(*_: object) -> None:
        raise AssertionError("the whole tree was gone through")

    monkeypatch.setattr("layerfs.workspace.linkindex.walk", no_search)
    for number, name in enumerate(("link two", "dir/link three", "link one")):
        top = Path(os.fsdecode(record.path))
        with open(top / name, "ab") as file:
            file.write(b"turn %d\n" % number)
        os.link(top / name, top / f"one more {number}")
        record = commit(store, record)
        if number == 1:
            os.unlink(top / "link two")
            record = commit(store, record)
        expected = as_checked_out(store, tmp_path, "work")
        stack = ensure_stack(store, record.last, AUTHOR.time_ns)
        places = [tmp_path / f"{what}-{number}" for what in ("shown", "upper", "work")]
        for place in places:
            place.mkdir()
        shown, upper, work = map(bytes, places)
        with mounted(overlay.Layers(stack.paths, upper, work), shown):
            found = describe(places[0])
        found.pop(b"")
        expected.pop(b"")
        assert found == expected
    leave(store, record)
