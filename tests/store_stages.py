"""Stages of the crash tests whose command only moves names, or what lies in packs: the store is all there is to see.

What a store says is one value (:class:`Standing`), taken before the command and after a whole one. After a cut it is one
of the two, and the second if the command had answered; the command works the second time, so does the next commit, and
a collection leaves nothing of the dead process.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crash_stage import Cut, Stage, Step, copy_tree, opens_clean, remains
from project import Project
from storekit import files_of, publish, write_file
from world import EPOCH_NS

from layerfs.durable.metadb import LayerRow
from layerfs.ids import CommitId
from layerfs.store.store import Store
from layerfs.upkeep.verify import verify_store

SECRET = b"a secret that must go " * 200
AT_ONCE = ("--dropped-expire", "0", "--reflog-expire", "0")


class Standing(NamedTuple):
    """What a store says: its names, layers, workspaces, and the files of every branch."""

    refs: tuple[tuple[str, CommitId], ...]
    layers: tuple[tuple[int, CommitId], ...]
    workspaces: tuple[str, ...]
    files: tuple[tuple[str, dict[bytes, bytes]], ...]


def standing(place: Path) -> Standing:
    """Open a store and return what it says."""
    with open_at(place) as store:
        layers: list[LayerRow] = store.refs.layers()
        return Standing(
            tuple(store.refs.all()),
            tuple((row.number, row.commit) for row in layers),
            tuple(name for name, _ in store.refs.workspaces()),
            tuple((name, files_of(store, name)) for name, _ in store.refs.branches()),
        )


def open_at(place: Path, seal_bytes: int = 32 << 20) -> Store:
    """Open a store whose clock is that of the commands."""
    return Store.open(os.fsencode(place), clock=lambda: EPOCH_NS, seal_bytes=seal_bytes)


def other(project: Project) -> Path:
    """Return where the second store of a stage is."""
    return project.work / "other.layerfs"


_STANDINGS: dict[str, tuple[Standing, Standing]] = {}


def _rehearsed(name: str, build: Step, command: tuple[str, ...], where: Callable[[Project], Path]) -> Step:
    """Build a stage, run its command to the end once to learn what it makes, and put the stage back."""

    def step(project: Project) -> None:
        build(project)
        before = standing(where(project)) if where(project).exists() else _NOTHING
        kept = project.root.with_name(project.root.name + ".rehearsal")
        copy_tree(project.root, kept)
        project.document(*command)
        _STANDINGS[name] = before, standing(where(project))
        project.close()
        shutil.rmtree(project.root)
        kept.rename(project.root)

    return step


_NOTHING = Standing((), (), (), ())


def _stored(project: Project) -> Path:
    return project.store


def _check(
    name: str,
    command: tuple[str, ...],
    codes: tuple[int, ...] = (0,),
    where: Callable[[Project], Path] = _stored,
) -> Callable[[Project, Cut], None]:
    def check(project: Project, cut: Cut) -> None:
        before, after = _STANDINGS[name]
        opens_clean(project)
        found = standing(where(project))
        if cut.answer is not None:
            assert found == after, "an acknowledged change is lost"
        else:
            assert found in (before, after), "half a change"
        project.document(*command, codes=codes if found == after else (0,))
        assert standing(where(project)) == after
        _goes_on(project, where(project))

    return check


def _goes_on(project: Project, place: Path) -> None:
    """The next commit works, everything verifies, and a collection leaves nothing of the dead process."""
    project.write(next="work goes on\n")
    project.commit(project.source)
    opens_clean(project)
    with open_at(place) as store:
        assert verify_store(store, read_data=True).clean
        write_file(store, "after", b"x", b"this one too")
    project.document("gc", "--store", place)
    left = remains(place)
    assert not left, left
    with open_at(place) as store:
        known = {row.number for row in store.db.packs()} | {store.db.state().open_pack}
        assert verify_store(store, read_data=True).clean
    files = {int(path.name[:8]) for path in (place / "packs").iterdir()}
    assert files == known, "files that nobody names are left"


def _grown(project: Project) -> None:
    """A store of several sealed packs: a living branch, one that was deleted, a tag, and a secret in two commits."""
    project.write(text="one\ntwo\n", d__deep__file="x\n" * 500, big=random.Random(1).randbytes(200_000))
    project.init("--store", project.work / "store.layerfs")
    rng = random.Random(2)
    with open_at(project.store, 60_000) as store:
        for number in range(4):
            write_file(store, "live", b"dir/f%d" % number, b"kept %d\n" % number * 300)
            write_file(store, "gone", b"x%d" % number, rng.randbytes(20_000))
        write_file(store, "live", b"secret", SECRET)
        write_file(store, "live", b"last", b"after the secret")
        write_file(store, "side", b"only", b"on the side" * 50)
        publish(store, "live")
    project.document("tag", "t", "live")
    project.document("branch", "-D", "gone")


def _merged(project: Project) -> None:
    """The same, and a branch that may be deleted."""
    _grown(project)
    project.document("fork", "dead", "--from", "live")


def _two_stores(project: Project) -> None:
    """The same, with a copy, to which the original is some commits ahead."""
    _grown(project)
    project.document("clone", project.store, other(project))
    rng = random.Random(3)
    with open_at(project.store) as store:
        for number in range(3):
            write_file(store, "live", b"more%d" % number, rng.randbytes(9_000))
        write_file(store, "fresh", b"f", b"fresh")
        publish(store, "live")


def _two_stores_other_way(project: Project) -> None:
    """The same, but the copy is ahead."""
    _grown(project)
    project.document("clone", project.store, other(project))
    with open_at(other(project)) as store:
        for number in range(3):
            write_file(store, "live", b"more%d" % number, random.Random(number).randbytes(9_000))
        write_file(store, "fresh", b"f", b"fresh")


def _damaged(project: Project) -> None:
    """The same, with a copy, and then a pack is damaged, an index is gone and the database is torn."""
    _grown(project)
    project.document("clone", project.store, other(project))
    _STANDINGS["repair"] = standing(project.store), standing(project.store)
    first, second = sorted((project.store / "packs").glob("*.idx"))[:2]
    second.unlink()
    pack = first.with_suffix(".pack")
    data = bytearray(pack.read_bytes())
    for at in (len(data) // 3, len(data) // 2):
        data[at] ^= 1
    pack.write_bytes(data)
    database = bytearray((project.store / "meta.db").read_bytes())
    database[4096:8192] = bytes(4096)
    (project.store / "meta.db").write_bytes(database)


def _repair_check(project: Project, cut: Cut) -> None:
    _, after = _STANDINGS["repair"]
    if cut.answer is not None:
        assert standing(project.store) == after
    project.document(*_REPAIR)
    assert standing(project.store) == after
    assert (project.store / "quarantine").is_dir(), "what was damaged is kept"
    _goes_on(project, project.store)


def _clone_build(project: Project) -> None:
    _grown(project)
    with open_at(project.store) as store, store.lane() as lane:
        lane.seal()
    found = standing(project.store)
    _STANDINGS["clone"] = _NOTHING, found._replace(workspaces=())


def _clone_check(project: Project, cut: Cut) -> None:
    """A clone that was cut off is none yet and is made again, or is one that a fetch completes."""
    before, after = _STANDINGS["clone"]
    opens_clean(project)
    if cut.answer is not None:
        assert standing(other(project)) == after
    done = project.run(*_CLONE, cwd=project.source)
    if done.code != 0:
        assert done.code == 13, done
        assert standing(other(project)) in (before, after), "half a history"
        project.document("fetch", _STORE, "--store", _OTHER)
    assert standing(other(project)) == after
    _goes_on(project, other(project))


_OTHER = "../other.layerfs"
_STORE = "../store.layerfs"
_CLONE = ("clone", _STORE, _OTHER)
_REPAIR = ("fsck", "--repair", "--from", _OTHER, "--store", _STORE)


def _stage(
    name: str,
    build: Step,
    command: tuple[str, ...],
    codes: tuple[int, ...] = (0,),
    where: Callable[[Project], Path] = _stored,
) -> Stage:
    return Stage(name, _rehearsed(name, build, command, where), command, _check(name, command, codes, where))


STORE_STAGES = (
    _stage("fork", _grown, ("fork", "x", "y", "--from", "live"), (13,)),
    _stage("branch-delete", _merged, ("branch", "-d", "dead"), (10,)),
    _stage("tag", _grown, ("tag", "v1", "side"), (0, 13)),
    _stage("gc", _grown, ("gc", *AT_ONCE)),
    _stage("repack", _grown, ("repack",)),
    _stage("prune", _grown, ("prune", *AT_ONCE)),
    _stage("purge", _grown, ("purge", "secret"), (10,)),
    _stage("fetch", _two_stores_other_way, ("fetch", _OTHER)),
    _stage("push", _two_stores, ("push", _OTHER), where=other),
    Stage("clone", _clone_build, _CLONE, _clone_check),
    Stage("repair", _damaged, _REPAIR, _repair_check),
)
