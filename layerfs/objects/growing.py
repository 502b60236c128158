"""Growing trees: the tree of one directory while its entries come in, in the order of their names.

What may be built is built at once; the rest is kept in its encoded form, a tenth of the decoded one, so that a directory
of a million names needs no more than its changes take on disk. An entry that something outside the directory decides –
its link group, the tree of a sub-directory that waits for one – is *waiting* until ``settle`` says what it is.

Invariant: the tree is that of ``build_tree`` over all entries, whatever the base and however they came in.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import merge
from operator import itemgetter

from layerfs.ids import TreeId
from layerfs.objects.entry import Entry, encode_entry
from layerfs.objects.nodes import NodeBuilder
from layerfs.objects.source import ObjectStore
from layerfs.objects.trees import EMPTY_NODE, RULE, NameChange, Named, decode_node, edit_sorted, finish_tree

_PACKED_TOGETHER = 1024


class GrowingTree:
    """A tree made from the one before (``base``), of which it is told what goes and what changes, or from nothing."""

    def __init__(self, store: ObjectStore, base: TreeId | None) -> None:
        self._store = store
        self._base = base
        self._builder = NodeBuilder(store, RULE)
        self._rest = _Packed()
        self._known: dict[bytes, Entry | None] = {}
        self.waiting: dict[bytes, Entry] = {}

    def add(
        self, items: Iterable[Named], known: Mapping[bytes, Entry] = {}, undecided: Container[bytes] = ()
    ) -> None:
        """Add entries that come after all before; ``known`` is what the base has in this part: the rest of that goes."""
        gone = dict.fromkeys(known)
        changes: list[NameChange] = []
        for name, entry in items:
            gone.pop(name, None)
            before = known.get(name)
            if name in undecided:
                self.waiting[name] = entry
                self._known[name] = before
            elif self._base is None and not self.waiting:
                self._builder.add(name, encode_entry(name, entry), 1)
            elif before != entry:
                changes.append((name, entry))
        if gone:
            changes += gone.items()
            changes.sort(key=itemgetter(0))
        self._rest.extend(changes)

    def settle(self, name: bytes, entry: Entry) -> None:
        """Say what an entry that waits is."""
        self.waiting[name] = entry

    def finish(self) -> TreeId:
        """Return the tree; nothing waits any more."""
        settled = (
            (name, entry) for name, entry in sorted(self.waiting.items()) if entry != self._known[name]
        )
        changes = merge(self._rest, settled, key=itemgetter(0)) if self.waiting else iter(self._rest)
        if self._base is not None:
            return edit_sorted(self._store, self._base, changes)
        for name, entry in changes:
            assert entry is not None
            self._builder.add(name, encode_entry(name, entry), 1)
        return finish_tree(self._store, self._builder)


class _Packed:
    """Changes in the order of their names: entries as a tree's leaves have them, names that go divided by slashes."""

    def __init__(self) -> None:
        self._packed: list[tuple[bytes, bytes]] = []
        self._last: list[NameChange] = []

    def extend(self, changes: list[NameChange]) -> None:
        self._last += changes
        if len(self._last) >= _PACKED_TOGETHER:
            entries = (encode_entry(name, entry) for name, entry in self._last if entry is not None)
            gone = b"/".join(name for name, entry in self._last if entry is None)
            self._packed.append((EMPTY_NODE + b"".join(entries), gone))
            self._last = []

    def __iter__(self) -> Iterator[NameChange]:
        for entries, gone in self._packed:
            changes: list[NameChange] = [*decode_node(entries).entries]
            if gone:
                changes += dict.fromkeys(gone.split(b"/")).items()
                changes.sort(key=itemgetter(0))
            yield from changes
        yield from self._last
