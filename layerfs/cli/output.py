"""Where results leave the process: text, ``-z`` records, the JSON document, and error lines.

Owns the shape of a result (:class:`Reply`), the shape of the JSON document and the wording around an error. Every byte
goes out through ``sys.stdout.buffer`` or ``sys.stderr.buffer``, so a name that is not UTF-8 comes out as it is and no
locale can refuse it. What a result says is decided in ``present``; which stream gets it is decided here.

In ``Reply.data`` a ``bytes`` value is a path (or other raw bytes). The document shows it as a string; if the bytes are
not UTF-8 the string has ``\\xNN`` escapes and a twin key ``NAME_b64`` holds the exact bytes, so a path is the value of a
key and never an item of a list. Ids are hexadecimal strings. man/documents.toml says what each document holds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

from layerfs.errors import LayerfsError
from layerfs.refusals import explain_oserror

EXIT_PIPE = 141

Text = bytes | Iterable[bytes]


class Reply(NamedTuple):
    """What a command answers.

    ``text`` and ``z`` may be an iterable of pieces: they are written while the store is still open, so long output never
    lies in memory at once. ``z`` replaces ``text`` under ``-z``. ``notes`` are lines for people, on stderr. ``errors``
    accompany an answer that is "no" (conflicts) in the JSON document.
    """

    data: Mapping[str, Any]
    text: Text = b""
    status: str = "ok"
    exit_code: int = 0
    z: Text | None = None
    notes: tuple[str, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
    prompt: bool = False
    """Whether each piece goes out at once, for a caller that reads an answer before it asks the next question."""


def write_reply(reply: Reply, schema: str, as_json: bool, nul: bool, lines: str = "") -> None:
    """Print ``reply`` to stdout, its notes to stderr; ``lines`` names the list to print item by item."""
    if as_json:
        data = dict(reply.data)
        if lines:
            _write(stdout(), map(_line, data.pop(lines, ())), reply.prompt)
        _write(stdout(), document(schema, reply.status, data, reply.errors))
    else:
        _write(stdout(), reply.z if nul and reply.z is not None else reply.text, reply.prompt)
    stdout().flush()
    for note in reply.notes:
        write_note(note)


def write_error(error: LayerfsError, schema: str, as_json: bool) -> None:
    """Print ``error``: one line and its hint on stderr, and under ``--json`` the document on stdout as well."""
    if as_json:
        entry = {"code": error.slug, "message": error.message, "hint": error.hint}
        _write(stdout(), document(schema, "error", {}, (entry,)))
        stdout().flush()
    text = f"layerfs: error: {error.message}\n"
    if error.hint:
        text += f"hint: {error.hint}\n"
    _write(stderr(), encode_text(text))
    stderr().flush()


def report(error: LayerfsError, schema: str, as_json: bool) -> int:
    """Print ``error`` and return the exit code, whatever state the streams are in."""
    try:
        write_error(error, schema, as_json)
    except BrokenPipeError:
        silence()
        return EXIT_PIPE
    except OSError as failure:
        refusal = explain_oserror(failure) or error
        with suppress(OSError):
            write_error(refusal, schema, as_json=False)
        silence()
        return refusal.exit_code
    return error.exit_code


def write_note(note: str) -> None:
    """Print one line for people on stderr."""
    _write(stderr(), encode_text(note) + b"\n")
    stderr().flush()


def document(schema: str, status: str, data: Mapping[str, Any], errors: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the JSON document of an answer, one line, keys in the order given."""
    return _line({"schema": schema, "status": status, "data": data, "errors": errors})


def _line(value: Mapping[str, Any]) -> bytes:
    import json

    return json.dumps(_plain(value), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _plain(value: Any) -> Any:
    """Return ``value`` with every path turned into a string and, where it needs one, its ``_b64`` twin."""
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, item in value.items():
            result[key] = _plain(item)
            if isinstance(item, bytes) and not _is_utf8(item):
                result[f"{key}_b64"] = _base64(item)
        return result
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, Iterable):
        return [_plain_item(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in a JSON document")


def _plain_item(item: Any) -> Any:
    if isinstance(item, bytes):
        raise TypeError("a path in a list has no key to give its twin a name")
    return _plain(item)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _base64(raw: bytes) -> str:
    import base64

    return base64.b64encode(raw).decode("ascii")


def encode_text(text: str) -> bytes:
    """Return text for a terminal as UTF-8, with bytes that came in through ``os.fsdecode`` given back as they were."""
    return text.encode("utf-8", "surrogateescape")


def stdout() -> BinaryIO:
    """Return the byte stream of standard output."""
    return sys.stdout.buffer


def stderr() -> BinaryIO:
    """Return the byte stream of standard error."""
    return sys.stderr.buffer


def silence() -> None:
    """Point stdout at nothing, after its reader went away, so that the interpreter's last flush stays quiet."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


def _write(stream: BinaryIO, text: Text, prompt: bool = False) -> None:
    if isinstance(text, bytes):
        stream.write(text)
        return
    for piece in text:
        stream.write(piece)
        if prompt:
            stream.flush()
