"""Plain lines: command lines that say what they mean in the plainest way, understood without loading the parser.

Owns :class:`Call` and a reader that knows only exact option names, ``--name value``, ``--name=value``, flags, ``--`` and
arguments. It understands a line as Typer would or not at all: whatever is unknown, missing, abbreviated or malformed, and
every wish for help, is left to ``parsing``, which also words the errors. Loading Typer takes longer than all the rest of
a small command (measured: 60 of 90 ms), so this reader is what most commands start with.

The signatures of commands are the only description of their lines. They are written for Typer; as annotations they are
text, which is evaluated here with a stand-in for the two Typer functions they use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple

from layerfs.cli.output import Reply
from layerfs.cli.registry import Command


class GlobalOptions(NamedTuple):
    """The options every command has."""

    store: str | None = None
    directory: str | None = None
    as_json: bool = False
    nul: bool = False
    as_lines: bool = False


class Call(NamedTuple):
    """A parsed command line, ready to run."""

    body: Callable[..., Reply]
    arguments: dict[str, Any]
    options: GlobalOptions


def load(row: Command) -> Callable[..., Reply]:
    """Import the module of ``row`` and return its function."""
    module = import_module(f"layerfs.commands.{row.module}")
    body: Callable[..., Reply] = getattr(module, row.function)
    return body


def plain_call(row: Command, body: Callable[..., Reply], argv: Sequence[str]) -> Call | None:
    """Return the call that a plain line describes; None if the line is for the parser."""
    parameters = parameters_of(body)
    if parameters is None:
        return None
    line = _Line([*parameters, *_shared(row)])
    try:
        given = line.read(argv)
    except _NotPlain:
        return None
    options = GlobalOptions(*(given.pop(name, default) for name, default in _GLOBAL_DEFAULTS.items()))
    return Call(body, given, options)


class _NotPlain(Exception):
    """The line needs the parser."""


class _Declared(NamedTuple):
    """What a signature says of one parameter, in place of Typer's own object."""

    names: tuple[str, ...]
    low: float | None = None
    high: float | None = None


class _StandIn:
    """The two functions of Typer that signatures call, with the words they may pass."""

    @staticmethod
    def Option(
        *names: str, help: str, metavar: str = "", min: float | None = None, max: float | None = None
    ) -> _Declared:
        return _Declared(names, min, max)

    @staticmethod
    def Argument(*, help: str, metavar: str) -> _Declared:
        return _Declared(())


class _Parameter(NamedTuple):
    """One parameter: how it is called, what a word of it becomes, and what it is when it is not given."""

    name: str
    declared: _Declared
    leaf: Any
    many: bool
    required: bool
    default: Any

    def value(self, word: str) -> Any:
        """Return what a word means; whether an empty one means anything is for the parser to say."""
        if not word:
            raise _NotPlain
        if self.leaf is str:
            return word
        if issubclass(self.leaf, Enum):
            for choice in self.leaf:
                if choice.value == word:
                    return choice
            raise _NotPlain
        try:
            number = self.leaf(word)
        except ValueError:
            raise _NotPlain from None
        low, high = self.declared.low, self.declared.high
        if (low is not None and number < low) or (high is not None and number > high):
            raise _NotPlain
        return number


def parameters_of(body: Callable[..., Reply]) -> list[_Parameter] | None:
    """Read a command's signature; None if it is not one of text annotations."""
    names = body.__code__.co_varnames[1 : body.__code__.co_argcount]
    defaults: tuple[Any, ...] = body.__defaults__ or ()
    first_default = len(names) - len(defaults)
    surroundings = {**body.__globals__, "typer": _StandIn}
    found = []
    for number, name in enumerate(names):
        text = body.__annotations__[name]
        if not isinstance(text, str):
            return None
        annotation = eval(text, surroundings)
        leaf, many = _leaf(annotation.__origin__)
        required = number < first_default
        default = None if required else defaults[number - first_default]
        found.append(_Parameter(name, annotation.__metadata__[0], leaf, many, required, default))
    return found


def _leaf(annotation: Any) -> tuple[Any, bool]:
    """Return the type of one word of a parameter, and whether it takes many."""
    parts = [part for part in getattr(annotation, "__args__", ()) if part is not type(None)]
    if getattr(annotation, "__origin__", None) is list:
        return parts[0], True
    return _leaf(parts[0]) if parts else (annotation, False)


def _shared(row: Command) -> list[_Parameter]:
    absent = {name for name, there in (("nul_", row.nul), ("lines_", bool(row.lines))) if not there}
    return [parameter for parameter in _GLOBALS if parameter.name not in absent]


_GLOBAL_DEFAULTS: dict[str, Any] = {
    "store_": None,
    "directory_": None,
    "json_": False,
    "nul_": False,
    "lines_": False,
}
_GLOBALS = [
    _Parameter("store_", _Declared(("--store",)), str, False, False, None),
    _Parameter("directory_", _Declared(("-C",)), str, False, False, None),
    _Parameter("json_", _Declared(("--json",)), bool, False, False, False),
    _Parameter("nul_", _Declared(("-z",)), bool, False, False, False),
    _Parameter("lines_", _Declared(("--json-lines",)), bool, False, False, False),
]


class _Line:
    """One reading of a line."""

    def __init__(self, parameters: list[_Parameter]) -> None:
        self._places = [each for each in parameters if not each.declared.names]
        self._options = {name: each for each in parameters for name in each.declared.names}
        self._given = {each.name: each.default for each in parameters}
        self._missing = {each.name for each in parameters if each.required}
        self._lists: dict[str, list[Any]] = {}

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        words: list[str] = []
        rest = iter(argv)
        for word in rest:
            if word == "--":
                words += rest
            elif word[:1] != "-" or word == "-":
                words.append(word)
            else:
                self._option(word, rest)
        self._place(words)
        if self._missing:
            raise _NotPlain
        return self._given

    def _option(self, word: str, rest: Any) -> None:
        name, equals, attached = word.partition("=")
        option = self._options.get(name)
        if option is None or (equals and not name.startswith("--")):
            raise _NotPlain
        if option.leaf is bool:
            if equals:
                raise _NotPlain
            self._give(option, True)
            return
        value = attached if equals else next(rest, "-")
        if value[:1] == "-":
            raise _NotPlain
        if not option.many:
            self._give(option, option.value(value))
            return
        values = self._lists.setdefault(option.name, [])
        values.append(option.value(value))
        self._give(option, values)

    def _place(self, words: list[str]) -> None:
        """Give the words to the arguments, from the left; one that takes many takes what the ones after it leave."""
        at = 0
        for number, place in enumerate(self._places):
            if not place.many:
                if at < len(words):
                    self._give(place, place.value(words[at]))
                    at += 1
                continue
            end = len(words) - (len(self._places) - number - 1)
            if end < at:
                raise _NotPlain
            if end > at:
                self._give(place, [place.value(word) for word in words[at:end]])
            at = end
        if at < len(words):
            raise _NotPlain

    def _give(self, parameter: _Parameter, value: Any) -> None:
        self._given[parameter.name] = value
        self._missing.discard(parameter.name)
