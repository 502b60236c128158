"""The frame around every command: parse its line, open what it needs, run it, print its answer, return its exit code.

Owns the options every command has (``--store``, ``-C``, ``--json``, ``-z`` where the table says so), the mapping from
exceptions to exit codes, and the life of the store handle. The parser only parses: it turns an argument list into a
:class:`Call`, and the command runs outside of it, so that no parser decides what an error looks like. Apart from command
signatures this is the only place that knows Typer; it uses its public face and ``typer.main.get_command``.
"""

from __future__ import annotations

import errno
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, get_type_hints

import typer

from layerfs import output
from layerfs.context import Context, current_directory
from layerfs.errors import (
    EXIT_BUG,
    LayerfsError,
    NoSpace,
    NotFound,
    Refused,
    StoreIoFailed,
    Unable,
    UsageError,
    quote,
)
from layerfs.layout import find_store
from layerfs.output import Reply
from layerfs.progress import SILENT, Progress
from layerfs.registry import Command, Needs
from layerfs.usage import describe, help_page

if TYPE_CHECKING:
    from layerfs.store import Store

EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 130, 141, 143

# The parser's own usage error, reached through its public subclass: its module differs between versions of Typer.
_PARSE_ERROR: Any = typer.BadParameter.__base__


class Terminated(BaseException):
    """SIGTERM arrived: unwind as for Ctrl-C, so that clean-up runs."""


class _HelpAsked(Exception):
    """``--help`` was among the options."""


class Invocation:
    """One run of one command: its surroundings, its global options, and its store, opened on first use."""

    def __init__(self, row: Command, context: Context, argv: tuple[str, ...], globals_: GlobalOptions) -> None:
        self.row = row
        self.context = context
        self.argv = argv
        self.store_option = globals_.store
        self.as_json = globals_.as_json
        self.nul = globals_.nul
        self.open_resources = ExitStack()
        self._store: Store | None = None

    @property
    def store_path(self) -> bytes:
        """The store this command works on: ``--store``, the environment, the workspace, or the pointer file."""
        return find_store(self.context, self.store_option)

    @property
    def store(self) -> Store:
        """The open store; opened once, closed by the frame after the answer is written."""
        if self._store is None:
            from layerfs.store import Store

            self._store = Store.open(self.store_path)
            self.open_resources.callback(self._store.close)
        return self._store

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Give a listener for long work: a bar if stderr is a terminal and the answer is for people, else silence."""
        if not self.context.stderr_tty or self.as_json:
            yield SILENT
            return
        from layerfs.render import open_bar

        with open_bar(self.context.columns) as bar:
            yield bar


class GlobalOptions(NamedTuple):
    """The options every command has."""

    store: str | None = None
    directory: str | None = None
    as_json: bool = False
    nul: bool = False


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


def parser_of(row: Command) -> Any:
    """Return the parser of one command: its own parameters and the global options."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    body = load(row)
    app.command(name=row.name, help=inspect.getdoc(body) or row.summary, add_help_option=False)(_entry(row, body))
    return typer.main.get_command(app)


def run(row: Command, argv: list[str], context: Context) -> int:
    """Run one command from its argument list (without its own name) and return the exit code."""
    as_json = "--json" in (argv[: argv.index("--")] if "--" in argv else argv)
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        return _run(row, argv, context)
    except LayerfsError as error:
        return _fail(error, row, as_json)
    except BrokenPipeError:
        output.silence()
        return EXIT_PIPE
    except OSError as error:
        known = explain_oserror(error)
        if known is None:
            return _report_bug()
        return _fail(known, row, as_json)
    except MemoryError:
        return _fail(Unable("not enough memory for this operation"), row, as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Terminated:
        return EXIT_TERMINATED
    except Exception:
        return _report_bug()


def _run(row: Command, argv: list[str], context: Context) -> int:
    call = _parse(row, argv, context)
    if call is None:
        return 0
    if call.options.directory is not None:
        context = _enter_directory(call.options.directory, context)
    invocation = Invocation(row, context, tuple(argv), call.options)
    with invocation.open_resources:
        if row.needs is not Needs.NONE:
            invocation.store  # noqa: B018  (a command that needs a store fails before it does anything else)
        reply = call.body(invocation, **call.arguments)
        output.write_reply(reply, row.schema, invocation.as_json, invocation.nul)
    return reply.exit_code


def _parse(row: Command, argv: list[str], context: Context) -> Call | None:
    """Return the call the arguments describe, or None if they asked for help and it was printed."""
    parser = parser_of(row)
    try:
        call = parser.main(args=argv, prog_name=f"layerfs {row.name}", standalone_mode=False)
    except _HelpAsked:
        text = help_page(row, parser.help or row.summary, describe(parser), context.columns)
        output.write_reply(Reply({}, output.encode_text(text)), row.schema, as_json=False, nul=False)
        return None
    except _PARSE_ERROR as error:
        raise _usage_error(error, row) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    assert isinstance(call, Call)
    return call


def _entry(row: Command, body: Callable[..., Reply]) -> Callable[..., Call]:
    """Return what the parser sees in place of ``body``: the same parameters without ``inv``, and the global options."""
    hints = get_type_hints(body, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(body).parameters.values())[1:]
    ]
    shared = [parameter for name, parameter in _GLOBALS.items() if name != "nul_" or row.nul]

    def entry(**given: Any) -> Call:
        given.pop("help_")
        options = GlobalOptions(
            store=given.pop("store_"),
            directory=given.pop("directory_"),
            as_json=given.pop("json_"),
            nul=given.pop("nul_", False),
        )
        return Call(body, given, options)

    entry.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    entry.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return entry


def _ask_for_help(asked: bool) -> None:
    if asked:
        raise _HelpAsked


def _global(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_STORE = typer.Option("--store", metavar="PATH", help="The store to work on, instead of the one found from here.")
_DIRECTORY = typer.Option("-C", metavar="DIR", help="Run as if started in DIR.")
_JSON = typer.Option("--json", help="Print one JSON document, also on failure.")
_NUL = typer.Option("-z", help="Print records that end in a NUL byte, with nothing quoted.")
_HELP = typer.Option("-h", "--help", help="Show this text.", is_eager=True, callback=_ask_for_help)
_GLOBALS = {
    parameter.name: parameter
    for parameter in (
        _global("store_", Annotated[str | None, _STORE], None),
        _global("directory_", Annotated[str | None, _DIRECTORY], None),
        _global("json_", Annotated[bool, _JSON], False),
        _global("nul_", Annotated[bool, _NUL], False),
        _global("help_", Annotated[bool, _HELP], False),
    )
}


def _enter_directory(directory: str, context: Context) -> Context:
    try:
        os.chdir(directory)
    except OSError as error:
        raise NotFound(f"cannot enter directory {quote(directory)}: {_reason(error)}") from None
    return context._replace(cwd=current_directory({}))


def _usage_error(error: Any, row: Command) -> UsageError:
    """Turn the parser's complaint into ours: lower case, no full stop, and the way to the options as hint."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    hint = f"'layerfs {row.name} --help' lists the options"
    unknown = getattr(error, "option_name", None)
    if unknown is not None and type(error).__name__ == "NoSuchOption":
        message = f"no such option {quote(unknown)}"
        possible = getattr(error, "possibilities", None)
        if possible:
            hint = f"did you mean {' or '.join(quote(option) for option in sorted(possible))}?"
    return UsageError(message[:1].lower() + message[1:], hint)


def explain_oserror(error: OSError) -> LayerfsError | None:
    """Return the one-line error for a refusal by the operating system; None if it can only be our own mistake."""
    subject = error.filename if isinstance(error.filename, (str, bytes)) else None
    message = _reason(error) if subject is None else f"{quote(subject)}: {_reason(error)}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return NoSpace(message, "nothing was published; free some space and run the command again")
        case errno.EIO | errno.EROFS:
            return StoreIoFailed(message)
        case errno.EACCES | errno.EPERM:
            return Refused(message, "run as the owner of the store and of the files")
        case errno.ENOENT | errno.ENOTDIR:
            return NotFound(message)
        case errno.EBADF | errno.EFAULT | errno.EINVAL | None:
            return None
    return Unable(message)


def _reason(error: OSError) -> str:
    return (error.strerror or "unknown error").lower()


def _fail(error: LayerfsError, row: Command, as_json: bool) -> int:
    try:
        output.write_error(error, row.schema, as_json)
    except BrokenPipeError:
        output.silence()
        return EXIT_PIPE
    return error.exit_code


def _report_bug() -> int:
    import traceback

    traceback.print_exc()
    output.write_note("layerfs: error: this is a bug in layerfs; please report it with the lines above")
    return EXIT_BUG


def _raise_terminated(signum: int, stack: object) -> NoReturn:
    raise Terminated


