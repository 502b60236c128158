"""The contract of the JSON documents, as values: what ``documents.toml`` says, read once.

Owns the notation of that file. Who writes it into the pages is ``generate``; who holds documents against it is
``tests/contracted``. Invariant: every type that is named exists, and every command is one of the table.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().with_name("documents.toml")
PLAIN = ("text", "id", "path", "raw", "boolean", "count", "bytes", "ns", "number", "ratio", "value")
_TYPE = re.compile(r"(?P<optional>optional )?(?P<base>.+?)(?P<null> or null)?(?:: (?P<words>\S+))?")
_NESTED = ("list of ", "map of ")


class Shape(NamedTuple):
    """What a value must be. ``of`` is what a list or map holds; ``words`` are the words to choose from.

    ``base`` is one of ``PLAIN``, ``word``, ``list``, ``map``, or the name of a type of the file.
    """

    base: str
    nullable: bool
    of: Shape | None = None
    words: tuple[str, ...] = ()

    @property
    def leaf(self) -> str:
        """The type at the bottom of lists and maps."""
        return self.base if self.of is None else self.of.leaf


class Key(NamedTuple):
    """One key of an object."""

    name: str
    shape: Shape
    optional: bool
    notation: str
    meaning: str
    origin: str = ""
    """The type that the key was taken over from with ``include``."""


Keys = tuple[Key, ...]


class Document(NamedTuple):
    """One form that the data of a command may have; ``when`` tells several forms apart."""

    command: str
    when: str
    status: tuple[str, ...]
    keys: Keys


class Contract(NamedTuple):
    """The whole file."""

    status: dict[str, str]
    types: dict[str, Keys]
    documents: dict[str, list[Document]]


def read_contract() -> Contract:
    """Read the file; raises ValueError where its notation is wrong."""
    raw = tomllib.loads(FILE.read_text(encoding="utf-8"))
    tables = raw["types"]
    types = {name: _keys(tables, table) for name, table in tables.items()}
    documents: dict[str, list[Document]] = {}
    for table in raw["document"]:
        command = table.pop("command")
        when = table.pop("when", "")
        status = tuple(table.pop("status", ["ok"]))
        documents.setdefault(command, []).append(Document(command, when, status, _keys(tables, table)))
    return Contract(raw["status"], types, documents)


def _keys(tables: dict[str, Any], table: dict[str, Any]) -> Keys:
    """Return the keys of a table in its order, those of the types it includes in the place of ``include``."""
    found: list[Key] = []
    for name, value in table.items():
        if name == "include":
            for other in value:
                taken = _keys(tables, tables[other])
                found += [key._replace(origin=key.origin or other) for key in taken]
        else:
            notation, meaning = value
            match = _TYPE.fullmatch(notation)
            if match is None:
                raise ValueError(f"{name}: {notation!r} is no type")
            shape = _shape(
                tables, match["base"], bool(match["null"]), tuple((match["words"] or "").split("|"))
            )
            found.append(Key(name, shape, bool(match["optional"]), notation, meaning))
    return tuple(found)


def _shape(tables: dict[str, Any], base: str, nullable: bool, words: tuple[str, ...]) -> Shape:
    for prefix in _NESTED:
        if base.startswith(prefix):
            return Shape(prefix[:-4], nullable, _shape(tables, base.removeprefix(prefix), False, words))
    if base not in PLAIN and base not in tables and base != "word":
        raise ValueError(f"{base!r} is no type")
    return Shape(base, nullable, None, words if base == "word" else ())
