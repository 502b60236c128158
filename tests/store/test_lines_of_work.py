"""Branches, tags, refs and the reflog on a real store: all or nothing, expectations, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import assert_clean, make_store, open_store, write_file

from layerfs.errors import AlreadyExists, ExpectationFailed, LayerfsError, NotFound, Refused, UsageError
from layerfs.history import branches, tags
from layerfs.history.reflog import read_reflog
from layerfs.ids import to_hex
from layerfs.objects.moves import WorkspacePut
from layerfs.plumbing.refupdates import ZERO, RefUpdate, parse_update, update_refs
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record, read_workspace


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path / "store") as store:
        write_file(store, "base", b"file", b"one")
        yield store
        assert_clean(store)


def names(store: Store) -> list[str]:
    return [name for name, _ in store.refs.branches()]


def fork(store: Store, *wanted: str, start: str = "base", count: int | None = None) -> None:
    branches.fork(store, wanted, start, count, None, "me")


def test_a_fork_makes_all_branches_in_one_move(store: Store) -> None:
    before = store.db.state().sequence
    fork(store, "a", "b", count=20)
    assert store.db.state().sequence == before + 1
    assert len(names(store)) == 41 and "b-20" in names(store)
    assert {commit for _, commit in store.refs.branches()} == {store.refs.need_head("base")}


@pytest.mark.parametrize(
    ("wanted", "error"), [(("x", "base"), AlreadyExists), (("x", "x"), UsageError), (("x", "a b"), UsageError)]
)
def test_a_fork_makes_all_or_none(store: Store, wanted: tuple[str, ...], error: type[LayerfsError]) -> None:
    with pytest.raises(error):
        fork(store, *wanted)
    assert names(store) == ["base"]


def test_a_fork_starts_from_any_state(store: Store) -> None:
    head = store.refs.need_head("base")
    newer = write_file(store, "base", b"file", b"two")
    for number, start in enumerate(("base~1", to_hex(head)[:10], "base@{1}")):
        fork(store, f"n{number}", start=start)
        assert store.refs.head(f"n{number}") == head
    assert store.refs.head("base") == newer


def test_deleting_keeps_work_that_is_nowhere_else(store: Store) -> None:
    fork(store, "a", "b")
    only = write_file(store, "a", b"other", b"two")
    branches.delete_branches(store, ["b"], False, "me")
    with pytest.raises(Refused, match="neither in main"):
        branches.delete_branches(store, ["a"], False, "me")
    fork(store, "c", start="a")
    with pytest.raises(Refused):
        branches.delete_branches(store, ["a", "c"], False, "me")
    branches.delete_branches(store, ["a"], False, "me")
    branches.delete_branches(store, ["c"], True, "me")
    assert names(store) == ["base"]
    back = read_reflog(store, "c")[0].old
    assert back == only
    fork(store, "c", start=to_hex(only))
    assert store.refs.head("c") == only


def record(store: Store, branch: str) -> WorkspaceRecord:
    head = store.refs.need_head(branch)
    return WorkspaceRecord("space", branch, Engine.COPY, b"/nowhere", head, head, 0)


def test_a_branch_under_a_workspace_is_not_deleted_and_renames_take_it_along(store: Store) -> None:
    fork(store, "a")
    with store.lane() as lane:
        lane.apply(None, [WorkspacePut("space", encode_record(record(store, "a")))], "me")
    with pytest.raises(Refused, match="in use by workspace 'space'"):
        branches.delete_branches(store, ["a"], True, "me")
    move = branches.rename_branch(store, "a", "b", "me")
    assert move.workspaces == ("space",)
    assert read_workspace(store.refs, "space").branch == "b"
    assert store.refs.head("a") is None and store.refs.head("b") == store.refs.head("base")
    assert branches.list_branches(store)[0].workspaces == ("space",)


def test_a_reset_can_be_undone(store: Store) -> None:
    newer = write_file(store, "base", b"file", b"two")
    branches.reset_branch(store, "base", "base~1", None, "me")
    branches.reset_branch(store, "base", "base@{1}", None, "me")
    assert store.refs.head("base") == newer
    before = store.db.state().sequence
    branches.reset_branch(store, "base", "base", None, "me")
    assert store.db.state().sequence == before


def test_what_the_reflog_numbers_is_what_revisions_find(store: Store) -> None:
    from layerfs.history.revision import resolve

    for number in range(4):
        write_file(store, "base", b"file", b"%d" % number)
    lines = read_reflog(store, "base")
    assert [line.ago for line in lines] == list(range(5))
    for line in lines:
        assert resolve(store, f"base@{{{line.ago}}}").commit == line.new
    assert len(read_reflog(store, "base", 2)) == 2 and not read_reflog(store, "nobody", 0)
    with pytest.raises(NotFound):
        read_reflog(store, "nobody")


def test_tags_stay_until_forced(store: Store) -> None:
    head = store.refs.need_head("base")
    tags.make_tag(store, "v", "base", False, None, "me")
    newer = write_file(store, "base", b"file", b"two")
    with pytest.raises(AlreadyExists):
        tags.make_tag(store, "v", "base", False, None, "me")
    assert store.refs.tag("v") == head
    assert tags.make_tag(store, "v", "base", True, None, "me").old == head
    assert [tag.target for tag in tags.list_tags(store)] == [newer]
    with pytest.raises(NotFound):
        tags.delete_tags(store, ["v", "w"], "me")
    assert store.refs.tag("v") == newer
    tags.delete_tags(store, ["v"], "me")
    assert not store.refs.tags()


def test_updates_happen_all_or_none(store: Store) -> None:
    head = to_hex(store.refs.need_head("base"))
    wrong = [
        RefUpdate("update", "refs/heads/base", "base", ZERO),
        RefUpdate("create", "refs/heads/base", head, ZERO),
        RefUpdate("delete", "refs/heads/gone"),
        RefUpdate("verify", "refs/heads/base", None, ZERO),
    ]
    for update in wrong:
        with pytest.raises(ExpectationFailed):
            update_refs(store, [RefUpdate("create", "refs/heads/new", "base", ZERO), update], None, "t", "me")
        assert names(store) == ["base"]
    moved = update_refs(
        store,
        [RefUpdate("create", "refs/tags/new", "base", ZERO), RefUpdate("delete", "refs/heads/base", None, head)],
        None,
        "t",
        "me",
    )
    assert len(moved) == 2 and not names(store)
    assert update_refs(store, [RefUpdate("update", "refs/heads/base", head, ZERO)], None, "t", "me")


@pytest.mark.parametrize(
    "line",
    [b"", b"update", b"update refs/heads/x", b"update  refs/heads/x a", b"create refs/heads/x a b", b"drop x", b"delete"],
)
def test_lines_that_are_no_update(line: bytes) -> None:
    with pytest.raises(UsageError):
        parse_update(line)


@pytest.mark.parametrize("ref", ["base", "refs/main", "refs/heads/", "refs/heads/a..b", "refs/other/x", "refs/tags/L1"])
def test_refs_that_no_update_takes(store: Store, ref: str) -> None:
    with pytest.raises(UsageError):
        update_refs(store, [RefUpdate("update", ref, "base")], None, "t", "me")


def test_another_process_sees_one_state(store: Store, tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as other:
        fork(store, "a")
        assert names(other) == ["a", "base"]
        with pytest.raises(AlreadyExists):
            branches.fork(other, ["a"], "base", None, None, "other")
