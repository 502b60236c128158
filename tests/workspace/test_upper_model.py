"""The upper reader against the truth: whatever programs do on a mount, base + upper must be what the mount shows."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from layerfs.objects.entry import Entry
from layerfs.objects.memory import MemoryObjects
from layerfs.workspace.overlay import Layers
from mounting import (
    Operation,
    Stand,
    apply_operations,
    capture,
    copy_root_attributes,
    flat,
    mounted,
    read_upper,
)

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "150"))
NAMES = st.sampled_from([b"a", b"b", b"c", b"d\xff", b"e f,:\\"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
SHALLOW = st.lists(NAMES, min_size=1, max_size=2).map(b"/".join)
DATA = st.sampled_from(["", "x", "hello\n", "long " * 30])
XATTRS = st.sampled_from(
    ["user.one", "user.overlay.opaque", "trusted.overlay.opaque", "trusted.overlay.overlay.x", "trusted.t"]
)


def build(*choices: tuple[str, tuple[st.SearchStrategy[object], ...]]) -> st.SearchStrategy[Operation]:
    return st.one_of([st.tuples(st.just(name), *arguments) for name, arguments in choices])


OPERATIONS = build(
    ("write", (PATHS, DATA)),
    ("append", (PATHS, DATA)),
    ("truncate", (PATHS, st.integers(0, 9))),
    ("open_truncating", (PATHS,)),
    ("write_same", (PATHS,)),
    ("unlink", (PATHS,)),
    ("rename", (PATHS, PATHS)),
    ("rename", (SHALLOW, SHALLOW)),
    ("rename", (SHALLOW, PATHS)),
    ("exchange", (PATHS, PATHS)),
    ("exchange", (SHALLOW, SHALLOW)),
    ("noreplace", (SHALLOW, PATHS)),
    ("mkdir", (SHALLOW,)),
    ("mkdir", (PATHS,)),
    ("rmdir", (PATHS,)),
    ("rmtree", (PATHS,)),
    ("recreate", (PATHS,)),
    ("chmod", (PATHS, st.sampled_from([0o600, 0o755, 0o4711, 0o1777]))),
    ("chown", (PATHS, st.sampled_from([0, 7]))),
    ("utime", (PATHS, st.sampled_from([123456789, 987654321987654321]))),
    ("setxattr", (PATHS, XATTRS, st.sampled_from(["y", "z"]))),
    ("removexattr", (PATHS, XATTRS)),
    ("symlink", (PATHS, st.sampled_from(["a", "/nowhere", "../b"]))),
    ("link", (PATHS, PATHS)),
    ("mkfifo", (PATHS,)),
    ("mknod", (PATHS,)),
)

BASE_OPERATIONS = build(
    ("mkdir", (SHALLOW,)),
    ("mkdir", (PATHS,)),
    ("write", (PATHS, DATA)),
    ("chmod", (PATHS, st.sampled_from([0o600, 0o755]))),
    ("link", (PATHS, PATHS)),
    ("symlink", (PATHS, st.just("a"))),
    ("setxattr", (PATHS, st.just("user.one"), st.just("v"))),
    ("utime", (PATHS, st.just(1_600_000_000_123_456_789))),
)

SKELETON: list[Operation] = [
    ("mkdir", b"a"),
    ("mkdir", b"a/b"),
    ("mkdir", b"a/b/c"),
    ("mkdir", b"b"),
    ("mkdir", b"b/a"),
    ("write", b"a/a", "one"),
    ("write", b"a/b/a", "two"),
    ("write", b"a/b/c/a", "three"),
    ("write", b"b/a/b", "four"),
    ("link", b"a/a", b"b/c"),
]


@pytest.mark.usefixtures("overlay_mounts")
@settings(max_examples=EXAMPLES, deadline=None,
          suppress_health_check=list(HealthCheck))
@given(
    base=st.lists(BASE_OPERATIONS, max_size=15),
    rounds=st.lists(st.lists(st.lists(OPERATIONS, max_size=14), min_size=1, max_size=2), min_size=1, max_size=3),
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
                    event(f"done {apply_operations(stand.target, operations) // 4}")
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
