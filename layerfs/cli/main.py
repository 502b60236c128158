"""The entry point: find the command in the table and hand over to the frame, importing only what that command needs.

Owns the words before and the choice of the command; ``layerfs``, ``layerfs --help`` and ``--version`` are answered from
the table alone, without loading the parser. Global options may stand before the command, as with git.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NamedTuple, NoReturn

from layerfs import __version__
from layerfs.cli import output
from layerfs.cli.registry import COMMANDS, GROUPS, Command, find_command, first_words, verbs_of
from layerfs.context import Context, read_context
from layerfs.errors import LayerfsError, UsageError, quote
from layerfs.refusals import explain_oserror

_TAKES_VALUE = ("--store", "-C")
_PLAIN = ("--json", "--json-lines")


class Line(NamedTuple):
    """A command line cut in two: which command, and its arguments with the leading global options put first."""

    row: Command
    arguments: list[str]


def entry() -> NoReturn:
    """Run ``layerfs`` and end the process at once.

    Taking the interpreter apart costs a small command 10 ms (measured), a tenth of its time, and frees only memory: the
    frame has closed the store and written everything by then. The collector is off while modules load, for the same
    reason; the frame turns it on before a command runs.
    """
    gc.disable()
    _open_standard_streams()
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or output.EXIT_PIPE
    os._exit(code)


def _open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed, or a file of the store would get its number and our words."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def main(argv: list[str] | None = None) -> int:
    """Run ``layerfs`` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        context = read_context()
        line = choose(arguments, context)
        if line is None:
            return 0
        from layerfs.cli.frame import run
    except LayerfsError as error:
        return output.report(error, "layerfs/1", not set(_PLAIN).isdisjoint(arguments))
    except BrokenPipeError:
        output.silence()
        return output.EXIT_PIPE
    except OSError as error:
        refusal = explain_oserror(error)
        if refusal is None:
            raise
        return output.report(refusal, "layerfs/1", not set(_PLAIN).isdisjoint(arguments))
    except KeyboardInterrupt:
        return 130
    return run(line.row, line.arguments, context)


def choose(arguments: list[str], context: Context) -> Line | None:
    """Return the command the arguments name, or None if they asked for something that was answered here."""
    leading, rest = split_globals(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        from layerfs.cli.usage import command_table

        _print(command_table(GROUPS, COMMANDS, context.columns))
        return None
    if rest[0] in ("-V", "--version"):
        _print(f"layerfs {__version__}\n")
        return None
    if rest[0].startswith("-"):
        raise UsageError(f"no such option {quote(rest[0])}", "'layerfs --help' lists the commands")
    if len(rest) > 1:
        row = find_command(f"{rest[0]} {rest[1]}")
        if row is not None:
            return Line(row, leading + rest[2:])
    row = find_command(rest[0])
    if row is not None:
        return Line(row, leading + rest[1:])
    _answer_verbs(rest, context)
    return None


def _answer_verbs(rest: list[str], context: Context) -> None:
    """Answer a command that only has verbs: list them, or say what is wrong with the word given."""
    verbs = verbs_of(rest[0])
    if not verbs:
        raise UsageError(f"no such command {quote(rest[0])}", _suggest(rest[0], first_words(), "layerfs"))
    if len(rest) > 1 and rest[1] not in ("-h", "--help"):
        words = [row.name.partition(" ")[2] for row in verbs]
        raise UsageError(
            f"{quote(rest[0])} has no verb {quote(rest[1])}", _suggest(rest[1], words, f"layerfs {rest[0]}")
        )
    from layerfs.cli.usage import verb_table

    _print(verb_table(rest[0], verbs, context.columns))


def split_globals(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Cut the global options that stand before the command off the arguments."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word in _PLAIN or word.startswith("--store=") or (word.startswith("-C") and len(word) > 2):
            position += 1
        elif word in _TAKES_VALUE:
            if position + 1 == len(arguments):
                raise UsageError(
                    f"option {quote(word)} requires an argument", "'layerfs --help' shows the usage"
                )
            position += 2
        else:
            break
    return arguments[:position], arguments[position:]


FAMILIAR = {
    "add": "commit",
    "backup": "commit",
    "snapshot": "commit",
    "checkout-branch": "mount",
    "switch": "mount",
    "worktree": "mount",
    "umount": "unmount",
    "exec": "run",
    "pull": "fetch",
    "forget": "branch -d",
    "rm": "restore",
    "reset": "restore",
    "revert": "restore",
    "stash": "commit --as NEW",
    "rebase": "update",
    "annotate": "blame",
    "ls": "ls-tree",
    "list": "workspace list",
}
"""What users of other tools type, and what does it here."""


def _suggest(word: str, known: list[str], prefix: str) -> str:
    if word in FAMILIAR and FAMILIAR[word].split()[0] in known:
        return f"the command for that is 'layerfs {FAMILIAR[word]}'"
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=3)
    if not close:
        return f"'{prefix} --help' lists what there is"
    return "did you mean " + " or ".join(quote(candidate) for candidate in close) + "?"


def _print(text: str) -> None:
    output.stdout().write(output.encode_text(text))
    output.stdout().flush()
