"""Landing: work is prepared outside the lane and lands inside it, if the pointers it was prepared for still hold.

Owns the one policy by which commits, merges and publications get in beside other writers. What a piece of work depends on
is *looked* at, the work is *planned* for it with nobody waiting, and inside the lane the same look is taken again: equal,
and it lands; moved, and it is planned anew. Work that was planned quickly is planned again with the lane held, because
with many writers it would only be outdated again and again; slow work goes out once more, and is done inside after a few
tries. A process that had to plan quick work twice plans its next inside at once, as long as others do come in between. So
every writer gets in, and none has to write a retry loop. What the plans are is their owners' business.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TypeVar

from layerfs.objects.batch import Batch
from layerfs.store.refs import Refs
from layerfs.store.store import Lane, Store

OUTSIDE_TRIES = 3
QUICK_NS = 100_000_000
"""A plan that took less than this outside the lane is made inside it when the pointers have moved meanwhile."""

View = TypeVar("View")
Plan = TypeVar("Plan")
Result = TypeVar("Result")


def land(
    store: Store,
    batch: Batch,
    look: Callable[[Refs], View],
    plan: Callable[[View], Plan],
    unmoved: Callable[[Plan], Result | None],
    apply: Callable[[Lane, Plan], Result],
) -> Result:
    """Return what ``apply`` made of a plan whose view held inside the lane, or what ``unmoved`` says of one.

    ``unmoved`` returns the result of a plan by which nothing moves (a conflict, nothing to do), else None; for such a
    result the lane is not entered. Whatever the functions raise passes through, with nothing moved.
    """
    if store.crowded:
        before = look(store.refs)
        with store.lane() as lane:
            view = look(lane.refs)
            store.crowded = view != before
            return _land_inside(lane, view, plan, unmoved, apply)
    for _ in range(OUTSIDE_TRIES):
        started = monotonic_ns()
        view = look(store.refs)
        prepared = plan(view)
        result = unmoved(prepared)
        if result is not None:
            return result
        batch.prepare()
        quick = monotonic_ns() - started < QUICK_NS
        with store.lane() as lane:
            now = look(lane.refs)
            if now == view:
                return apply(lane, prepared)
            if quick:
                store.crowded = True
                return _land_inside(lane, now, plan, unmoved, apply)
    with store.lane() as lane:
        return _land_inside(lane, look(lane.refs), plan, unmoved, apply)


def _land_inside(
    lane: Lane,
    view: View,
    plan: Callable[[View], Plan],
    unmoved: Callable[[Plan], Result | None],
    apply: Callable[[Lane, Plan], Result],
) -> Result:
    """Plan for the pointers as they are now that nobody else can move them."""
    prepared = plan(view)
    result = unmoved(prepared)
    return result if result is not None else apply(lane, prepared)
