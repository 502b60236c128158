"""Decoding of tree entries: the kernel and its twin agree with each other and with the decoder of single entries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import load, on_both

from layerfs.errors import MalformedObject
from layerfs.objects.entry import KINDS, Entry, EntryKind, decode_entry, encode_entry

Named = tuple[bytes, Entry]

names = st.binary(min_size=1, max_size=9).filter(lambda name: not set(name) & {0, 47} and name not in (b".", b".."))
times = st.integers(-(1 << 62), 1 << 62) | st.integers(0, 2 << 60) | st.just(-(1 << 63) * 10**9)
refs = {
    EntryKind.FILE: st.just(b"r" * 32),
    EntryKind.DIR: st.just(b"d" * 32),
    EntryKind.SYMLINK: st.binary(min_size=1, max_size=40).filter(lambda target: b"\0" not in target),
    EntryKind.FIFO: st.just(b""),
    EntryKind.SOCKET: st.just(b""),
    EntryKind.CHARDEV: st.binary(min_size=8, max_size=8),
    EntryKind.BLOCKDEV: st.binary(min_size=8, max_size=8),
}


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.sampled_from(EntryKind))
    size = draw(st.integers(0, (1 << 64) - 1)) if kind is EntryKind.FILE else 0
    ref = draw(refs[kind]) if size or kind is not EntryKind.FILE else b""
    xattrs = ((b"user.a", b"value"),) if draw(st.integers(0, 9)) == 0 else ()
    group = draw(st.sampled_from([0, 0, 1, (1 << 64) - 1])) if kind is not EntryKind.DIR else 0
    ids = st.integers(0, (1 << 32) - 1)
    return Entry(kind, draw(st.integers(0, 0o7777)), draw(ids), draw(ids), draw(times), size, ref, xattrs, group)


def by_single_entries(payload: bytes, start: int) -> tuple[list[Named], int]:
    """State what plain entries are, by the decoder that knows all of them."""
    found: list[Named] = []
    at, last = start, b""
    while at < len(payload):
        try:
            name, entry, end = decode_entry(payload, at)
        except MalformedObject:
            break
        if entry.xattrs or name <= last or payload[at + 1] & 1:
            break
        found.append((name, entry))
        at, last = end, name
    return found, at


@on_both
@given(st.dictionaries(names, entries(), max_size=12), st.randoms(use_true_random=False), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_plain_entries_are_decoded_as_single_ones(which: str, content: dict[bytes, Entry], choose, damage) -> None:  # type: ignore[no-untyped-def]
    items = sorted(content.items())
    if damage == 1:
        choose.shuffle(items)
    payload = bytearray(b"\0" + b"".join(encode_entry(name, entry) for name, entry in items))
    if damage >= 2 and len(payload) > 1:
        for _ in range(damage):
            payload[choose.randrange(1, len(payload))] = choose.choice((0, 1, 2, 46, 47, 255, choose.randrange(256)))
        del payload[choose.randrange(max(1, len(payload) - 40), len(payload) + 1) :]
    node = bytes(payload)
    got, end = load(which).plain_entries(node, 1, Entry, KINDS)
    assert (got, end) == by_single_entries(node, 1)
    assert all(type(entry) is Entry and type(entry.kind) is EntryKind for _, entry in got)


@on_both
def test_places_outside_of_the_node_are_refused(which: str) -> None:
    for start in (-1, 2):
        try:
            load(which).plain_entries(b"\0", start, Entry, KINDS)
        except ValueError:
            continue
        raise AssertionError("not refused")
