"""Random operations on a store against a dictionary, with a whole check after each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storekit import assert_clean, files_of, make_store, open_store, publish, write_file

from layerfs.exchange.copying import clone
from layerfs.exchange.transfer import transfer
from layerfs.objects.moves import RefSet
from layerfs.store.pointers import DAY_NS, Retention
from layerfs.store.refs import branch_ref
from layerfs.store.store import Store
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.upkeep.repack import repack

BRANCHES = ("a", "b", "c")
PATHS = (b"x", b"y", b"dir/x", b"dir/sub/z")
names = st.sampled_from(BRANCHES)


class StoreMachine(RuleBasedStateMachine):
    """A store, a clone that is fetched into, and what both must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="layerfs-machine-"))
        self.model: dict[str, dict[bytes, bytes]] = {}
        self.layers: list[dict[bytes, bytes]] = []
        self.days = 1

    @initialize()
    def create(self) -> None:
        self.store: Store = make_store(self.base / "s", seal_bytes=20_000)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)

    @rule(branch=names, path=st.sampled_from(PATHS), seed=st.integers(0, 5), size=st.sampled_from([0, 10, 700, 9000]))
    def commit(self, branch: str, path: bytes, seed: int, size: int) -> None:
        content = (b"line %d of %s\n" % (seed, path)) * (size // 16) + b"%d" % seed
        write_file(self.store, branch, path, content)
        self.model.setdefault(branch, {})[path] = content

    @precondition(lambda self: self.model)
    @rule(data=st.data(), new=names)
    def fork(self, data: st.DataObject, new: str) -> None:
        old = data.draw(st.sampled_from(sorted(self.model)))
        if new in self.model:
            return
        with self.store.lane() as lane:
            lane.apply(None, [RefSet(branch_ref(new), None, lane.refs.need_head(old), "fork")], "t")
        self.model[new] = dict(self.model[old])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        with self.store.lane() as lane:
            lane.apply(None, [RefSet(branch_ref(name), lane.refs.need_head(name), None, "delete")], "t")
        del self.model[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        publish(self.store, name)
        self.layers.append(dict(self.model[name]))

    @rule(days=st.sampled_from([0, 0, 3, 100]))
    def gc(self, days: int) -> None:
        self.days += days
        retention = Retention(time.time_ns() + self.days * DAY_NS, 90, 2)
        collect(self.store, CollectOptions(retention))

    @rule()
    def repack(self) -> None:
        repack(self.store)

    @rule()
    def seal(self) -> None:
        self.store.seal_open_pack()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.base / "s", seal_bytes=20_000)

    @rule()
    def rebuild(self) -> None:
        self.store.rebuild_database()

    @rule()
    def copy(self) -> None:
        target = self.base / "c"
        if not target.exists():
            clone(os.fsencode(self.base / "s"), os.fsencode(target), time.time_ns)
        else:
            from layerfs.exchange.transfer import TransferOptions

            with open_store(target) as other:
                done = transfer(self.store, other, TransferOptions(force=True))
                assert not done.refused
        with open_store(target) as other:
            assert_clean(other)
            for name, files in self.model.items():
                assert files_of(other, name) == files

    @invariant()
    def equals_the_model(self) -> None:
        store: Any = getattr(self, "store", None)
        if store is None:
            return
        assert_clean(store)
        assert [name for name, _ in store.refs.branches()] == sorted(self.model)
        for name, files in self.model.items():
            assert files_of(store, name) == files
        assert len(store.refs.layers()) == len(self.layers)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "8")),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
