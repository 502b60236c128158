"""Documents held against their contract: every ``--json`` answer that a test sees must be what man/documents.toml says.

Strict: an unknown key, a missing one, a value of another type or an unknown status is a failure. What was seen is kept
for the test that demands that every key of the contract occurs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

from documents import Contract, Document, Key, Shape, read_contract

from layerfs.cli.registry import COMMANDS, Command

CONTRACT: Contract = read_contract()
_ROWS: dict[str, Command] = {row.schema: row for row in COMMANDS}
_ENVELOPE = ["schema", "status", "data", "errors"]
_TEXTS = ("text", "path", "raw")


class Broken(AssertionError):
    """A document that breaks the contract."""


Seen = set[tuple[str, str]]
"""Pairs of an owner (a type, or a form of a document) and a key of it that had a value; or of a command and a status."""


def form(document: Document) -> str:
    """Return a name for one form of a document."""
    return f"{document.command}, {document.when}" if document.when else document.command


def check_document(document: Any, items: Iterable[Any] | None = None) -> Seen:
    """Demand that a document keeps the contract; ``items`` are the lines before it under ``--json-lines``."""
    if not isinstance(document, dict) or list(document) != _ENVELOPE:
        raise Broken(f"not an envelope: {document!r:.300}")
    _check_errors(document["errors"], document["status"])
    row = _ROWS.get(document["schema"])
    if row is None or document["status"] == "error":
        if document["data"] != {} or document["status"] != "error" or not document["errors"]:
            raise Broken(f"an error has no data, and nothing else has no command: {document!r:.300}")
        return set()
    data = dict(document["data"])
    if items is not None:
        if row.lines in data:
            raise Broken(f"{row.lines} is printed line by line, and not in the document")
        data |= {row.lines: list(items)} if _streams(row, data, items) else {}
    return _check_data(row.name, document["status"], data)


def _streams(row: Command, data: Mapping[str, Any], items: Iterable[Any]) -> bool:
    """Whether an answer has the list at all: ``rev-list --count`` has none, and prints no lines."""
    others = [one for one in CONTRACT.documents[row.name] if row.lines not in {key.name for key in one.keys}]
    return bool(list(items)) or not any({key.name for key in one.keys} == set(data) for one in others)


def _check_data(command: str, status: str, data: Mapping[str, Any]) -> Seen:
    problems = []
    for one in CONTRACT.documents.get(command, ()):
        seen: Seen = set()
        try:
            if status not in one.status:
                raise Broken(f"unknown status {status!r}")
            _check_object(data, one.keys, form(one), "data", seen)
        except Broken as error:
            problems.append(f"{form(one)}: {error}")
        else:
            return seen | {(command, status)}
    raise Broken("\n".join(problems) or f"{command} has no document in the contract")


def _check_errors(errors: Any, status: str) -> None:
    if not isinstance(errors, list):
        raise Broken("errors is no list")
    for error in errors:
        if list(error) != ["code", "message", "hint"] or not all(
            isinstance(part, str) for part in error.values()
        ):
            raise Broken(f"not an error: {error!r}")
    if errors and status not in ("error", "conflict", "refused"):
        raise Broken(f"errors under status {status}")


def _check_object(value: Any, keys: Iterable[Key], owner: str, where: str, seen: Seen) -> None:
    if not isinstance(value, dict):
        raise Broken(f"{where} is no object: {value!r:.100}")
    rest = dict(value)
    for key in keys:
        place = f"{where}.{key.name}"
        if key.name not in rest:
            if not key.optional:
                raise Broken(f"{place} is missing")
            continue
        found = rest.pop(key.name)
        _check_twin(found, rest.pop(f"{key.name}_b64", None), key.shape, place)
        _check_value(found, key.shape, place, seen)
        if found is not None:
            seen.add((key.origin or owner, key.name))
    if rest:
        raise Broken(f"{where} has keys the contract does not name: {sorted(rest)}")


def _check_twin(value: Any, twin: Any, shape: Shape, where: str) -> None:
    if twin is None:
        return
    if shape.base not in ("path", "raw"):
        raise Broken(f"{where} has a twin and is no path")
    if base64.b64decode(twin, validate=True).decode("utf-8", "backslashreplace") != value:
        raise Broken(f"the twin of {where} says something else")


def _check_value(value: Any, shape: Shape, where: str, seen: Seen) -> None:
    if value is None:
        if not shape.nullable:
            raise Broken(f"{where} is null")
    elif shape.of is not None:
        if not isinstance(value, list if shape.base == "list" else dict):
            raise Broken(f"{where} is no {shape.base}: {value!r:.100}")
        for at, item in enumerate(value) if shape.base == "list" else value.items():
            _check_value(item, shape.of, f"{where}[{at}]", seen)
    elif shape.base in CONTRACT.types:
        _check_object(value, CONTRACT.types[shape.base], shape.base, where, seen)
    elif not _is_plain(value, shape):
        raise Broken(f"{where} is not of type {shape.base} {'|'.join(shape.words)}: {value!r:.100}")


def _is_plain(value: Any, shape: Shape) -> bool:
    base = shape.base
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if base in _TEXTS:
        return isinstance(value, str)
    if base == "id":
        return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
    if base == "word":
        return value in shape.words
    if base == "boolean":
        return isinstance(value, bool)
    if base == "ratio":
        return isinstance(value, float)
    if base == "value":
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return is_list or isinstance(value, (str, int, bool))
    return is_number and (base in ("number", "ns") or value >= 0)
