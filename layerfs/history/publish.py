"""Publish: a branch's work becomes the next layer of main.

Main is a stack of layers that only grows. By default publishing merges: what others published since the branch was forked
stays, and a conflict publishes nothing. ``overwrite`` makes the branch's state the next layer as it is; what that covers
is found out, reported and recorded in the layer – listed, not made a parent, so that publishing a covered branch again
brings its work back. ``ff`` refuses whenever main moved. The check of main's head and the new layer are one move.
"""

from __future__ import annotations

from typing import NamedTuple

from layerfs.errors import ExpectationFailed, Refused, UsageError, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.history.merging import Merged, MergeNames, Outcome, merge_commits, put_merge
from layerfs.ids import CommitId, LayerId
from layerfs.merge.conflicts import Conflict, Note
from layerfs.merge.mergebase import is_ancestor, merge_bases
from layerfs.objects.batch import Batch
from layerfs.objects.content import ContentRef, put_content
from layerfs.objects.environment import diff_trees, lookup_path
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd
from layerfs.store.landing import land
from layerfs.store.refs import MAIN, MainLayer
from layerfs.store.store import Lane, Store


class PublishRequest(NamedTuple):
    """What to publish and how; ``expect`` is the layer number the caller believes main is at (0: none yet)."""

    branch: str
    author: Author
    mode: str = "merge"
    message: str = ""
    expect: int | None = None


class Published(NamedTuple):
    """What became of it: the new layer, None when main has the work already or there are conflicts."""

    branch: str
    mode: str
    before: int
    layer: Layer | None
    layer_id: LayerId | None = None
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()
    covered_layers: tuple[int, ...] = ()
    covered_paths: tuple[bytes, ...] = ()


class _Plan(NamedTuple):
    """A layer that would follow ``top``; ``commit`` None means that nothing is to be published."""

    top: MainLayer | None
    commit: CommitId | None
    how: str
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()
    covered: tuple[MainLayer, ...] = ()
    covered_paths: tuple[bytes, ...] = ()


def parse_layer(text: str) -> int:
    """Return the number in ``L7`` or ``7``; ``0`` and ``none`` mean that main has no layer yet."""
    digits = "0" if text == "none" else text.removeprefix("L").removeprefix("l")
    if not digits.isdecimal():
        raise UsageError(f"not a layer: {quote(text)}", "a layer is written L1, L2, …")
    return int(digits)


def publish_branch(store: Store, request: PublishRequest) -> Published:
    """Publish a branch; raises ExpectationFailed when ``expect`` does not hold and Refused when ``ff`` cannot be."""
    with store.batch() as batch:
        return land(
            store,
            batch,
            lambda refs: (refs.main_layer(), refs.need_head(request.branch)),
            lambda view: _plan(store, batch, view[0], view[1], request),
            lambda plan: _nothing(request, plan) if plan.commit is None else None,
            lambda lane, plan: _land(lane, batch, plan, request),
        )


def _nothing(request: PublishRequest, plan: _Plan) -> Published:
    before = 0 if plan.top is None else plan.top.number
    return Published(request.branch, request.mode, before, None, conflicts=plan.conflicts, notes=plan.notes)


def _plan(
    store: Store, batch: Batch, top: MainLayer | None, head: CommitId, request: PublishRequest
) -> _Plan:
    number = 0 if top is None else top.number
    if request.expect is not None and request.expect != number:
        raise ExpectationFailed(
            f"main is at layer L{number}, not at L{request.expect} as expected",
            "look at what was published with 'layerfs log main', then publish again",
        )
    if top is None:
        return _Plan(None, head, "init")
    if request.mode == "overwrite":
        return _plan_overwrite(store, batch, top, head)
    if request.mode == "ff":
        reader = CommitReader(batch)
        if top.commit == head or is_ancestor(head, top.commit, reader.parents, reader.time):
            return _Plan(top, None, "ff")
        if not is_ancestor(top.commit, head, reader.parents, reader.time):
            raise Refused(
                f"main has moved to L{number} since the branch was forked",
                "publish without --mode ff to merge, or bring main into the branch first",
            )
        return _Plan(top, head, "ff")
    merged = merge_commits(batch, top.commit, head, request.author.time_ns, MergeNames(MAIN, request.branch))
    return _plan_merge(batch, top, head, merged, request)


def _plan_merge(
    batch: Batch, top: MainLayer, head: CommitId, merged: Merged, request: PublishRequest
) -> _Plan:
    if merged.outcome is Outcome.UP_TO_DATE:
        return _Plan(top, None, "merge")
    if merged.outcome is Outcome.FAST_FORWARD:
        return _Plan(top, head, "ff")
    if merged.outcome is Outcome.CONFLICT:
        return _Plan(top, None, "merge", merged.conflicts, merged.notes)
    message = request.message or f"publish {request.branch}"
    commit = put_merge(batch, merged, request.author, message, {})
    return _Plan(top, commit, "merge", notes=merged.notes)


def _plan_overwrite(store: Store, batch: Batch, top: MainLayer, head: CommitId) -> _Plan:
    if top.commit == head:
        return _Plan(top, None, "overwrite")
    reader = CommitReader(batch)
    covered: list[MainLayer] = []
    for row in store.refs.layers():
        if row.number > top.number:
            continue
        if is_ancestor(row.commit, head, reader.parents, reader.time):
            break
        covered.append(row)
    return _Plan(top, head, "overwrite", (), (), tuple(covered), _covered_paths(reader, top.commit, head))


def _covered_paths(reader: CommitReader, top: CommitId, head: CommitId) -> tuple[bytes, ...]:
    """Return the paths that main changed since the common state and that the new state does not have as main has them."""
    bases = merge_bases(top, head, reader.parents, reader.time)
    base = reader.root(bases[0]) if bases else None
    new_root = reader.root(head)
    return tuple(
        change.path
        for change in diff_trees(reader.source, base, reader.root(top))
        if not change.is_only_time() and lookup_path(reader.source, new_root, change.path) != change.new
    )


def _land(lane: Lane, batch: Batch, plan: _Plan, request: PublishRequest) -> Published:
    assert plan.commit is not None
    before = 0 if plan.top is None else plan.top.number
    paths = b"\0".join(plan.covered_paths)
    layer = Layer(
        before + 1,
        plan.commit,
        None if plan.top is None else plan.top.layer,
        plan.how,
        request.author.time_ns,
        request.author.name,
        request.message,
        request.branch,
        covered=tuple(row.layer for row in plan.covered),
        covered_paths=put_content(batch, paths) if paths else ContentRef(b"", 0),
    )
    layer_id = put_layer(batch, layer)
    lane.apply(
        batch, [LayerAdd(layer.number, layer_id, plan.commit)], request.author.name, request.author.time_ns
    )
    return Published(
        request.branch,
        request.mode,
        before,
        layer,
        layer_id,
        notes=plan.notes,
        covered_layers=tuple(row.number for row in plan.covered),
        covered_paths=plan.covered_paths,
    )
