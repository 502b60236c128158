"""Error classes: every refusal layerfs can print, with its slug and its exit code.

Owns the table of exit codes that scripts rely on (design: Git and sysexits habits; listed in layerfs-scripting(7)).
A class states its ``slug`` and ``exit_code`` as class attributes, so a test can list them all. Messages are lower
case, quote their subject with :func:`quote` and carry no full stop; the hint says what to do next. Rendering to a
terminal or to JSON is done in ``output``.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_NOT_FOUND = 10
EXIT_BUSY = 11
EXIT_EXPECTATION = 12
EXIT_REFUSED = 13
EXIT_UNABLE = 20
EXIT_DAMAGED = 30
EXIT_IO = 40
EXIT_BUG = 70


def quote(subject: bytes | str) -> str:
    """Return ``subject`` in single quotes, printable on any terminal.

    Bytes that are not UTF-8, control characters, quotes and backslashes are shown as ``\\xNN`` or ``\\n`` escapes, so
    that a name with a newline or an odd byte can never break a message into two lines.
    """
    text = subject.decode("utf-8", "surrogateescape") if isinstance(subject, bytes) else subject
    if text.isascii() and text.isprintable() and "'" not in text and "\\" not in text:
        return f"'{text}'"
    return "'" + "".join(_quoted(character) for character in text) + "'"


def _quoted(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    if not character.isprintable():
        return f"\\u{code:04x}"
    return character


class LayerfsError(Exception):
    """Base of every error a user may meet: one clear line, an optional hint, a slug and an exit code."""

    slug = "error"
    exit_code = EXIT_NO

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LayerfsError):
    """The command line asks for something that has no meaning."""

    slug = "usage"
    exit_code = EXIT_USAGE


class NotFound(LayerfsError):
    """A revision, path, branch, workspace or store that does not exist."""

    slug = "not-found"
    exit_code = EXIT_NOT_FOUND


class NotAStore(NotFound):
    """The path holds no layerfs store, or no store belongs to it."""

    slug = "not-a-store"


class MissingObject(NotFound):
    """An object id that the store does not hold."""

    slug = "missing-object"


class AmbiguousName(LayerfsError):
    """A revision prefix that fits several objects."""

    slug = "ambiguous"
    exit_code = EXIT_USAGE


class Busy(LayerfsError):
    """Another process holds what is needed, longer than the bounded wait."""

    slug = "busy"
    exit_code = EXIT_BUSY


class ExpectationFailed(LayerfsError):
    """The state named by ``--expect`` or by a compare-and-set is not the state found; nothing was done."""

    slug = "expectation-failed"
    exit_code = EXIT_EXPECTATION


class Refused(LayerfsError):
    """Refused because going on could lose or cover somebody's data."""

    slug = "refused"
    exit_code = EXIT_REFUSED


class AlreadyExists(Refused):
    """A name or a directory that is already taken."""

    slug = "already-exists"


class Dirty(Refused):
    """A workspace holds changes that no commit has."""

    slug = "dirty"


class TornRead(Refused):
    """A file would not hold still while it was read."""

    slug = "torn-read"


class Unable(LayerfsError):
    """This machine, kernel, file system or version cannot do what was asked."""

    slug = "unable"
    exit_code = EXIT_UNABLE


class StoreDamaged(LayerfsError):
    """Bytes of the store do not verify: nothing wrong is ever returned. Without a hint of its own it says what helps."""

    slug = "store-damaged"
    exit_code = EXIT_DAMAGED

    def __init__(self, message: str, hint: str = "") -> None:
        helps = "'layerfs fsck' lists what is lost, by commit and path; 'fsck --repair --from CLONE' brings it back"
        super().__init__(message, hint or (helps if type(self) is StoreDamaged else ""))


class MalformedObject(StoreDamaged):
    """An object whose bytes are not a canonical encoding of its kind."""

    slug = "malformed-object"


class StoreIoFailed(LayerfsError):
    """The store's file system refused a read or a write (I/O error, read-only)."""

    slug = "store-io"
    exit_code = EXIT_IO


class NoSpace(StoreIoFailed):
    """The store's file system is full; nothing was published."""

    slug = "no-space"


class Conflicted(LayerfsError):
    """Two sides changed the same thing incompatibly; nothing was created."""

    slug = "conflict"
    exit_code = EXIT_NO
