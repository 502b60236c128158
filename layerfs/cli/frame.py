"""The frame around every command: parse its line, open what it needs, run it, print its answer, return its exit code.

Owns the mapping from exceptions to exit codes, signals, and the life of the store handle. What an argument list means is
found out in ``plainline`` or, if it is not plain, in ``parsing``; a command runs outside of both, so that no parser
decides what an error looks like.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

from layerfs.cli import output
from layerfs.cli.output import Reply
from layerfs.cli.plainline import Call, GlobalOptions, load, plain_call
from layerfs.cli.registry import Command, Needs
from layerfs.context import Context, current_directory
from layerfs.errors import EXIT_BUG, LayerfsError, NotFound, Unable, UsageError, quote
from layerfs.progress import SILENT, Progress
from layerfs.refusals import explain_oserror, reason
from layerfs.store.layout import POINTER, find_store, is_inside, moved_root

if TYPE_CHECKING:
    from layerfs.ids import CommitId
    from layerfs.store.store import Store
    from layerfs.store.workspacerecords import WorkspaceRecord

EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED = 129, 130, 143
RECURSION_LIMIT = 40_000
"""Captures and checkouts go down directories by recursion; a level takes a descriptor, which runs out first."""

_NO_THREAD = "can't start new thread"
"""What Python says then; it has no class of its own for it."""


class Terminated(BaseException):
    """SIGTERM arrived: unwind as for Ctrl-C, so that clean-up runs."""

    exit_code = EXIT_TERMINATED


class HungUp(Terminated):
    """SIGHUP arrived: the terminal or the connection went away."""

    exit_code = EXIT_HUNG_UP


class InternalError(LayerfsError):
    """An exception nobody foresaw."""

    slug = "bug"
    exit_code = EXIT_BUG


class Invocation:
    """One run of one command: its surroundings, its global options, and its store, opened on first use."""

    def __init__(
        self, row: Command, context: Context, argv: tuple[str, ...], globals_: GlobalOptions
    ) -> None:
        self.row = row
        self.context = context
        self.argv = argv
        self.store_option = globals_.store
        self.as_json = globals_.as_json or globals_.as_lines
        self.lines = row.lines if globals_.as_lines else ""
        self.nul = globals_.nul
        self.open_resources = ExitStack()
        self._store: Store | None = None
        self._workspace: WorkspaceRecord | None = None

    @property
    def store_path(self) -> bytes:
        """The store this command works on: ``--store``, the environment, the workspace, or the pointer file."""
        return find_store(self.context, self.store_option)

    @property
    def store(self) -> Store:
        """The open store; opened once, closed by the frame after the answer is written."""
        if self._store is None:
            from layerfs.store.store import Store

            self._store = Store.open(self.store_path, clock=self.context.clock)
            self.open_resources.callback(self._store.close)
        return self._store

    def find_workspace(self) -> WorkspaceRecord | None:
        """Return the workspace the caller stands in: the one ``run`` names, or the innermost around the directory."""
        if self._workspace is None:
            from layerfs.store.workspacerecords import find_workspace, workspace_at

            named = self.context.env.get("LAYERFS_WORKSPACE")
            if named:
                self._workspace = find_workspace(self.store.refs, named)
            if self._workspace is None:
                self._workspace = workspace_at(self.store.refs, os.path.realpath(self.context.cwd))
        return self._workspace

    @property
    def workspace(self) -> WorkspaceRecord:
        """The workspace the caller stands in; NotFound if there is none."""
        found = self.find_workspace()
        if found is None:
            where = quote(self.context.cwd)
            source = self.store.format.source
            moved = moved_root(self.store.path, source, self.context.cwd)
            if source is not None and moved is not None:
                pointer = quote(os.path.join(moved, POINTER))
                raise NotFound(
                    f"{where} is in no workspace: the store was captured from {quote(source)}",
                    f"go there, or move the directory back; to capture it anew, delete {pointer} first",
                )
            raise NotFound(
                f"{where} is in no workspace", "change into one, or use -C DIR; 'layerfs mount REV' makes one"
            )
        return found

    @property
    def at(self) -> CommitId | None:
        """What ``@`` stands for: the last commit of the workspace the caller stands in, None outside of one."""
        found = self.find_workspace()
        return None if found is None else found.last

    def stand_near(self, word: str | None) -> None:
        """Look for the store from the directory that ``word`` names, if it names one: it may lie in a workspace."""
        path = self.context.absolute(word) if word else b""
        if self._store is None and word and os.path.isdir(path):
            self.context = self.context._replace(cwd=path)

    def step_out(self) -> None:
        """Leave the working directory, which may be in the workspace that is to be unmounted."""
        os.chdir("/")

    def split_words(self, words: Sequence[str] | None) -> tuple[list[str], list[bytes]]:
        """Cut the words of a command that takes ``REV... [-- PATH...]`` into revisions and paths in the tree.

        Without ``--`` paths begin at the first word that is no revision but names a file that is there, as in Git.
        """
        given = list(words or ())
        if "--" in self.argv:
            cut = len(given) - min(len(self.argv) - self.argv.index("--") - 1, len(given))
        else:
            cut = next((at for at, word in enumerate(given) if self._is_only_path(word)), len(given))
        return given[:cut], [self.tree_path(word) for word in given[cut:]]

    def _is_only_path(self, word: str) -> bool:
        if not os.path.lexists(os.path.join(self.context.cwd, os.fsencode(word))):
            return False
        from layerfs.history.revision import resolve

        try:
            resolve(self.store, word.partition("..")[0] or word, self.at)
        except LayerfsError:
            return True
        return False

    def tree_path(self, word: str) -> bytes:
        """Return a path given on the command line as a path in the tree.

        Inside a workspace it counts from the working directory, as every tool there does; elsewhere from the root.
        """
        top = b"/"
        path = os.path.join(top, os.fsencode(word))
        record = self.find_workspace()
        if record is not None:
            top = record.path or self.store.format.source or top
            here = os.path.realpath(self.context.cwd)
            top = os.path.realpath(top)
            path = os.path.join(here if is_inside(here, top) else top, os.fsencode(word))
        path = os.path.normpath(path)
        if not is_inside(path, top):
            raise UsageError(f"{quote(word)} is outside of the workspace {quote(top)}")
        return path[len(top) :].strip(b"/")

    def show_store_notes(self) -> None:
        """Tell on stderr what the store had to say: what was recovered, what it cannot do where it lies."""
        for note in self._store.notes if self._store is not None else ():
            output.write_note(f"layerfs: {note}")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Give a listener for long work: a bar if stderr is a terminal and the answer is for people, else silence."""
        if not self.context.stderr_tty or self.as_json:
            yield SILENT
            return
        from layerfs.cli.render import open_bar

        with open_bar(self.context.columns) as bar:
            yield bar


def run(row: Command, argv: list[str], context: Context) -> int:
    """Run one command from its argument list (without its own name) and return the exit code."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in options or "--json-lines" in options
    signal.signal(signal.SIGTERM, _raise_terminated)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _raise_hung_up)
    sys.setrecursionlimit(RECURSION_LIMIT)
    if context.env.get("LAYERFS_NATIVE") == "0":
        from layerfs.kernels import native

        native.select(kernel=False)
    try:
        return _run(row, argv, context)
    except LayerfsError as error:
        return output.report(error, row.schema, as_json)
    except BrokenPipeError:
        output.silence()
        return output.EXIT_PIPE
    except OSError as error:
        known = explain_oserror(error)
        if known is None:
            return _report_bug(row, as_json)
        return output.report(known, row.schema, as_json)
    except MemoryError:
        return output.report(Unable("not enough memory for this operation"), row.schema, as_json)
    except RecursionError:
        return output.report(
            Unable("directories are nested too deeply for this machine"), row.schema, as_json
        )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Terminated as stop:
        return stop.exit_code
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            return _report_bug(row, as_json)
        why = Unable("the system allows no more threads", "raise its limit of processes ('ulimit -u')")
        return output.report(why, row.schema, as_json)
    except Exception:
        return _report_bug(row, as_json)


def _run(row: Command, argv: list[str], context: Context) -> int:
    call = plain_call(row, load(row), argv)
    if call is None:
        from layerfs.cli.parsing import parse

        found = parse(row, argv)
        if not isinstance(found, Call):
            text = output.encode_text(found.lay_out(context.columns))
            output.write_reply(Reply({}, text), row.schema, False, False)
            return 0
        call = found
    if call.options.directory is not None:
        context = _enter_directory(call.options.directory, context)
    invocation = Invocation(row, context, tuple(argv), call.options)
    with invocation.open_resources:
        if row.needs is not Needs.NONE:
            invocation.store  # noqa: B018  (a command that needs a store fails before it does anything else)
        if row.needs is Needs.WORKSPACE:
            invocation.workspace  # noqa: B018
        gc.freeze()
        gc.enable()
        reply = call.body(invocation, **call.arguments)
        output.write_reply(reply, row.schema, invocation.as_json, invocation.nul, invocation.lines)
        invocation.show_store_notes()
    return reply.exit_code


def _enter_directory(directory: str, context: Context) -> Context:
    try:
        os.chdir(directory)
    except OSError as error:
        raise NotFound(f"cannot enter directory {quote(directory)}: {reason(error)}") from None
    return context._replace(cwd=current_directory({}))


def _report_bug(row: Command, as_json: bool) -> int:
    """Show the exception in full: nobody can report a bug from its last line."""
    import traceback

    traceback.print_exc()
    bug = InternalError("this is a bug in layerfs", "please report it with the lines above")
    return output.report(bug, row.schema, as_json)


def _raise_terminated(signum: int, stack: object) -> NoReturn:
    raise Terminated


def _raise_hung_up(signum: int, stack: object) -> NoReturn:
    raise HungUp
