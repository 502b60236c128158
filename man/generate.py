"""Keep the generated parts of the manual pages in step with the program.

    python man/generate.py            rewrite what is out of step; start a page for a command that has none
    python man/generate.py --check    change nothing; exit 1 and name the pages that are out of step

Owns the blocks between ``.\\" BEGIN NAME`` and ``.\\" END NAME`` lines: synopsis, options and JSON document of a command,
the command table of layerfs(1), the codes, status words and shared objects of layerfs-scripting(7). The rest of a page is
written by hand. What the documents hold is said in ``documents.toml`` and worded in ``answers``.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

MAN = Path(__file__).resolve().parent
sys.path[:0] = [str(MAN), str(MAN.parent)]

from answers import command_block, objects_block, status_block, types_block  # noqa: E402
from documents import read_contract  # noqa: E402
from roff import roff  # noqa: E402

import layerfs  # noqa: E402
from layerfs import errors  # noqa: E402
from layerfs.cli import frame, output  # noqa: E402
from layerfs.cli.parsing import load, parser_of  # noqa: E402
from layerfs.cli.registry import COMMANDS, GROUPS, Command, first_words, verbs_of  # noqa: E402
from layerfs.cli.usage import Parameter, describe  # noqa: E402
from layerfs.errors import LayerfsError  # noqa: E402

_BLOCK = re.compile(r'(?m)^\.\\" BEGIN ([A-Z ]+)\n(?:.*\n)*?\.\\" END \1\n')
_MEANINGS = (
    (errors.EXIT_OK, "done; also: nothing to do"),
    (
        errors.EXIT_NO,
        "ran, and the answer is no: conflicts, differences under --exit-code, damage found by fsck",
    ),
    (errors.EXIT_USAGE, "the command line is wrong"),
    (
        errors.EXIT_INCOMPLETE,
        "done, but something could not be captured or restored faithfully; it is listed",
    ),
    (errors.EXIT_NOT_FOUND, "not found"),
    (errors.EXIT_BUSY, "somebody else holds what is needed"),
    (errors.EXIT_EXPECTATION, "an expectation did not hold; nothing was done"),
    (errors.EXIT_REFUSED, "refused, to protect data"),
    (errors.EXIT_UNABLE, "this machine or version cannot do it"),
    (errors.EXIT_DAMAGED, "the store is damaged"),
    (errors.EXIT_IO, "the store's input or output failed: no space, input/output error"),
    (errors.EXIT_BUG, "a bug in layerfs; the only case with a traceback"),
    (frame.EXIT_HUNG_UP, "the terminal went away (SIGHUP)"),
    (frame.EXIT_INTERRUPTED, "interrupted (SIGINT)"),
    (output.EXIT_PIPE, "the reader of the output went away (SIGPIPE)"),
    (frame.EXIT_TERMINATED, "terminated (SIGTERM)"),
)


def error_classes() -> list[type[LayerfsError]]:
    """Return every error class that has a code of its own; one without refines another and is reported as that."""
    for module in pkgutil.walk_packages(layerfs.__path__, "layerfs."):
        if not module.name.endswith(("__main__", "_native")) and ".workspace.fuse" not in module.name:
            import_module(module.name)
    found: list[type[LayerfsError]] = []
    pending: list[type[LayerfsError]] = [LayerfsError]
    while pending:
        for child in pending.pop().__subclasses__():
            found += [child] if "slug" in vars(child) else []
            pending.append(child)
    return sorted(found, key=lambda error: (error.exit_code, error.slug))


def exit_codes() -> dict[int, str]:
    """Return the table of exit codes."""
    return dict(_MEANINGS)


def pages() -> dict[Path, str]:
    """Return every page with generated parts, as it should be."""
    wanted = {}
    contract = read_contract()
    for word in first_words():
        path = MAN / f"layerfs-{word}.1"
        rows = _rows(word)
        text = path.read_text(encoding="utf-8") if path.exists() else _start(word, rows)
        blocks = {
            "SYNOPSIS": _synopses(rows),
            "OPTIONS": _options(rows),
            "JSON": command_block(contract, rows),
        }
        wanted[path] = _fill(text, blocks)
    overview = MAN / "layerfs.1"
    wanted[overview] = _fill(overview.read_text(encoding="utf-8"), {"COMMANDS": _command_table()})
    scripting = MAN / "layerfs-scripting.7"
    blocks = {
        "EXIT CODES": _exit_table(),
        "ERROR CODES": _error_table(),
        "STATUS WORDS": status_block(contract),
        "TYPES": types_block(),
        "OBJECTS": objects_block(contract),
    }
    wanted[scripting] = _fill(scripting.read_text(encoding="utf-8"), blocks)
    return wanted


def _rows(word: str) -> list[Command]:
    return [row for row in COMMANDS if row.name == word] + list(verbs_of(word))


def _fill(text: str, blocks: dict[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        return f'.\\" BEGIN {name}\n{blocks[name]}.\\" END {name}\n' if name in blocks else match[0]

    return _BLOCK.sub(replacement, text)


def _synopses(rows: list[Command]) -> str:
    lines = []
    for row in rows:
        lines += [".PP" if lines else "", rf"\fBlayerfs {roff(row.name)}\fR [\fIoptions\fR]{_words(row)}"]
    return "\n".join(line for line in lines if line) + "\n"


def _words(row: Command) -> str:
    text = ""
    for parameter in describe(parser_of(row)):
        if not parameter.flags:
            word = rf"\fI{roff(parameter.metavar)}\fR" + ("..." if parameter.many else "")
            text += f" {word}" if parameter.required else f" [{word}]"
        elif parameter.required:
            text += rf" \fB{roff(parameter.flags[-1])}\fR \fI{roff(parameter.metavar)}\fR"
    return text


def _options(rows: list[Command]) -> str:
    parts = []
    for row in rows:
        heading = f'.SS "{roff(row.name)}"\n' if len(rows) > 1 else ""
        parts.append(heading + "".join(_option(parameter) for parameter in describe(parser_of(row))))
    return "".join(parts)


def _option(parameter: Parameter) -> str:
    if parameter.flags:
        tag = ", ".join(rf"\fB{roff(flag)}\fR" for flag in parameter.flags)
        tag += rf" \fI{roff(parameter.metavar)}\fR" if parameter.takes_value else ""
    else:
        tag = rf"\fI{roff(parameter.metavar)}\fR" + ("..." if parameter.many else "")
    body = roff(parameter.help) or "No description."
    if parameter.choices:
        body += " One of: " + ", ".join(rf"\fB{roff(choice)}\fR" for choice in parameter.choices) + "."
    if parameter.flags and parameter.many:
        body += " May be given more than once."
    return f".TP\n{tag}\n{body}\n"


def _command_table() -> str:
    lines = []
    for group in GROUPS:
        rows = [row for row in COMMANDS if row.group == group]
        if rows:
            lines.append(f'.SS "{group}"')
        for row in rows:
            lines += [".TP", rf"\fBlayerfs {roff(row.name)}\fR", roff(row.summary)]
    return "\n".join(lines) + "\n"


def _exit_table() -> str:
    return "".join(f".TP\n\\fB{code}\\fR\n{roff(meaning)}\n" for code, meaning in _MEANINGS)


def _error_table() -> str:
    parts = []
    for error in error_classes():
        meaning = " ".join((inspect.getdoc(error) or "").split())
        parts.append(f".TP\n\\fB{roff(error.slug)}\\fR ({error.exit_code})\n{roff(meaning)}\n")
    return "".join(parts)


def _start(word: str, rows: list[Command]) -> str:
    """Return the beginning of a page for a command that has none; whoever knows good examples writes them."""
    summary = (
        rows[0].summary
        if len(rows) == 1 or rows[0].name == word
        else f"{word}: " + ", ".join(row.name.partition(" ")[2] for row in rows)
    )
    description = []
    for row in rows:
        if row.name != word:
            description.append(f'.SS "{roff(row.name)}"')
        text = inspect.getdoc(load(row)) or row.summary
        description.append("\n.PP\n".join(roff(" ".join(part.split())) for part in text.split("\n\n")))
    return "\n".join(
        (
            f'.TH LAYERFS\\-{roff(word.upper())} 1 "" "layerfs" "layerfs manual"',
            ".SH NAME",
            f"layerfs\\-{roff(word)} \\- {roff(summary)}",
            ".SH SYNOPSIS",
            '.\\" BEGIN SYNOPSIS',
            '.\\" END SYNOPSIS',
            ".SH DESCRIPTION",
            *description,
            ".SH OPTIONS",
            '.\\" BEGIN OPTIONS',
            '.\\" END OPTIONS',
            ".SH EXIT STATUS",
            "See",
            ".BR layerfs\\-scripting (7).",
            ".SH JSON",
            '.\\" BEGIN JSON',
            '.\\" END JSON',
            ".PP",
            "Types and shared objects are described in",
            ".BR layerfs\\-scripting (7).",
            ".SH EXAMPLES",
            ".EX",
            *(f"layerfs {roff(row.name)}" for row in rows),
            ".EE",
            ".SH SEE ALSO",
            ".BR layerfs (1),",
            ".BR layerfs\\-scripting (7)",
            "",
        )
    )


def out_of_step() -> Iterator[tuple[Path, str]]:
    """Yield every page that differs from what it should be, with what it should be."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield path, text


def main() -> int:
    """Rewrite the pages, or check them."""
    stale = list(out_of_step())
    for path, text in stale:
        print(path.name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
