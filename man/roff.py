"""Text as it is written in the source of a page: what the formatter would take for its own is escaped."""

from __future__ import annotations


def roff(text: str) -> str:
    """Return text for a line of a page."""
    text = (
        text.replace("\\", "\\e")
        .replace("-", "\\-")
        .replace("'", "\\(aq")
        .replace("^", "\\(ha")
        .replace("~", "\\(ti")
    )
    return "\\&" + text if text.startswith(".") else text


def bold(text: str) -> str:
    """Return text in bold, as what is typed or compared is set."""
    return rf"\fB{roff(text)}\fR"


def joined(words: list[str], last: str) -> str:
    """Return ``a, b LAST c``."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
