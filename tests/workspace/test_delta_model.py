"""Delta lowers against the truth: the layers of one tree with the delta to another on top must show the other."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mounting import New, Operation, Pick, Stand, apply_operations, capture, flat, mounted

from layerfs.capture.capture import capture_directory
from layerfs.objects.entry import Entry
from layerfs.objects.environment import diff_trees, walk
from layerfs.objects.memory import MemoryObjects
from layerfs.workspace.deltalower import write_base, write_delta
from layerfs.workspace.overlay import Layers

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "60"))
NUMBERS = st.integers(0, 60)
NAMES = st.sampled_from([b"a", b"b", b"c", b"d\xff"])
OLD = st.builds(Pick, NUMBERS)
NEW = st.builds(New, NUMBERS, NAMES)
DATA = st.sampled_from(["", "x", "hello\n"])
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), OLD | NEW, DATA),
    st.tuples(st.just("unlink"), OLD),
    st.tuples(st.just("rename"), OLD, OLD | NEW),
    st.tuples(st.just("mkdir"), NEW),
    st.tuples(st.just("rmtree"), OLD),
    st.tuples(st.just("recreate"), OLD),
    st.tuples(st.just("chmod"), OLD, st.sampled_from([0o600, 0o755, 0o4711])),
    st.tuples(st.just("chown"), OLD, st.sampled_from([0, 7])),
    st.tuples(st.just("utime"), OLD, st.just(1_600_000_000_123_456_789)),
    st.tuples(st.just("setxattr"), OLD, st.just("user.one"), st.sampled_from(["y", "z"])),
    st.tuples(st.just("symlink"), st.just("a"), NEW),
    st.tuples(st.just("link"), OLD, NEW),
    st.tuples(st.just("mkfifo"), NEW),
)


def real_capture(store: MemoryObjects, path: bytes, base: Entry | None) -> Entry:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return capture_directory(fd, store, base=base).root
    finally:
        os.close(fd)


def linked_names(store: MemoryObjects, root: Entry) -> list[tuple[bytes, int]]:
    return [(path, entry.link_group) for path, entry in walk(store, root) if entry.link_group]


@pytest.mark.usefixtures("overlay_mounts")
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(states=st.lists(st.lists(OPERATIONS, min_size=3, max_size=20), min_size=2, max_size=4))
def test_a_base_with_deltas_shows_the_newest_tree(states: list[list[Operation]]) -> None:
    top = tempfile.mkdtemp(prefix="ws-delta-").encode()
    try:
        stand = Stand(top)
        store = MemoryObjects()
        source = stand.path(b"source")
        lowers: tuple[bytes, ...] = ()
        tree: Entry | None = None
        for number, operations in enumerate(states):
            apply_operations(source, operations)
            after = real_capture(store, source, tree)
            lower = stand.path(b"lower%d" % number)
            fd = os.open(lower, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if tree is None:
                    write_base(store, fd, after)
                else:
                    changes = list(diff_trees(store, tree, after))
                    write_delta(store, fd, after, changes, lambda root=after: linked_names(store, root))
            finally:
                os.close(fd)
            tree, lowers = after, (lower, *lowers)
            upper, work = stand.path(b"upper%d" % number), stand.path(b"work%d" % number)
            with mounted(Layers(lowers, upper, work), stand.target):
                shown, wanted = (flat(store, capture(store, path)) for path in (stand.target, source))
            shown.pop(b"")
            wanted.pop(b"")
            assert shown == wanted
    finally:
        shutil.rmtree(top)
