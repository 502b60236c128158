"""A store from its creation on: what lies on disk, who may open it, and that objects and pointers come back."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from storekit import HEADS, assert_clean, files_of, make_store, open_store, some_id, write_file

from layerfs.errors import (
    AlreadyExists,
    ExpectationFailed,
    MissingObject,
    NotAStore,
    Refused,
    StoreDamaged,
    Unable,
    UsageError,
)
from layerfs.ids import CommitId
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd, RefSet, WorkspaceDrop, WorkspacePut
from layerfs.objects.packs import file_number
from layerfs.store import storeformat
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record


def test_what_is_written_comes_back_in_another_process_view(tmp_path: Path) -> None:
    with make_store(tmp_path / "s", source=b"/src/\xff") as store:
        first = write_file(store, "a", b"dir/x", b"one")
        second = write_file(store, "a", b"y", os.urandom(300_000))
    with open_store(tmp_path / "s") as store:
        assert store.format.source == b"/src/\xff"
        assert store.refs.head("a") == second
        assert [row.new for row in store.refs.reflog(HEADS + "a")] == [second, first]
        assert files_of(store, "a")[b"dir/x"] == b"one"
        assert_clean(store)


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with make_store(tmp_path / "s") as store:
            write_file(store, "a", b"x", b"one")
            store.seal_open_pack()
            write_file(store, "a", b"y", b"two")
            for directory, names, files in os.walk(tmp_path / "s"):
                assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700, directory
                for name in files:
                    place = os.path.join(directory, name)
                    assert stat.S_IMODE(os.stat(place).st_mode) == 0o600, place
                assert names is not None
    finally:
        os.umask(old)


def test_a_store_of_another_uid_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    make_store(tmp_path / "s").close()
    place = tmp_path / "s"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for parent in reversed(place.parents):
                if parent.stat().st_uid == 0 and len(parent.parts) > 2:
                    os.chmod(parent, 0o755)
            os.chmod(place, 0o755)
            os.setresuid(1234, 1234, 1234)
            try:
                open_store(place)
            except Refused:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_root_on_somebodys_store_leaves_it_theirs(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    place = tmp_path / "s"
    make_store(place).close()
    for directory, names, files in os.walk(place):
        for name in (".", *names, *files):
            os.chown(os.path.join(directory, name), 1234, 1234)
    with open_store(place) as store:
        write_file(store, "a", b"x", b"one")
        store.seal_open_pack()
        with store.batch() as batch:
            for number in range(2500):
                batch.put(Kind.CHUNK, b"%d" % number)
            with store.lane() as lane:
                lane.apply(batch, [], "t")
        for directory, names, files in os.walk(place):
            for name in (*names, *files):
                assert os.stat(os.path.join(directory, name)).st_uid == 1234, name


@pytest.mark.parametrize("change", [{"format": 2}, {"format": 99}])
def test_an_unknown_version_is_refused_by_name(tmp_path: Path, change: dict[str, int]) -> None:
    make_store(tmp_path / "s").close()
    place = tmp_path / "s" / "format"
    document = json.loads(place.read_bytes())
    assert document["format"] == storeformat.VERSION == 1
    place.write_text(json.dumps(document | change))
    with pytest.raises(Unable, match=str(change["format"])):
        open_store(tmp_path / "s")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":"1"}', b'{"format":1}', b"\xff\xff", b"[" * 5000])
def test_a_broken_format_file_is_damage(tmp_path: Path, content: bytes) -> None:
    make_store(tmp_path / "s").close()
    (tmp_path / "s" / "format").write_bytes(content)
    with pytest.raises(StoreDamaged):
        open_store(tmp_path / "s")


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("empty")
    for name in ("empty", "file", "link", "absent"):
        with pytest.raises(NotAStore):
            open_store(tmp_path / name)


def test_creation_refuses_what_is_there_but_finishes_what_it_began(tmp_path: Path) -> None:
    make_store(tmp_path / "s").close()
    with pytest.raises(AlreadyExists):
        make_store(tmp_path / "s")
    (tmp_path / "s" / "format").unlink()
    make_store(tmp_path / "s").close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_bytes(b"x")
    with pytest.raises(AlreadyExists):
        make_store(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_compare_and_set(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        first = write_file(store, "a", b"x", b"one")
        second = write_file(store, "b", b"x", b"two")
        for old in (None, second):
            with store.lane() as lane, pytest.raises(ExpectationFailed):
                lane.apply(None, [RefSet(HEADS + "c", None, first, ""), RefSet(HEADS + "a", old, second, "")])
        assert store.refs.branches() == [("a", first), ("b", second)]
        with store.lane() as lane:
            lane.apply(None, [RefSet(HEADS + "a", first, second, ""), RefSet(HEADS + "a", second, None, "")])
        assert store.refs.branches() == [("b", second)]
        assert [(row.old, row.new) for row in store.refs.reflog(HEADS + "a")] == [
            (second, None),
            (first, second),
            (None, first),
        ]


def test_pointers_must_point_at_something_of_the_right_kind(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        write_file(store, "a", b"x", b"one")
        chunk = object_id(Kind.CHUNK, b"one")
        assert store.objects.contains(chunk)
        with store.lane() as lane:
            with pytest.raises(MissingObject):
                lane.apply(None, [RefSet(HEADS + "b", None, CommitId(some_id(1)), "")])
            with pytest.raises(Refused):
                lane.apply(None, [RefSet(HEADS + "b", None, CommitId(chunk), "")])
            with pytest.raises(UsageError):
                lane.apply(None, [RefSet(HEADS + "main", None, CommitId(chunk), "")])
            with pytest.raises(UsageError):
                lane.apply(None, [RefSet("refs/other/x", None, CommitId(chunk), "")])


def test_layers_and_workspaces(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        assert store.refs.main_layer() is None
        commit = write_file(store, "a", b"x", b"one")
        records = {
            name: encode_record(WorkspaceRecord(name, "a", Engine.SOURCE, b"/src", commit, commit, 0))
            for name in ("w1", "w2")
        }
        previous = None
        for number in (1, 2):
            with store.batch() as batch, store.lane() as lane:
                layer = put_layer(batch, Layer(number, commit, previous, "init", 0, "t", ""))
                with pytest.raises(ExpectationFailed):
                    lane.apply(None, [LayerAdd(number + 1, layer, commit)])
                lane.apply(batch, [LayerAdd(number, layer, commit), WorkspacePut(f"w{number}", records[f"w{number}"])])
            previous = layer
            top = store.refs.main_layer()
            assert top is not None
            assert (top.number, top.layer, top.commit) == (number, layer, commit)
        with store.lane() as lane:
            lane.apply(None, [WorkspaceDrop("w1")])
        assert store.refs.workspaces() == [("w2", records["w2"])]
        assert store.refs.get("refs/main") == commit
        assert_clean(store)
        assert store.rebuild_database() == 4
        assert store.refs.workspaces() == [("w2", records["w2"])]
        assert [layer.number for layer in store.refs.layers()] == [2, 1]
        assert_clean(store)


def test_a_batch_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        before = sorted(os.listdir(tmp_path / "s" / "packs"))
        for count in (1, 5000):
            with store.batch() as batch:
                ids = [batch.put(Kind.CHUNK, b"%d" % number * 50) for number in range(count)]
                assert batch.get(ids[0]) == (Kind.CHUNK, b"0" * 50)
                batch.prepare()
            assert not store.objects.contains(ids[0])
            assert sorted(os.listdir(tmp_path / "s" / "packs")) == before


def test_a_big_batch_is_a_pack_of_its_own_and_reads_back_while_it_grows(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        payloads = [os.urandom(4000) + b"%d" % number for number in range(6000)]
        with store.batch() as batch:
            ids = [batch.put(Kind.CHUNK, payload) for payload in payloads]
            assert [batch.put(Kind.CHUNK, payload) for payload in payloads[:10]] == ids[:10]
            for number in (0, 100, 5999):
                assert batch.read(ids[number], Kind.CHUNK) == payloads[number]
            batch.prepare()
            late = batch.put(Kind.TREE, b"made inside the lane")
            with store.lane() as lane:
                lane.apply(batch, [], "t")
            assert batch.read(ids[5], Kind.CHUNK) == payloads[5]
        assert len(store.objects.pack_numbers()) == 1
        for view in (store, open_store(tmp_path / "s")):
            assert view.objects.read(late, Kind.TREE) == b"made inside the lane"
            assert {oid: data for oid, _, data in view.objects.read_many(ids)} == dict(zip(ids, payloads, strict=True))
            assert_clean(view)
            view.close()


def test_leftovers_of_dead_writers_are_swept_and_live_ones_stay(tmp_path: Path) -> None:
    packs = tmp_path / "s" / "packs"
    with make_store(tmp_path / "s") as store, open_store(tmp_path / "s") as other:
        kept = sorted(os.listdir(packs))
        with other.batch() as live:
            for number in range(3000):
                live.put(Kind.CHUNK, b"live %d" % number)
            live.prepare()
            (packs / ".bulk-1-dead").write_bytes(b"half a pack")
            (packs / ".index-999999999-dead").write_bytes(b"half an index")
            sealed = next(name for name in os.listdir(packs) if name not in kept and file_number(os.fsencode(name)))
            dead = packs / "00000077.pack"
            dead.write_bytes((packs / sealed).read_bytes())
            (packs / "00000077.idx").write_bytes((packs / sealed.replace(".pack", ".idx")).read_bytes())
            assert len(store.sweep()) == 3
            assert (packs / sealed).exists() and not dead.exists() and not (packs / "00000077.idx").exists()
            with other.lane() as lane:
                lane.apply(live, [], "t")
        assert store.sweep() == []
        assert store.objects.contains(object_id(Kind.CHUNK, b"live 7"))
        assert_clean(store)


def test_ids_resolve_by_prefix(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        commits = [write_file(store, "a", b"x%d" % number, b"%d" % number) for number in range(20)]
        store.seal_open_pack()
        commits += [write_file(store, "a", b"y%d" % number, b"%d" % number) for number in range(20)]
        for commit in commits:
            assert store.objects.resolve_prefix(commit.hex()[:12]) == [commit]
            assert store.objects.resolve_prefix(commit.hex()) == [commit]
            assert store.objects.resolve_prefix(commit.hex()[:12], Kind.TREE) == []
            assert commit in store.objects.resolve_prefix(commit.hex()[:1], Kind.COMMIT)
        for hopeless in ("zz", "f" * 65, "00000000000000000000"):
            assert store.objects.resolve_prefix(hopeless) == []


def test_network_file_systems_are_known_by_name() -> None:
    for kind in ("nfs4", "fuse.sshfs", "cifs", "9p"):
        assert storeformat.is_remote(kind)
    for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk", ""):
        assert not storeformat.is_remote(kind)
    assert storeformat.file_system_kind(b"/proc") == "proc"
    with pytest.raises(StoreDamaged):
        storeformat.decode_format(b"{}", b"x")
