"""What a command's arguments and options look like to a reader.

Owns the one description from which ``--help``, the OPTIONS of the manual pages and the completions are made, so that the
three cannot disagree. It looks at a parsed command through the few attributes every version of the parser has; the
parser itself is imported in ``frame`` only.
"""

from __future__ import annotations

import textwrap
from enum import Enum
from typing import Any, NamedTuple

from layerfs.cli.registry import Command


class Parameter(NamedTuple):
    """One argument (no flags) or option (its flags, short first)."""

    flags: tuple[str, ...]
    metavar: str
    help: str
    required: bool
    many: bool
    takes_value: bool
    choices: tuple[str, ...]

    @property
    def label(self) -> str:
        """How the parameter is written: ``-C DIR``, ``--json``, ``NAME...``."""
        if not self.flags:
            return self.metavar + ("..." if self.many else "")
        return ", ".join(self.flags) + (f" {self.metavar}" if self.takes_value else "")


def describe(parsed: Any) -> list[Parameter]:
    """Return the visible parameters of a parsed command: arguments first, then options in the order declared."""
    shown = [parameter for parameter in parsed.params if not getattr(parameter, "hidden", False)]
    shown.sort(key=lambda parameter: parameter.param_type_name != "argument")
    return [_describe_one(parameter) for parameter in shown]


def _describe_one(parameter: Any) -> Parameter:
    option = parameter.param_type_name == "option"
    flags = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda flag: flag.startswith("--"))
    choices = _choices(parameter)
    fallback = "|".join(choices) if choices else parameter.name.rstrip("_").replace("_", "-").upper()
    return Parameter(
        flags=tuple(flags) if option else (),
        metavar=parameter.metavar or fallback,
        help=" ".join((parameter.help or "").split()),
        required=bool(parameter.required),
        many=bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1,
        takes_value=option
        and not getattr(parameter, "is_flag", False)
        and not getattr(parameter, "count", False),
        choices=choices,
    )


def _choices(parameter: Any) -> tuple[str, ...]:
    holder = getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", None)
    found = getattr(holder, "choices", None) or ()
    return tuple(str(choice.value) if isinstance(choice, Enum) else str(choice) for choice in found)


def synopsis(row: Command, parameters: list[Parameter]) -> str:
    """Return the one-line usage of a command."""
    words = ["layerfs", row.name, "[options]"]
    for parameter in parameters:
        if not parameter.flags:
            words.append(parameter.label if parameter.required else f"[{parameter.label}]")
        elif parameter.required:
            words.append(f"{parameter.flags[-1]} {parameter.metavar}")
    return " ".join(words)


def help_page(row: Command, description: str, parameters: list[Parameter], columns: int) -> str:
    """Return what ``layerfs COMMAND --help`` prints, at most 100 columns wide."""
    width = max(40, min(columns, 100))
    lines = [f"usage: {synopsis(row, parameters)}", ""]
    for paragraph in description.strip().split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), width), ""]
    for heading, wanted in (("arguments", False), ("options", True)):
        group = [parameter for parameter in parameters if bool(parameter.flags) == wanted]
        if group:
            lines += [f"{heading}:", *_table([(row.label, row.help) for row in group], width), ""]
    topic = row.name.partition(" ")[0]
    lines.append(f"Exit codes: layerfs-scripting(7). Manual page: layerfs help {topic}")
    return "\n".join(lines) + "\n"


def command_table(groups: tuple[str, ...], rows: tuple[Command, ...], columns: int) -> str:
    """Return what ``layerfs --help`` prints: every command under the heading of its group."""
    width = max(40, min(columns, 100))
    lines = [
        "usage: layerfs [--store PATH] [-C DIR] [--json] COMMAND ...",
        "",
        "Version control for whole environments: capture, fork, mount, commit, merge, publish.",
        "",
    ]
    for group in groups:
        members = [(row.name, row.summary) for row in rows if row.group == group]
        if members:
            lines += [f"{group}:", *_table(members, width), ""]
    lines.append("'layerfs COMMAND --help' lists options; 'layerfs help' shows the manual, layerfs(1).")
    return "\n".join(lines) + "\n"


def verb_table(name: str, rows: tuple[Command, ...], columns: int) -> str:
    """Return what ``layerfs NAME`` prints when the command needs a verb and got none."""
    width = max(40, min(columns, 100))
    lines = [f"usage: layerfs {name} VERB ...", ""]
    lines += _table([(row.name.partition(" ")[2], row.summary) for row in rows], width)
    return "\n".join(lines) + f"\n\nManual page: layerfs help {name}\n"


def _table(rows: list[tuple[str, str]], width: int) -> list[str]:
    indent = 2 + min(24, max(len(left) for left, _ in rows)) + 2
    lines = []
    for left, right in rows:
        wrapped = textwrap.wrap(right, max(20, width - indent)) or [""]
        head = f"  {left}"
        if len(head) + 2 > indent:
            lines.append(head)
        else:
            lines.append((head.ljust(indent) + wrapped.pop(0)).rstrip())
        lines += [" " * indent + line for line in wrapped if line]
    return lines
