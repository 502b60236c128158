"""How file names are shown in lines of text: as they are, or in double quotes with escapes, as git does.

A name is quoted when it holds a control character, a double quote, a backslash or bytes that are not UTF-8; letters of
any script stay readable. So a name never breaks a line, and the quoted form can be read back without loss. Records under
``-z`` and the JSON document never use this.
"""

from __future__ import annotations

from collections.abc import Iterable

_NAMED = {
    0x07: b"a",
    0x08: b"b",
    0x09: b"t",
    0x0A: b"n",
    0x0B: b"v",
    0x0C: b"f",
    0x0D: b"r",
    0x22: b'"',
    0x5C: b"\\",
}


def show_path(path: bytes, prefix: bytes = b"") -> bytes:
    """Return ``prefix`` and the path for a line of text, quoted as a whole if it must be."""
    if path.isascii() and path.isalnum():
        return prefix + path
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and '"' not in text and "\\" not in text:
        return prefix + path
    parts = [_shown(character) for character in text]
    if not any(part.startswith(b"\\") for part in parts):
        return prefix + path
    return b'"' + prefix + b"".join(parts) + b'"'


def path_data(paths: Iterable[bytes]) -> list[dict[str, bytes]]:
    """Return a list of paths for a document: an object each, so that a path that is not UTF-8 has its twin."""
    return [{"path": path} for path in paths]


def show_line(text: str) -> bytes:
    """Return text by people (a subject, an author) for one line: control characters become escapes."""
    return text.encode("utf-8") if text.isprintable() else b"".join(map(_shown_text, text))


def _shown(character: str) -> bytes:
    code = ord(character)
    if code in _NAMED:
        return b"\\" + _NAMED[code]
    if 0xDC80 <= code <= 0xDCFF:
        return b"\\%03o" % (code - 0xDC00)
    if code < 0x20 or 0x7F <= code < 0xA0:
        return b"".join(b"\\%03o" % byte for byte in character.encode("utf-8"))
    return character.encode("utf-8")


def _shown_text(character: str) -> bytes:
    return character.encode("utf-8") if character in '"\\' else _shown(character)
