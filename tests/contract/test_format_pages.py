"""The format pages say what the code does: byte tables against structs, field tables against what encoders write."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from importlib import import_module

import pytest
from world import ROOT

from layerfs.ids import ChunkId, CommitId, LayerId, ObjectId, RootId
from layerfs.objects import chunking, codec, commits, extents, frames, layers, moves, trees
from layerfs.objects.entry import EntryKind
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind

OBJECT = (ROOT / "man/layerfs-object.5").read_text(encoding="utf-8").replace("\\-", "-")
PACK = (ROOT / "man/layerfs-pack.5").read_text(encoding="utf-8").replace("\\-", "-")
PROVENANCE = (ROOT / "man/layerfs-provenance.7").read_text(encoding="utf-8").replace("\\-", "-")
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
ID = bytes(range(32))


def tables(page: str) -> dict[str, list[list[str]]]:
    """Return the rows, split into words, of each table by its name."""
    found = {}
    for name, body in re.findall(r'(?m)^\.\\" TABLE (\S+)\n\.EX\n((?:(?!\.EE).*\n)*)\.EE\n', page):
        found[name] = [line.split() for line in body.splitlines()[1:]]
    return found


def struct_format(rows: list[list[str]]) -> str:
    """Return the struct format that the rows (offset, type, ...) describe; the last row is the total."""
    text = "<"
    at = 0
    for offset, *rest in rows:
        assert int(offset) == at, f"offset {offset} should be {at}"
        if not rest:
            break
        kind, count = re.fullmatch(r"(\w+?)(?:\[(\d+)\])?", rest[0]).groups()  # type: ignore[union-attr]
        piece = f"{count}s" if kind == "bytes" else f"{count or ''}{CODES[kind]}"
        text += piece
        at += struct.calcsize("<" + piece)
    return text


STRUCTS = {name: rows for page in (OBJECT, PACK) for name, rows in tables(page).items() if "." in name}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_byte_table_is_the_struct(name: str) -> None:
    module, attribute = name.split(".")
    layout = getattr(import_module(f"layerfs.objects.{module}"), attribute)
    assert struct_format(STRUCTS[name]) == layout.format
    assert int(STRUCTS[name][-1][0]) == layout.size


def test_every_struct_of_the_formats_has_a_table() -> None:
    described = set(STRUCTS)
    for module in ("entry", "trees", "extents", "frames", "packs", "packindex"):
        loaded = import_module(f"layerfs.objects.{module}")
        for attribute, value in vars(loaded).items():
            if isinstance(value, struct.Struct) and attribute != "CHECKSUM":
                assert f"{module}.{attribute}" in described


def columns(name: str) -> list[tuple[int, str]]:
    """Return width and owner of each column of a table of columns."""
    found = re.search(rf'(?m)^\.\\" COLUMNS {name}\n\.EX\n((?:(?!\.EE).*\n)*)\.EE\n', PACK)
    assert found is not None
    return [(int(line.split()[0]), line.split()[1]) for line in found[1].splitlines()[1:]]


def read_columns(data: bytes, at: int, name: str, counts: dict[str, int]) -> tuple[list[list[bytes]], int]:
    """Read columns as the page says; return the values, numbers lowest byte first, and where the columns end."""
    found = []
    for width, owner in columns(name):
        count = counts[owner]
        column = data[at : at + width * count]
        planes = width == 4
        found.append(
            [column[number::count] if planes else column[number * width :][:width] for number in range(count)]
        )
        at += width * count
    return found, at


def number(value: bytes) -> int:
    return int.from_bytes(value, "little")


def test_a_delta_frame_is_the_columns_of_the_page() -> None:
    rows = [
        frames.DeltaRow(3, ObjectId(ID), 300, None, b"one"),
        frames.DeltaRow(1, ObjectId(ID[::-1]), 5, ID[:16], b"2"),
    ]
    frame = frames.encode_delta_frame(rows)
    payload = frame[frames.HEADER.size : -8]
    (kinds, lengths, streams, prefixes, ids), end = read_columns(payload, 0, "delta", {"objects": 2})
    assert (b"".join(kinds), list(map(number, lengths)), list(map(number, streams))) == (
        b"\3\1",
        [300, 5],
        [3, 1],
    )
    assert (prefixes, ids, payload[end:]) == ([bytes(16), ID[:16]], [ID, ID[::-1]], b"one2")


def test_a_dense_frame_is_the_columns_of_the_page() -> None:
    first, named = b"abc", frames.object_id(Kind.TREE, b"abc")
    objects = [first, b"-" * 300, b"x" + named + b"yz" + named]
    frame = frames.encode_dense_frame(
        Kind.TREE, objects, None, [frames.Named(2, 1, 0), frames.Named(2, 35, 0)]
    )
    payload = frame[frames.HEADER.size : -8]
    assert frames.REFERENCES.unpack_from(payload) == (2,)
    (lengths, gaps, backs), end = read_columns(payload, 4, "dense", {"objects": 3, "references": 2})
    assert list(map(number, lengths)) == [3, 300, 67]
    assert (list(map(number, gaps)), list(map(number, backs))) == ([304, 2], [1, 1])
    assert payload[end:] == first + b"-" * 300 + b"xyz"


class Recorder(codec.Writer):
    """A writer that notes the type of each field."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen
        self.depth = 0

    def _note(self, name: str, write: Callable[[], object]) -> Recorder:
        if not self.depth:
            self.seen.append(name)
        self.depth += 1
        write()
        self.depth -= 1
        return self

    def raw(self, value: bytes) -> Recorder:
        return self._note("raw", lambda: super(Recorder, self).raw(value))

    def uint(self, value: int) -> Recorder:
        return self._note("uint", lambda: super(Recorder, self).uint(value))

    def sint(self, value: int) -> Recorder:
        return self._note("sint", lambda: super(Recorder, self).sint(value))

    def data(self, value: bytes) -> Recorder:
        return self._note("data", lambda: super(Recorder, self).data(value))

    def text(self, value: str) -> Recorder:
        return self._note("text", lambda: super(Recorder, self).text(value))


COMMIT = CommitId(ObjectId(ID))
SAMPLES = {
    "commit": (
        commits,
        lambda: commits.encode_commit(
            commits.Commit(
                RootId(ObjectId(ID)),
                (COMMIT,),
                1,
                0,
                "a",
                "m",
                (("key", "value"),),
                (commits.Read(b"p", b""),),
                ((b"a", b"b"),),
                ((b"p", "note"),),
            )
        ),
    ),
    "layer": (
        layers,
        lambda: layers.encode_layer(
            layers.Layer(
                2,
                COMMIT,
                LayerId(ObjectId(ID)),
                "merge",
                1,
                "a",
                "m",
                "b",
                (layers.Check("c", 0),),
                (LayerId(ObjectId(ID)),),
            )
        ),
    ),
    "move": (
        moves,
        lambda: moves.encode_move(
            moves.Move(
                1,
                1,
                "a",
                (
                    moves.RefSet("refs/heads/a", None, COMMIT, "why"),
                    moves.LayerAdd(1, LayerId(ObjectId(ID)), COMMIT),
                    moves.PackAdd("00000001"),
                    moves.PackDrop("00000001"),
                    moves.WorkspacePut("w", b""),
                    moves.WorkspaceDrop("w"),
                ),
            )
        ),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_field_table_is_what_the_encoder_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, encode = SAMPLES[name]
    seen: list[str] = []
    monkeypatch.setattr(module, "Writer", lambda: Recorder(seen))
    encode()
    assert [row[0] for row in tables(OBJECT)[name]] == seen


@pytest.mark.parametrize("kinds", (Kind, EntryKind), ids=("Kind", "EntryKind"))
def test_numbers_of_kinds(kinds: type[Kind] | type[EntryKind]) -> None:
    body = re.search(rf'(?m)^\.\\" VALUES {kinds.__name__}\n\.EX\n((?:\d.*\n)*)', OBJECT)
    assert body is not None
    assert {int(number): name for number, name in (line.split() for line in body[1].splitlines())} == {
        int(kind): kind.name.lower() for kind in kinds
    }


def test_how_of_a_layer() -> None:
    assert ", ".join(f"{number} {how}" for number, how in enumerate(layers.HOW)) in OBJECT


def test_rules_of_nodes() -> None:
    for name, rule in (("extent", extents.RULE), ("tree", trees.RULE)):
        numbers = (rule.boundary_bits, rule.min_items, rule.max_items, rule.max_bytes)
        row = next(line.split() for line in OBJECT.splitlines() if re.match(rf"{name} +\d", line))
        assert tuple(map(int, row[1:])) == numbers


def test_parameters_of_chunking() -> None:
    text = " ".join(OBJECT.split())
    cut = (chunking.CHUNK_MIN, chunking.CHUNK_AVG, chunking.CHUNK_MAX)
    assert "minimum {}, average {} and maximum {} bytes".format(*cut) in text
    assert (
        f"zero pages, {chunking.PAGE} bytes each" in text
        and f"at least {chunking.HOLE_MIN} bytes is a hole" in text
    )
    assert chunking.ONE_PIECE_LIMIT == 128 * 1024 and '"up to 128 KiB"' in OBJECT
    assert MAX_OBJECT_BYTES == 16 << 20 and "longer than 16 MiB" in OBJECT
    assert commits.MAX_PARENTS == 16 and "at most 16 parents" in OBJECT


def test_limits_and_marks_of_packs() -> None:
    text = " ".join(PACK.split())
    assert f"at most {frames.MAX_RAW} bytes decoded" in text and f"most {frames.MAX_COUNT} objects" in text
    assert frames.MAGIC.decode() in PACK and "LFINDEX1" in PACK and "LFPACK1" in PACK


def test_provenance_page_lists_every_key() -> None:
    listed = PROVENANCE.partition('.\\" KEYS')[2].partition('.\\" END KEYS')[0]
    keys = re.findall(r"\\fB([a-z-]+)\\fR", listed)
    assert tuple(keys) == commits.PROVENANCE_KEYS


def test_an_id_is_what_the_page_says() -> None:
    from blake3 import blake3

    from layerfs.objects.kinds import object_id

    key = blake3(b"", derive_key_context="layerfs logical format 1 object kind chunk").digest()
    assert object_id(Kind.CHUNK, b"abc") == ChunkId(ObjectId(blake3(b"abc", key=key).digest()))
    assert '"layerfs logical format 1 object kind "' in OBJECT
