"""Golden vectors of logical format 1: fixed values of every kind, and the ids they must have for ever.

    python tests/golden/format1_vectors.py            compare; exit 1 and name what differs
    python tests/golden/format1_vectors.py --write    write format1.json anew

Writing anew is for the time before the format is frozen. Afterwards a difference means that equal states no longer have
equal ids: every store would store everything again, and nothing old could be compared with anything new. A change of the
format then gets a number of its own, and these vectors stay.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from layerfs.capture.linkgroups import assign_groups, fresh_group
from layerfs.ids import ChunkId, CommitId, ExtentId, LayerId, MoveId, ObjectId, RootId, TreeId
from layerfs.objects.commits import Commit, Read, encode_commit, put_commit
from layerfs.objects.content import ContentRef, put_blocks, put_content
from layerfs.objects.entry import Entry, EntryKind, device_ref, encode_entry, encode_root
from layerfs.objects.environment import edit_paths, put_root
from layerfs.objects.extents import Extent, build_extents
from layerfs.objects.kinds import KIND_KEY, Kind, object_id
from layerfs.objects.layers import Check, Layer, encode_layer, put_layer
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.moves import (
    LayerAdd,
    Move,
    PackAdd,
    PackDrop,
    RefSet,
    WorkspaceDrop,
    WorkspacePut,
    encode_move,
)
from layerfs.objects.trees import build_tree

FILE = Path(__file__).resolve().parent / "format1.json"
SECOND = 1_000_000_000
TIME = 1_735_689_600 * SECOND + 123_456_789


def stream(name: str, length: int) -> bytes:
    """Return bytes that look random and are the same everywhere."""
    return hashlib.shake_128(b"layerfs format 1 " + name.encode()).digest(length)


def fake(name: str) -> ObjectId:
    """Return an id of nothing."""
    return ObjectId(stream(name, 32))


def entries() -> dict[str, tuple[bytes, Entry]]:
    """Return named entries of every kind, with every optional part."""
    xattrs = ((b"security.capability", b"\x01\x00\x00\x02"), (b"user.empty", b""), (b"user.text", b"value"))
    plain = Entry(EntryKind.FILE, 0o644, 1000, 1000, TIME, 5, fake("content"))
    return {
        "file": (b"file", plain),
        "file-empty": (b"empty", Entry(EntryKind.FILE, 0o600, 0, 0, 0, 0, b"")),
        "file-large": (b"large", plain._replace(size=1 << 40, ref=fake("extents"))),
        "file-before-1970": (b"old", plain._replace(mtime_ns=-1)),
        "file-far-future": (b"new", plain._replace(mtime_ns=(1 << 34) * SECOND)),
        "file-setuid": (b"su", plain._replace(mode=0o7755)),
        "file-xattrs": (b"attributes", plain._replace(xattrs=xattrs)),
        "file-linked": (b"linked", plain._replace(link_group=0x0123456789ABCDEF)),
        "file-linked-xattrs": (b"both", plain._replace(link_group=1, xattrs=xattrs[:1])),
        "file-high-owner": (b"owner", plain._replace(uid=0xFFFFFFFE, gid=0xFFFFFFFD)),
        "name-of-odd-bytes": (b"\x01\xff\n name", plain),
        "name-of-255-bytes": (b"n" * 255, plain),
        "dir": (b"dir", Entry(EntryKind.DIR, 0o1777, 0, 0, TIME, 0, fake("tree"))),
        "symlink": (b"link", Entry(EntryKind.SYMLINK, 0o777, 0, 0, TIME, 0, b"../target \xff")),
        "fifo": (b"fifo", Entry(EntryKind.FIFO, 0o644, 0, 0, TIME, 0, b"")),
        "socket": (b"socket", Entry(EntryKind.SOCKET, 0o755, 0, 0, TIME, 0, b"")),
        "chardev": (b"null", Entry(EntryKind.CHARDEV, 0o666, 0, 0, TIME, 0, device_ref(1, 3))),
        "blockdev": (b"disk", Entry(EntryKind.BLOCKDEV, 0o660, 0, 6, TIME, 0, device_ref(259, 1 << 20))),
    }


def trees(store: MemoryObjects) -> Iterator[tuple[str, ObjectId]]:
    """Yield trees of all sizes, and one of every kind of entry."""
    for count in (0, 1, 50, 5_000):
        names = [b"name-%05d" % number for number in range(count)]
        files = [Entry(EntryKind.FILE, 0o644, 0, 0, number, 3, fake(str(number))) for number in range(count)]
        yield f"names-{count}", build_tree(store, zip(names, files, strict=True))
    yield "every-kind", build_tree(store, sorted(entries().values()))


def contents(store: MemoryObjects) -> Iterator[tuple[str, ContentRef]]:
    """Yield contents around every limit, with holes where holes are made and where they are not."""
    page = 4096
    texts: dict[str, bytes] = {
        "empty": b"",
        "one-byte": b"x",
        "hello": b"hello\n",
        "one-piece": stream("content", 128 * 1024 - 1),
        "extent-tree": stream("content", 128 * 1024),
        "a-million": stream("content", 1_000_000),
        "three-million-text": b"".join(b"line %d\n" % number for number in range(250_000)),
        "zeros": bytes(1 << 20),
        "zeros-and-a-byte": bytes(1 << 20) + b"x",
        "hole-in-the-middle": stream("a", 100_000) + bytes(300_000) + stream("b", 100_000),
        "hole-of-least-size": stream("a", 32 * page) + bytes(16 * page) + stream("b", 16 * page),
        "zeros-too-few-for-a-hole": stream("a", 32 * page) + bytes(15 * page) + stream("b", 16 * page),
        "zeros-not-aligned": stream("a", 32 * page + 1) + bytes(16 * page) + stream("b", 16 * page),
        "small-and-zero": bytes(100_000),
    }
    for name, text in texts.items():
        yield name, put_content(store, text)
    yield "a-terabyte-of-nothing", put_blocks(store, [1 << 40])
    yield "data-at-the-end-of-a-terabyte", put_blocks(store, [1 << 40, b"end"])


def extents(store: MemoryObjects) -> Iterator[tuple[str, ObjectId]]:
    """Yield extent trees of one to many nodes."""
    yield "one-chunk", build_extents(store, [Extent(200_000, ChunkId(fake("0")))])
    yield "hole-first", build_extents(store, [Extent(1 << 20, None), Extent(7, ChunkId(fake("1")))])
    yield (
        "ten-thousand",
        build_extents(
            store,
            [Extent(n % 7 + 1, None if n % 100 == 99 else ChunkId(fake(str(n)))) for n in range(10_000)],
        ),
    )


def commits() -> dict[str, Commit]:
    """Return commits from the plainest to one with every field."""
    root = RootId(fake("root"))
    one, two = CommitId(fake("one")), CommitId(fake("two"))
    return {
        "first": Commit(root, (), 0, 0, "", ""),
        "usual": Commit(root, (one,), TIME, 60, "A U Thor <author@example.org>", "subject\n\nbody\n"),
        "merge": Commit(root, (one, two), TIME, -210, "a", "m", (("join", "work"),)),
        "whole": Commit(
            root,
            (two, one),
            -TIME,
            -720,
            "odd \udcff",
            "é",
            (("agent", "ada"), ("call-id", "1"), ("exit-code", "0"), ("tool", "edit")),
            (Read(b"there", fake("seen")), Read(b"absent \xff", b"")),
            ((b"old", b"new"),),
            ((b"path", "kept ours"),),
        ),
    }


def layers() -> dict[str, Layer]:
    """Return a first layer and one with every field."""
    commit, below = CommitId(fake("one")), LayerId(fake("layer"))
    return {
        "first": Layer(1, commit, None, "init", TIME, "a", "capture"),
        "whole": Layer(
            300,
            commit,
            below,
            "overwrite",
            TIME,
            "a",
            "m",
            "fix/a",
            (Check("pytest -q", 0), Check("false", -15)),
            (below, LayerId(fake("other"))),
            ContentRef(fake("paths"), 1234),
        ),
        **{how: Layer(2, commit, below, how, 0, "", "") for how in ("merge", "ff")},
    }


def moves() -> dict[str, Move]:
    """Return a move of nothing and one of everything."""
    one, two = CommitId(fake("one")), CommitId(fake("two"))
    return {
        "empty": Move(1, TIME, "", ()),
        "whole": Move(
            1 << 32,
            TIME,
            "a",
            (
                RefSet("refs/heads/a", None, one, "fork"),
                RefSet("refs/heads/b", one, two, "commit"),
                RefSet("refs/tags/c", two, None, "delete"),
                LayerAdd(7, LayerId(fake("layer")), one),
                PackAdd("00000002"),
                PackDrop("00000001"),
                WorkspacePut("a", b"\x00record"),
                WorkspaceDrop("b"),
            ),
        ),
    }


def environment(store: MemoryObjects) -> ObjectId:
    """Return the root of a small whole environment: what one id stands for."""
    directory = Entry(EntryKind.DIR, 0o755, 1000, 1000, TIME, 0, b"")
    root = directory._replace(ref=build_tree(store, ()))
    ref, size = put_content(store, stream("content", 200_000))
    small, length = put_content(store, b"#!/bin/sh\n")
    paths: dict[bytes, Entry | None] = {
        b"bin": directory,
        b"bin/run": Entry(EntryKind.FILE, 0o755, 1000, 1000, TIME, length, small),
        b"data": directory._replace(mode=0o700),
        b"data/big": Entry(EntryKind.FILE, 0o644, 1000, 1000, TIME, size, ref),
        b"data/again": Entry(EntryKind.FILE, 0o644, 1000, 1000, TIME, size, ref, (), 42),
        b"latest": Entry(EntryKind.SYMLINK, 0o777, 1000, 1000, TIME, 0, b"data/big"),
    }
    return put_root(store, edit_paths(store, root, paths))


def link_groups() -> dict[str, Any]:
    """Return numbers of groups: fresh, salted, and kept."""
    first = fresh_group(b"a/b", set())
    assigned = assign_groups(
        {(1, 1): [(b"z", 0), (b"a/b", 0)], (1, 2): [(b"c", 7), (b"d", 0)], (1, 3): [(b"e", 0)], (1, 4): [(b"f", 9)]}
    )
    return {
        "fresh": f"{first:016x}",
        "salted": f"{fresh_group(b'a/b', {first}):016x}",
        "assigned": {path.decode(): f"{number:016x}" for path, number in sorted(assigned.items())},
    }


def vectors() -> dict[str, Any]:
    """Compute everything that format1.json holds."""
    store = MemoryObjects()
    return {
        "keys": {kind.label: KIND_KEY[kind].hex() for kind in Kind},
        "same-bytes": {kind.label: object_id(kind, b"layerfs").hex() for kind in Kind},
        "entries": {name: encode_entry(*named).hex() for name, named in entries().items()},
        "roots": {
            "plain": object_id(Kind.ROOT, encode_root(entries()["dir"][1])).hex(),
            "environment": environment(store).hex(),
        },
        "contents": {name: {"id": ref.hex(), "size": size} for name, (ref, size) in contents(store)},
        "extents": {name: ExtentId(oid).hex() for name, oid in extents(store)},
        "trees": {name: TreeId(oid).hex() for name, oid in trees(store)},
        "commits": {
            name: {"id": put_commit(store, commit).hex(), "bytes": encode_commit(commit).hex()}
            for name, commit in commits().items()
        },
        "layers": {
            name: {"id": put_layer(store, layer).hex(), "bytes": encode_layer(layer).hex()}
            for name, layer in layers().items()
        },
        "moves": {
            name: {"id": MoveId(object_id(Kind.MOVE, encode_move(move))).hex(), "bytes": encode_move(move).hex()}
            for name, move in moves().items()
        },
        "link-groups": link_groups(),
        "objects": {
            "number": len(store.objects),
            "all-ids": hashlib.sha256(b"".join(sorted(store.objects))).hexdigest(),
        },
    }


def main() -> int:
    """Compare, or write anew."""
    computed = vectors()
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(computed, indent=1) + "\n", encoding="utf-8")
        return 0
    frozen = json.loads(FILE.read_text(encoding="utf-8"))
    different = [name for name in computed if computed[name] != frozen.get(name)]
    print("\n".join(different) or "as frozen")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
