"""The JSON sections of the pages, from the contract of the documents.

A type that documents of several pages share is described once, in layerfs-scripting(7); one that a single page uses is
spread out there, as ``commits[].names``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from documents import Contract, Document, Key, Shape
from roff import bold, joined, roff

from layerfs.cli.registry import COMMANDS, Command

PLAIN = {
    "text": "a string.",
    "id": "64 hexadecimal digits.",
    "path": "a string; if its bytes are not UTF-8, a second key holds them, as said above.",
    "raw": "other bytes, written as a path is.",
    "boolean": "true or false.",
    "count": "a whole number from 0.",
    "bytes": "a size, a length or an offset in bytes.",
    "ns": "an instant in nanoseconds since the epoch.",
    "number": "a whole number, perhaps negative.",
    "ratio": "a number with a fraction.",
    "word": "one of the words that follow.",
    "value": "a string, a number, true or false, or a list of strings.",
}


def shared_types(contract: Contract) -> list[str]:
    """Return the types that several pages use, in the order of the file."""
    users: dict[str, set[str]] = {}
    for row in COMMANDS:
        for document in contract.documents[row.name]:
            for name in _reached(contract, document.keys):
                users.setdefault(name, set()).add(row.page)
    return [name for name in contract.types if len(users.get(name, ())) > 1]


def _reached(contract: Contract, keys: Iterable[Key]) -> set[str]:
    found: set[str] = set()
    for key in keys:
        name = key.shape.leaf
        if name in contract.types and name not in found:
            found |= {name} | _reached(contract, contract.types[name])
    return found


def command_block(contract: Contract, rows: list[Command]) -> str:
    """Return the JSON section of a page: what ``data`` holds, per verb and per form."""
    shared = set(shared_types(contract))
    groups: dict[object, list[Command]] = {}
    for row in rows:
        forms = contract.documents[row.name]
        groups.setdefault((row.lines, *(one._replace(command="") for one in forms)), []).append(row)
    lines: list[str] = []
    for members in groups.values():
        names = [row.name for row in members]
        lines += [f'.SS "{roff(", ".join(names))}"'] if len(groups) > 1 else []
        lines += _introduction(contract, members)
        told: set[Key] = set()
        for document in contract.documents[names[0]]:
            lines += _form(document, told) if document.when else []
            lines += _key_lines(contract, [key for key in document.keys if key not in told], shared, "")
            told |= set(document.keys)
    return "".join(f"{line}\n" for line in lines)


def _introduction(contract: Contract, members: list[Command]) -> Iterator[str]:
    forms = contract.documents[members[0].name]
    schemas = joined([bold(row.schema) for row in members], "or")
    words = dict.fromkeys(word for document in forms for word in (*document.status, "error"))
    status = joined([bold(word) for word in words], "or")
    if members[0].lines:
        yield rf"With \fB\-\-json\-lines\fR the items of {bold(members[0].lines)} are lines of their own, and the"
        yield "document, without them, is the last line."
        yield ".PP"
    yield rf"The schema is {schemas}, the status {status}, and \fBdata\fR holds:"


def _form(document: Document, told: set[Key]) -> list[str]:
    """Name a form; keys that an earlier one has just so are only named."""
    known = [bold(key.name) for key in document.keys if key in told]
    rest = "." if len(known) == len(document.keys) else ", and:"
    text = roff(document.when[0].upper() + document.when[1:]) + ":"
    return [".PP", f"{text} {joined(known, 'and')} as above{rest}" if known else text]


def _key_lines(contract: Contract, keys: Iterable[Key], shared: set[str], prefix: str) -> Iterator[str]:
    for key in keys:
        yield ".TP"
        yield f"{bold(prefix + key.name)} ({_type(key, shared, contract)})"
        yield roff(key.meaning)
        name = key.shape.leaf
        if name in contract.types and name not in shared:
            yield from _key_lines(
                contract, contract.types[name], shared, prefix + key.name + _step(key.shape)
            )


def _step(shape: Shape) -> str:
    """Return what stands between a key and the keys below it."""
    if shape.of is None:
        return "."
    return ("[]" if shape.base == "list" else ".*") + _step(shape.of)


def _type(key: Key, shared: set[str], contract: Contract) -> str:
    leaf = key.shape.leaf
    text = key.notation.partition(":")[0]
    if leaf in contract.types and leaf not in shared:
        text = text.replace(leaf, "object") if text.endswith((leaf, f"{leaf} or null")) else text
        text = text.replace("list of object", "list of objects").replace("map of object", "map of objects")
    words = key.shape.words
    return roff(text) + (f": {joined([bold(word) for word in words], 'or')}" if words else "")


def objects_block(contract: Contract) -> str:
    """Return the section of the shared types."""
    shared = shared_types(contract)
    lines = []
    for name in shared:
        lines.append(f'.SS "{roff(name)}"')
        lines += _key_lines(contract, contract.types[name], set(shared), "")
    return "".join(f"{line}\n" for line in lines)


def types_block() -> str:
    """Return what the plain types mean."""
    return "".join(f".TP\n{bold(name)}\n{roff(meaning)}\n" for name, meaning in PLAIN.items())


def status_block(contract: Contract) -> str:
    """Return what the words of ``status`` mean."""
    return "".join(f".TP\n{bold(word)}\n{roff(meaning)}\n" for word, meaning in contract.status.items())
