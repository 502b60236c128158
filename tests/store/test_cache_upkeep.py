"""Upkeep of the layer cache and pruning: the oldest unused goes first, what is used or uncommitted stays."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from storekit import make_store, write_file

from layerfs.durable.metadb import CachedLayer
from layerfs.objects.moves import WorkspacePut
from layerfs.store.pointers import DAY_NS, Retention
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record
from layerfs.upkeep.collect import CollectOptions
from layerfs.upkeep.prune import prune
from layerfs.workspace.cacheupkeep import evict, remove_leftovers

HOUR_NS = 3600 * 10**9


def add_layer(store: Store, name: str, used_ns: int, parent: str | None = None) -> Path:
    place = Path(os.fsdecode(store.path)) / "cache" / name
    place.mkdir()
    (place / "file").write_bytes(b"x" * 1000)
    kind = "base" if parent is None else "delta"
    store.db.put_cached_layer(CachedLayer(name, name.encode(), kind, "trusted", parent, 1000, used_ns, True, "b"))
    return place


def names(store: Store) -> set[str]:
    return {row.directory for row in store.db.cached_layers()}


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    now = 100 * HOUR_NS
    with make_store(tmp_path / "s") as store:
        for number in range(5):
            add_layer(store, f"l{number}", number * HOUR_NS)
        assert evict(store, 5000, now).layers == 0
        assert evict(store, 2500, now, dry_run=True).freed_bytes == 3000
        assert names(store) == {"l0", "l1", "l2", "l3", "l4"}
        assert evict(store, 2500, now).layers == 3
        assert names(store) == {"l3", "l4"} == set(os.listdir(tmp_path / "s/cache"))
        assert evict(store, 0, now).layers == 2
        assert os.listdir(tmp_path / "s/cache") == []


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    now = 100 * HOUR_NS
    with make_store(tmp_path / "s") as store:
        head = write_file(store, "a", b"x", b"x")
        add_layer(store, "base", 1)
        add_layer(store, "delta", 2, "base")
        add_layer(store, "held", 3)
        add_layer(store, "fresh", now - 10**9)
        add_layer(store, "old", 4)
        record = WorkspaceRecord("w", "a", Engine.OVERLAY, b"/m", head, head, 1, layers=("delta", "base"))
        with store.lane() as lane:
            lane.apply(None, [WorkspacePut("w", encode_record(record))], "t")
        held = os.open(tmp_path / "s/cache/held", os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            assert evict(store, 0, now).layers == 1
        finally:
            os.close(held)
        assert names(store) == {"base", "delta", "held", "fresh"}


def test_pruning_takes_leftovers_and_keeps_work(tmp_path: Path) -> None:
    root = tmp_path / "s"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    with make_store(root) as store:
        write_file(store, "a", b"x", b"x")
        (root / "cache/stray").mkdir()
        (root / "cache/stray/link").symlink_to(outside)
        (root / "tmp/torn-00000001-64").write_bytes(b"x" * 5000)
        (root / "tmp/link").symlink_to(outside / "precious")
        for name in ("empty", "work"):
            (root / "workspaces" / name / "upper").mkdir(parents=True)
        (root / "workspaces/work/upper/file").write_bytes(b"uncommitted")
        (root / "workspaces/link").symlink_to(outside)
        young = CollectOptions(Retention(time.time_ns(), 90, 90))
        assert prune(store, young, None).leftovers == 1
        later = CollectOptions(Retention(time.time_ns() + DAY_NS, 90, 90), dry_run=True)
        assert prune(store, later, None).leftovers == 2
        done = prune(store, later._replace(dry_run=False), None)
        assert done.leftovers == 2 and [os.path.basename(path) for path in done.kept] == [b"work"]
        assert not remove_leftovers(store).leftovers
    assert (root / "workspaces/work/upper/file").read_bytes() == b"uncommitted"
    assert not (root / "workspaces/empty").exists() and not (root / "tmp/torn-00000001-64").exists()
    assert (outside / "precious").exists()
