"""The upper reader against the truth: whatever programs do on a mount, base + upper must be what the mount shows."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from mounting import (
    New,
    Operation,
    Pick,
    Stand,
    apply_operations,
    capture,
    copy_root_attributes,
    flat,
    mounted,
    read_upper,
)

from layerfs.objects.entry import Entry
from layerfs.objects.memory import MemoryObjects
from layerfs.workspace.overlay import Layers

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "150"))
NAMES = st.sampled_from([b"a", b"b", b"c", b"d\xff", b"e f,:\\"])
NUMBERS = st.integers(0, 60)
OLD = st.builds(Pick, NUMBERS)
NEW = st.builds(New, NUMBERS, NAMES)
ANY = OLD | NEW
TOP = st.just(New(0, b""))
DATA = st.sampled_from(["", "x", "hello\n", "long " * 30])
XATTRS = st.sampled_from(
    ["user.one", "user.overlay.opaque", "trusted.overlay.opaque", "trusted.overlay.overlay.x", "trusted.t"]
)


def build(*choices: tuple[str, tuple[st.SearchStrategy[object], ...]]) -> st.SearchStrategy[Operation]:
    return st.one_of([st.tuples(st.just(name), *arguments) for name, arguments in choices])


OPERATIONS = build(
    ("write", (ANY, DATA)),
    ("append", (OLD, DATA)),
    ("truncate", (OLD, st.integers(0, 9))),
    ("open_truncating", (OLD,)),
    ("write_same", (OLD,)),
    ("unlink", (OLD,)),
    ("rename", (OLD, ANY)),
    ("rename", (OLD, NEW)),
    ("rename", (OLD, NEW)),
    ("exchange", (OLD, OLD)),
    ("noreplace", (OLD, NEW)),
    ("mkdir", (NEW,)),
    ("rmdir", (OLD,)),
    ("rmtree", (OLD,)),
    ("recreate", (OLD,)),
    ("chmod", (OLD, st.sampled_from([0o600, 0o755, 0o4711, 0o1777]))),
    ("chown", (OLD, st.sampled_from([0, 7]))),
    ("utime", (OLD, st.sampled_from([123456789, 987654321987654321]))),
    ("setxattr", (OLD, XATTRS, st.sampled_from(["y", "z"]))),
    ("removexattr", (OLD, XATTRS)),
    ("symlink", (st.sampled_from(["a", "/nowhere", "../b"]), NEW)),
    ("link", (OLD, NEW)),
    ("mkfifo", (NEW,)),
    ("mknod", (NEW,)),
    ("chmod", (TOP, st.sampled_from([0o700, 0o755]))),
    ("setxattr", (TOP, XATTRS, st.just("y"))),
)

SESSION = st.lists(OPERATIONS, min_size=4, max_size=25)

BASE_OPERATIONS = build(
    ("mkdir", (NEW,)),
    ("write", (NEW, DATA)),
    ("chmod", (OLD, st.sampled_from([0o600, 0o755]))),
    ("link", (OLD, NEW)),
    ("symlink", (st.just("a"), NEW)),
    ("setxattr", (OLD, st.just("user.one"), st.just("v"))),
    ("utime", (OLD, st.just(1_600_000_000_123_456_789))),
)


def at(path: bytes) -> New:
    """A path of the skeleton, which exists before any number is counted."""
    return New(0, path)


SKELETON: list[Operation] = [
    ("mkdir", at(b"a")),
    ("mkdir", at(b"a/b")),
    ("mkdir", at(b"a/b/c")),
    ("mkdir", at(b"b")),
    ("mkdir", at(b"b/a")),
    ("write", at(b"a/a"), "one"),
    ("write", at(b"a/b/a"), "two"),
    ("write", at(b"a/b/c/a"), "three"),
    ("write", at(b"b/a/b"), "four"),
    ("link", at(b"a/a"), at(b"b/c")),
]


@pytest.mark.usefixtures("overlay_mounts")
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    base=st.lists(BASE_OPERATIONS, max_size=15),
    rounds=st.lists(st.lists(SESSION, min_size=1, max_size=2), min_size=1, max_size=3),
)
def test_base_plus_upper_is_what_the_mount_shows(
    base: list[Operation], rounds: list[list[list[Operation]]]
) -> None:
    """Each round mounts a new upper on all the uppers before it, with one or two remounts and readings in between."""
    top = tempfile.mkdtemp(prefix="ws-model-").encode()
    try:
        stand = Stand(top)
        store = MemoryObjects()
        lower = stand.path(b"base")
        apply_operations(lower, SKELETON + base)
        lowers: tuple[bytes, ...] = (lower,)
        tree = capture(store, lower)
        for number, sessions in enumerate(rounds):
            upper, work = stand.path(b"upper%d" % number), stand.path(b"work%d" % number)
            copy_root_attributes(lowers[0], upper)
            layers = Layers(lowers, upper, work)
            shown: Entry = tree
            for operations in sessions:
                with mounted(layers, stand.target, volatile=False):
                    event(f"done {apply_operations(stand.target, operations) // 5 * 5}")
                    shown = capture(store, stand.target)
                made, scan, _ = read_upper(store, tree, upper)
                assert flat(store, made) == flat(store, shown)
                again, _, reads = read_upper(store, tree, upper, scan.cache())
                assert again == made
                assert reads == 0
            tree = shown
            lowers = (upper, *lowers)
    finally:
        shutil.rmtree(top)
