"""Output, parsing, discovery and the mapping of exceptions, without a process around them."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from layerfs.cli import frame, output, parsing
from layerfs.cli import main as cli
from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.plainline import plain_call
from layerfs.cli.registry import NONE, Command
from layerfs.context import Context, SteppingClock, read_context
from layerfs.errors import (
    LayerfsError,
    NoSpace,
    NotAStore,
    NotFound,
    Refused,
    StoreIoFailed,
    Unable,
    UsageError,
)
from layerfs.refusals import explain_oserror
from layerfs.store import layout


class Mode(Enum):
    """How."""

    FAST = "fast"
    SAFE = "safe"


def body(
    inv: Invocation,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Paths.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 1,
    mode: Annotated[Mode, typer.Option("--mode", metavar="HOW", help="How.")] = Mode.SAFE,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Tags.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Even so.")] = False,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")] = None,
) -> Reply:
    """Do it."""
    return Reply({})


ROW = Command("probe", "probe", "plumbing", "probe", NONE, nul=True)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a function in place of a command and return a way to set it."""

    def put(function: Any) -> Command:
        for module in (parsing, frame):
            monkeypatch.setattr(module, "load", lambda row: function)
        return ROW

    put(body)
    return put


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[io.BytesIO, io.BytesIO]:
    """Catch the bytes of stdout and stderr."""
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(output, "stdout", lambda: out)
    monkeypatch.setattr(output, "stderr", lambda: err)
    return out, err


def context(cwd: Path, **env: str) -> Context:
    return Context(env=env, clock=SteppingClock(5), cwd=os.fsencode(cwd), uid=os.getuid(), columns=80)


def test_words_become_values_without_pydantic(probe: Any) -> None:
    loaded = "pydantic" in sys.modules
    call = parsing.parse(
        ROW, ["a", "--mode", "fast", "-n", "3", "--tag", "x", "--tag=y", "-z", "--", "--force"]
    )
    assert isinstance(call, parsing.Call)
    assert call.arguments == {
        "paths": ["a", "--force"],
        "count": 3,
        "mode": Mode.FAST,
        "tags": ["x", "y"],
        "force": False,
        "note": None,
    }
    assert call.options == parsing.GlobalOptions(nul=True)
    assert loaded or "pydantic" not in sys.modules


LINES = [
    [],
    ["a"],
    ["a", "-", "b"],
    ["--count", "3", "a", "--force"],
    ["-n", "2", "-n", "4"],
    ["--mode=fast", "--tag", "x", "--tag=y=z"],
    ["--store", "s", "-C", "d", "--json", "-z"],
    ["--", "--force", "--", "a"],
    ["--force", "--", "-n"],
]
ODD_LINES = [["--note="], ["--note", ""], ["-n3"], ["--tag", "-x"], ["-zz"], ["--tag", "--", "a"]]
WRONG_LINES = [
    ["-n", "x"],
    ["-n=3"],
    ["-n", "0"],
    ["--mode", "slow"],
    ["--nothing"],
    ["--tag"],
    ["--force=yes"],
    ["--forc"],
    ["-zq"],
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_plain_line_means_without_the_parser_what_it_means_with_it(words: list[str], parsed: Any) -> None:
    plain = plain_call(ROW, body, words)
    assert plain is not None
    assert plain == parsed(words)


@pytest.mark.parametrize("words", ODD_LINES, ids=" ".join)
def test_what_is_not_plain_is_left_to_the_parser(words: list[str], parsed: Any) -> None:
    assert plain_call(ROW, body, words) in (None, parsed(words))


@pytest.mark.parametrize("words", WRONG_LINES, ids=" ".join)
def test_what_is_wrong_is_left_to_the_parser(words: list[str]) -> None:
    assert plain_call(ROW, body, words) is None


def pair(
    inv: Invocation,
    first: Annotated[str, typer.Argument(metavar="A", help="The first.")],
    rest: Annotated[list[str], typer.Argument(metavar="B", help="More.")],
    last: Annotated[str, typer.Argument(metavar="C", help="The last.")],
) -> Reply:
    """Do it."""
    return Reply({})


def optional(
    inv: Invocation,
    first: Annotated[str, typer.Argument(metavar="A", help="The first.")],
    second: Annotated[str | None, typer.Argument(metavar="B", help="The second.")] = None,
) -> Reply:
    """Do it."""
    return Reply({})


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("function", [pair, optional])
def test_words_go_to_the_same_arguments(probe: Any, function: Any, count: int) -> None:
    words = list("abcdef"[:count])
    plain = plain_call(probe(function), function, words)
    try:
        call = parsing.parse(ROW, words)
    except UsageError:
        assert plain is None
    else:
        assert plain == call


@pytest.fixture
def parsed(probe: Any) -> Any:
    """Return what Typer makes of a line of the probe."""
    return lambda words: parsing.parse(ROW, words)


def test_defaults_and_global_options(probe: Any) -> None:
    call = parsing.parse(ROW, ["--store", "s", "-C", "d", "--json"])
    assert isinstance(call, parsing.Call)
    assert call.arguments == {
        "paths": None,
        "count": 1,
        "mode": Mode.SAFE,
        "tags": None,
        "force": False,
        "note": None,
    }
    assert call.options == parsing.GlobalOptions("s", "d", True, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "x"], "invalid value for option '--count': 'x' is not a number"),
        (["-n", "0"], "invalid value for option '--count': '0' is not at least 1"),
        (["--mode", "slow"], "invalid value for option '--mode': 'slow' is not one of fast, safe"),
        (["--nothing"], "no such option '--nothing'"),
        (["--count"], "option '--count' requires an argument"),
        (["a", ""], "argument 'PATH' is an empty word"),
        (["--tag="], "option '--tag' is an empty word"),
        (["--store", ""], "option '--store' is an empty word"),
    ],
)
def test_usage_errors(probe: Any, words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsing.parse(ROW, words)
    assert caught.value.message == message
    assert caught.value.hint


def test_a_missing_argument_is_named(probe: Any) -> None:
    def needs(
        inv: Invocation, rev: Annotated[str, typer.Argument(metavar="REV", help="A revision.")]
    ) -> Reply:
        """Do it."""
        return Reply({})

    needs.__annotations__ = {
        "inv": Invocation,
        "rev": Annotated[str, typer.Argument(metavar="REV", help="A revision.")],
        "return": Reply,
    }
    probe(needs)
    with pytest.raises(UsageError, match="missing argument 'REV'"):
        parsing.parse(ROW, [])


def test_bytes_that_are_not_utf8_get_a_twin() -> None:
    data = {"path": b"a\xff", "fine": b"\xc3\xa9", "paths": [{"path": b"x"}, {"path": b"\xfe"}]}
    document = json.loads(output.document("s/1", "ok", data, ()))
    assert document["data"] == {
        "path": "a\\xff",
        "path_b64": "Yf8=",
        "fine": "é",
        "paths": [{"path": "x"}, {"path": "\\xfe", "path_b64": "/g=="}],
    }
    with pytest.raises(TypeError):
        output.document("s/1", "ok", {"paths": [b"x"]}, ())


def test_items_are_lines_and_the_document_is_the_last(streams: tuple[io.BytesIO, io.BytesIO]) -> None:
    """Each item is out before the next is asked for, so that a list of any length takes the memory of one item."""
    out = streams[0]

    def items() -> Iterator[dict[str, int]]:
        for number in range(2):
            assert out.getvalue().count(b"\n") == number
            yield {"number": number}

    reply = Reply({"items": items(), "rest": b"\xff"}, prompt=True)
    output.write_reply(reply, "s/1", True, False, "items")
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"number": 0},
        {"number": 1},
        {"schema": "s/1", "status": "ok", "data": {"rest": "\\xff", "rest_b64": "/w=="}, "errors": []},
    ]


def test_pieces_are_written_as_they_come(streams: tuple[io.BytesIO, io.BytesIO]) -> None:
    output.write_reply(Reply({}, text=iter([b"a\n", b"b\n"]), notes=("note",)), "s/1", False, False)
    assert (streams[0].getvalue(), streams[1].getvalue()) == (b"a\nb\n", b"note\n")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EIO, StoreIoFailed),
        (errno.EROFS, StoreIoFailed),
        (errno.EACCES, Refused),
        (errno.ENOENT, NotFound),
        (errno.EMFILE, Unable),
    ],
)
def test_refusals_of_the_system_are_one_line(number: int, kind: type[LayerfsError]) -> None:
    found = explain_oserror(OSError(number, os.strerror(number), "some\nfile"))
    assert type(found) is kind
    assert "\n" not in found.message and "some\\nfile" in found.message


@pytest.mark.parametrize(
    ("failure", "code", "slug"),
    [
        (NotFound("no such thing"), 10, "not-found"),
        (OSError(errno.ENOSPC, "No space left on device"), 40, "no-space"),
        (MemoryError(), 20, "unable"),
        (RecursionError(), 20, "unable"),
        (RuntimeError("can't start new thread"), 20, "unable"),
        (RuntimeError("oops"), 70, "bug"),
        (ZeroDivisionError("oops"), 70, "bug"),
        (OSError(errno.EBADF, "Bad file descriptor"), 70, "bug"),
        (KeyboardInterrupt(), 130, None),
        (frame.Terminated(), 143, None),
        (frame.HungUp(), 129, None),
    ],
)
def test_exceptions_become_exit_codes_and_documents(
    probe: Any,
    streams: tuple[io.BytesIO, io.BytesIO],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
    slug: str | None,
) -> None:
    def fails(inv: Invocation) -> Reply:
        """Fail."""
        raise failure

    fails.__annotations__ = {"inv": Invocation, "return": Reply}
    assert frame.run(probe(fails), ["--json"], context(tmp_path)) == code
    document = streams[0].getvalue()
    assert (json.loads(document)["errors"][0]["code"] if document else None) == slug
    assert ("Traceback" in capfd.readouterr().err) == (code == 70)


def test_the_reader_going_away_is_quiet(probe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(inv: Invocation) -> Reply:
        """Break."""
        raise BrokenPipeError

    breaks.__annotations__ = {"inv": Invocation, "return": Reply}
    silenced: list[bool] = []
    monkeypatch.setattr(output, "silence", lambda: silenced.append(True))
    assert frame.run(probe(breaks), [], context(tmp_path)) == 141
    assert silenced


def test_global_options_before_the_command() -> None:
    words = ["--store", "a b", "-Cdir", "--json", "help", "--store"]
    assert cli.split_globals(words) == (words[:4], words[4:])


def test_the_clock_of_tests_steps_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERFS_CLOCK", "7")
    here = read_context()
    assert [here.now_ns(), here.now_ns()] == [7, 1_000_000_007]
    monkeypatch.setenv("LAYERFS_CLOCK", "noon")
    with pytest.raises(UsageError, match="LAYERFS_CLOCK"):
        read_context()


def make_store(path: Path, source: Path | None = None) -> Path:
    from layerfs.store.store import Store

    Store.create(
        os.fsencode(path), source=None if source is None else os.fsencode(source), clock=lambda: 0
    ).close()
    return path


def test_the_nearest_pointer_wins(tmp_path: Path) -> None:
    outer, inner = make_store(tmp_path / "outer"), make_store(tmp_path / "inner")
    project = tmp_path / "project"
    (project / "sub" / "deep").mkdir(parents=True)
    (project / ".layerfs").write_text(f"{outer}\n")
    assert layout.find_store(context(project / "sub" / "deep"), None) == os.fsencode(outer)
    (project / "sub" / ".layerfs").write_text("../../inner\n")
    assert layout.find_store(context(project / "sub" / "deep"), None) == os.fsencode(inner)
    assert layout.find_store(context(project / "sub", LAYERFS_STORE=str(outer)), None) == os.fsencode(outer)
    assert layout.find_store(context(project, LAYERFS_STORE="nowhere"), "../inner") == os.fsencode(inner)


def test_a_pointer_is_a_small_regular_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("/somewhere\n")
    (tmp_path / ".layerfs").symlink_to("target")
    assert layout.read_pointer(os.fsencode(tmp_path)) is None
    (tmp_path / ".layerfs").unlink()
    os.mkfifo(tmp_path / ".layerfs")
    assert not layout.read_pointer(os.fsencode(tmp_path))


def test_without_a_pointer_the_stores_are_asked(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    (project / "sub").mkdir(parents=True)
    (data / "layerfs").mkdir(parents=True)
    here = context(project / "sub", XDG_DATA_HOME=str(data))
    with pytest.raises(NotAStore, match="no store belongs to"):
        layout.find_store(here, None)
    (data / "layerfs" / "broken").mkdir()
    (data / "layerfs" / "broken" / "format").write_bytes(b"\xff")
    store = make_store(Path(os.fsdecode(layout.default_store_path(here, os.fsencode(project)))), project)
    assert store.parent == data / "layerfs" and store.name.startswith("project-")
    assert layout.find_store(here, None) == os.fsencode(store)


def test_a_store_is_never_placed_inside_what_it_captures(tmp_path: Path) -> None:
    here = context(tmp_path, HOME=str(tmp_path))
    with pytest.raises(Unable, match="inside the directory to capture"):
        layout.default_store_path(here, os.fsencode(tmp_path))


def test_a_default_mount_point_belongs_to_its_store(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    inside = store / "mnt" / "fix-a" / "src"
    inside.mkdir(parents=True)
    assert layout.find_store(context(inside), None) == os.fsencode(store)


def test_a_mounted_workspace_is_found_by_its_upper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "my store")
    upper = str(store / "workspaces" / "a" / "upper").replace(" ", "\\040")
    place = tmp_path / "at"
    place.mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/vda rw\n"
        f"2 1 0:30 / {place} rw - overlay overlay rw,lowerdir=/x,upperdir={upper},workdir=/y\n"
    )
    monkeypatch.setattr(layout, "_MOUNT_TABLE", os.fsencode(table))
    assert layout.find_store(context(place / "sub"), None) == os.fsencode(store)


def test_only_commands_that_exist_are_offered() -> None:
    with pytest.raises(UsageError) as caught:
        cli.choose(["shw-ref"], context(Path("/")))
    assert caught.value.hint == "did you mean 'show-ref'?"
