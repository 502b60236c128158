"""From an argument list to a call: the only module, besides command signatures, that knows Typer.

``plainline`` reads most lines without it; this module reads all of them, and says what is wrong with one.

Owns the options every command has (``--store``, ``-C``, ``--json``, ``--help``, and ``-z`` and ``--json-lines`` where the
table says so), which words may be empty, and the wording of usage errors. The parser only parses: it yields a
:class:`Call`, which the frame runs.

Words become values here and not in Typer: Typer 0.29 loads pydantic to turn a string into a string, which takes longer
than everything else a small command does (measured: 70 ms of imports). Only public methods are replaced, so another
version of the parser still parses, at its own speed. Parameters may be ``str``, ``int``, ``float``, an ``Enum``, a list
of these, any of them optional, and ``bool`` flags; anything else is left to Typer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer

from layerfs.cli.output import Reply
from layerfs.cli.plainline import Call, GlobalOptions, load
from layerfs.cli.registry import Command
from layerfs.cli.usage import describe, help_page
from layerfs.errors import UsageError, quote

# The parser's own usage error, reached through its public subclass: its module differs between versions of Typer.
_PARSE_ERROR: Any = typer.BadParameter.__base__
_MAY_BE_EMPTY = ("TEXT", "REASON", "VALUE", "REV -- CMD")
"""What may be an empty word: text, and the words of a command to run. A name, a revision or a path is never empty."""
_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)")


class HelpText(NamedTuple):
    """The answer to ``--help``, not yet laid out."""

    row: Command
    parser: Any

    def lay_out(self, columns: int) -> str:
        """Return the text for a terminal of that width."""
        return help_page(self.row, self.parser.help or self.row.summary, describe(self.parser), columns)


class _HelpAsked(Exception):
    """``--help`` was among the options."""


def parse(row: Command, argv: list[str]) -> Call | HelpText:
    """Return the call that the arguments after the command's name describe."""
    parser = parser_of(row)
    try:
        call = parser.main(args=argv, prog_name=f"layerfs {row.name}", standalone_mode=False)
    except _HelpAsked:
        return HelpText(row, parser)
    except UsageError as error:
        raise UsageError(error.message, error.hint or _options_hint(row)) from None
    except _PARSE_ERROR as error:
        raise _usage_error(error, row) from None
    assert isinstance(call, Call)
    return call


def parser_of(row: Command) -> Any:
    """Return the parser of one command: its own parameters and the global options."""
    body = load(row)
    hints = get_type_hints(body, {**body.__globals__, "typer": typer}, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(body).parameters.values())[1:]
    ]
    absent = {name for name, there in (("nul_", row.nul), ("lines_", bool(row.lines))) if not there}
    shared = [parameter for name, parameter in _GLOBALS.items() if name not in absent]
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    described = inspect.getdoc(body) or row.summary
    app.command(name=row.name, help=described, add_help_option=False)(_entry(body, [*own, *shared]))
    parser = typer.main.get_command(app)
    annotations = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    for parameter in parser.params:
        leaf = _leaf(annotations[parameter.name])
        if leaf is not None:
            parameter.process_value = partial(_process, parameter, leaf)  # type: ignore[method-assign]
    return parser


def _entry(body: Callable[..., Reply], parameters: list[inspect.Parameter]) -> Callable[..., Call]:
    """Return what the parser calls in place of ``body``: it keeps the values instead of running anything."""

    def entry(**given: Any) -> Call:
        given.pop("help_")
        options = GlobalOptions(
            store=given.pop("store_"),
            directory=given.pop("directory_"),
            as_json=given.pop("json_"),
            nul=given.pop("nul_", False),
            as_lines=given.pop("lines_", False),
        )
        return Call(body, given, options)

    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    entry.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return entry


def _leaf(annotation: Any) -> Any:
    """Return the type of one word of a parameter if we convert it ourselves, else None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaf(get_args(annotation)[0])
    if origin in (Union, UnionType):
        rest = [part for part in get_args(annotation) if part is not type(None)]
        return _leaf(rest[0]) if len(rest) == 1 else None
    if origin is list:
        return _leaf(get_args(annotation)[0])
    if annotation in (str, int, float, bool) or (
        isinstance(annotation, type) and issubclass(annotation, Enum)
    ):
        return annotation
    return None


def _process(parameter: Any, leaf: Any, ctx: Any, value: Any) -> Any:
    """Stand in for the parser's conversion of one parameter: convert, miss what is required, run the callback."""
    many = parameter.multiple or parameter.nargs == -1
    if parameter.required and (value is None or (many and not value)):
        raise UsageError(f"missing {_named(parameter)}")
    if value is None:
        value = () if many else None
    elif many or parameter.nargs != 1:
        value = tuple(_convert(parameter, leaf, word) for word in value)
    else:
        value = _convert(parameter, leaf, value)
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def _convert(parameter: Any, leaf: Any, word: Any) -> Any:
    if not isinstance(word, str):
        return word
    if not word and parameter.metavar not in _MAY_BE_EMPTY:
        raise UsageError(f"{_named(parameter)} is an empty word")
    if leaf is str:
        return word
    if issubclass(leaf, Enum):
        for choice in leaf:
            if choice.value == word:
                return choice
        allowed = ", ".join(str(choice.value) for choice in leaf)
        raise UsageError(f"invalid value for {_named(parameter)}: {quote(word)} is not one of {allowed}")
    try:
        number = leaf(word)
    except ValueError:
        raise UsageError(f"invalid value for {_named(parameter)}: {quote(word)} is not a number") from None
    low, high = parameter.min, parameter.max
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = (
            f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
        )
        raise UsageError(f"invalid value for {_named(parameter)}: {quote(word)} is not {bounds}")
    return number


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"argument {quote(parameter.metavar or parameter.name.rstrip('_').upper())}"
    return f"option {quote(max(parameter.opts, key=len))}"


def _usage_error(error: Any, row: Command) -> UsageError:
    """Turn the parser's complaint into ours: lower case, no full stop, and the way to the options as hint."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    unknown = getattr(error, "option_name", None)
    if unknown is not None and type(error).__name__ == "NoSuchOption":
        possible = sorted(getattr(error, "possibilities", None) or ())
        close = f"did you mean {' or '.join(quote(option) for option in possible)}?" if possible else ""
        return UsageError(f"no such option {quote(unknown)}", close or _options_hint(row))
    extra = _EXTRA.search(message)
    if extra:
        return UsageError(f"too many arguments: {quote(extra[1])}", _options_hint(row))
    return UsageError(message[:1].lower() + message[1:], _options_hint(row))


def _options_hint(row: Command) -> str:
    return f"'layerfs {row.name} --help' lists the options"


def _ask_for_help(asked: bool) -> None:
    if asked:
        raise _HelpAsked


def _global(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_STORE = typer.Option(
    "--store", metavar="PATH", help="The store to work on, instead of the one found from here."
)
_DIRECTORY = typer.Option("-C", metavar="DIR", help="Run as if started in DIR.")
_JSON = typer.Option("--json", help="Print one JSON document, also on failure.")
_LINES = typer.Option(
    "--json-lines", help="Print a line of JSON for each item as it is found, and the document as the last."
)
_NUL = typer.Option("-z", help="Print records that end in a NUL byte, with nothing quoted.")
_HELP = typer.Option("-h", "--help", help="Show this text.", is_eager=True, callback=_ask_for_help)
_GLOBALS = {
    parameter.name: parameter
    for parameter in (
        _global("store_", Annotated[str | None, _STORE], None),
        _global("directory_", Annotated[str | None, _DIRECTORY], None),
        _global("json_", Annotated[bool, _JSON], False),
        _global("lines_", Annotated[bool, _LINES], False),
        _global("nul_", Annotated[bool, _NUL], False),
        _global("help_", Annotated[bool, _HELP], False),
    )
}
