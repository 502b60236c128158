"""Manual pages: finding them and laying them out as text.

Owns the small part of man(7) that our pages are written in, so that ``layerfs help`` works where no ``man`` program is
and a test can say that a page uses nothing else. What a page says is written in ``man/``; its OPTIONS are generated.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from layerfs.cli.registry import COMMANDS
from layerfs.errors import NotFound, quote

SECTIONS = ("1", "5", "7")
FONTS = frozenset(("B", "I", "BR", "IR", "RB", "RI", "BI", "IB"))
MACROS = FONTS | frozenset(("TH", "SH", "SS", "PP", "TP", "IP", "EX", "EE", "RS", "RE"))
_ESCAPES = (
    ("\\-", "-"),
    ("\\(aq", "'"),
    ("\\(bu", "*"),
    ("\\(lq", '"'),
    ("\\(rq", '"'),
    ("\\(ha", "^"),
    ("\\(ti", "~"),
    ("\\&", ""),
    ("\\e", "\\"),
)
_FONT = re.compile(r"\\f[BIRP]")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"|(\S+)')
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\([157]\))?")


class Page(NamedTuple):
    """A manual page: its name and its source."""

    name: str
    source: str


class _Line(NamedTuple):
    """One request of a page: a macro with its arguments, or (macro "") a line of text."""

    macro: str
    text: str


def read_page(topic: str) -> Page:
    """Return the page of ``topic``: ``fork``, ``layerfs-fork``, ``scripting`` or ``layerfs-scripting(7)``."""
    topic = _command_of(topic)
    name = topic.partition("(")[0]
    if _TOPIC.fullmatch(topic):
        for candidate in (name, f"layerfs-{name}"):
            for directory in _directories():
                for section in SECTIONS:
                    for path in (
                        f"{directory}/man{section}/{candidate}.{section}",
                        f"{directory}/{candidate}.{section}",
                    ):
                        if candidate.startswith("layerfs") and os.path.isfile(path):
                            with open(path, encoding="utf-8") as stream:
                                return Page(f"{candidate}({section})", stream.read())
    raise NotFound(
        f"no manual page about {quote(topic)}", "'layerfs help' shows layerfs(1), which lists the pages"
    )


def _command_of(topic: str) -> str:
    """Return the first word of a command of two words (``workspace list``, ``workspace-list``), which has the page."""
    words = topic.removeprefix("layerfs-").replace(" ", "-")
    for row in COMMANDS:
        if " " in row.name and row.name.replace(" ", "-") == words:
            return row.name.partition(" ")[0]
    return topic


def _directories() -> Iterator[str]:
    """Yield where pages may be: the source tree this module is in, then where packages install them."""
    yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "man")
    yield os.path.join(sys.prefix, "share", "man")


def parse(source: str) -> list[_Line]:
    """Split a page into its requests; comment lines are dropped."""
    lines = []
    for line in source.splitlines():
        if line.startswith(('.\\"', "'\\\"")):
            continue
        if line.startswith("."):
            macro, _, rest = line[1:].partition(" ")
            lines.append(_Line(macro, rest.strip()))
        else:
            lines.append(_Line("", line))
    return lines


def lay_out(source: str, columns: int) -> str:
    """Return a page as plain text, at most 100 columns wide."""
    sheet = _Sheet(max(40, min(columns, 100)))
    for line in parse(source):
        sheet.take(line)
    return sheet.finish()


class _Sheet:
    """The text of a page while it is laid out: filled paragraphs at an indent, and examples as they stand."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[str] = []
        self._words: list[str] = []
        self._indent = 0
        self._shift = 0
        self._verbatim = False
        self._tag: str | None = None
        self._want_tag = False

    def take(self, line: _Line) -> None:
        """Lay out one request."""
        if line.macro == "" or line.macro in FONTS:
            self._text(_inline(line))
        elif line.macro == "TH":
            name, section, *_ = _arguments(line.text)
            self._lines.append(f"{_plain(name).upper()}({section})")
        elif line.macro in ("SH", "SS"):
            self._flush()
            self._shift = 0
            self._blank()
            self._lines.append(("" if line.macro == "SH" else "  ") + _plain(" ".join(_arguments(line.text))))
            self._indent = 4
        elif line.macro in ("PP", "TP", "IP"):
            self._flush()
            self._blank()
            self._indent = 4
            self._want_tag = line.macro == "TP"
            if line.macro == "IP":
                self._tag = _plain(" ".join(_arguments(line.text)[:1]))
                self._indent = 12
        elif line.macro in ("RS", "RE"):
            self._flush()
            self._shift = max(0, self._shift + (4 if line.macro == "RS" else -4))
        elif line.macro in ("EX", "EE"):
            self._flush()
            self._verbatim = line.macro == "EX"
        else:
            raise ValueError(f"manual page uses .{line.macro}, which is not among the macros we lay out")

    def finish(self) -> str:
        """Return the finished text."""
        self._flush()
        return "\n".join(self._lines) + "\n"

    def _text(self, text: str) -> None:
        if self._verbatim:
            self._lines.append((" " * (self._indent + self._shift + 2) + text).rstrip())
        elif self._want_tag:
            self._tag, self._want_tag, self._indent = text, False, 12
        elif text:
            self._words.append(text)
        else:
            self._flush()
            self._blank()

    def _flush(self) -> None:
        indent = self._indent + self._shift
        width = max(20, self._width - indent)
        body = textwrap.wrap(" ".join(self._words), width, break_long_words=False, break_on_hyphens=False)
        if self._tag is not None:
            head = " " * (4 + self._shift) + self._tag
            if len(head) < indent - 1 and body:
                self._lines.append(head.ljust(indent) + body.pop(0))
            else:
                self._lines.append(head)
        self._lines += [" " * indent + line for line in body]
        self._words, self._tag = [], None

    def _blank(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")


def _inline(line: _Line) -> str:
    if line.macro == "":
        return _plain(line.text)
    words = _arguments(line.text)
    return _plain((" " if len(line.macro) == 1 else "").join(words))


def _arguments(text: str) -> list[str]:
    return [
        quoted.replace('""', '"') if quoted or not bare else bare for quoted, bare in _ARGUMENT.findall(text)
    ]


def _plain(text: str) -> str:
    text = _FONT.sub("", text)
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text
