"""Whatever stands on the command line: one clear line, a documented exit code, and never a traceback.

Commands run inside this process, so that thousands of lines can be tried; that they behave the same in a process of their
own is what the transcripts show.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import make_store, write_file

from layerfs.cli.main import main
from layerfs.cli.registry import COMMANDS, Needs, Role
from layerfs.errors import EXIT_BUG, EXIT_DAMAGED

ODD = (
    "",
    " ",
    "@",
    "@~",
    "@~99999999999999999999",
    "base^9",
    "base@{0}",
    "base@{99}",
    "base@{" + "9" * 40 + "}",
    "main@{1}",
    "base~" + "9" * 5000,
    "^",
    "^base",
    "..",
    "base..",
    "..base",
    "a...b",
    ":",
    ":x",
    "base:",
    "base:/",
    "base:../x",
    "base:file/..",
    "base:nothing/there",
    "x\udcffy",
    "base:\udcff",
    "a\nb",
    "a\tb'c\\",
    "L0",
    "L1",
    "L" + "9" * 30,
    "L" + "9" * 5000,
    "ffffff",
    "FFFFFFFF",
    "0" * 64,
    "refs/main",
    "refs/heads/base",
    "refs/heads/",
    "refs/heads/x\udcff",
    "HEAD",
    "-",
    "base@{x}",
    "a" * 300,
    "a/" * 3000,
    "base:" + "a/" * 3000,
    "/dev/null",
    "\u0661\u0662",
    "\u202ebidi",
)

LINES = (
    "log",
    "show",
    "rev-parse",
    "rev-parse --verify",
    "rev-list",
    "rev-list base --",
    "ls-tree",
    "ls-extents",
    "cat-file -p",
    "cat-file -t",
    "cat-file chunk",
    "cat-file nonsense",
    "diff",
    "diff base",
    "diff base base --",
    "diff-tree base",
    "merge-base base",
    "merge-base --is-ancestor base",
    "blame",
    "blame base",
    "blame file -L",
    "reflog",
    "reflog -n",
    "stats",
    "fork",
    "fork new --from",
    "fork new --count",
    "tag",
    "tag name",
    "tag -d",
    "branch",
    "branch -d",
    "branch reset base",
    "branch reset",
    "branch -m base",
    "update-ref refs/heads/new",
    "update-ref",
    "update-ref -d",
    "commit-tree",
    "commit-tree base -p",
    "commit-tree base --about",
    "ls-pack",
    "verify-pack --fast",
    "chunk-file",
    "hash-object",
    "hash-object -t",
    "write-tree",
    "config get",
    "config set lane.timeout",
    "config set",
    "config unset",
    "log -n",
    "show-ref",
    "layers",
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a store that has a branch, and nothing of this machine's surroundings."""
    with make_store(tmp_path / "store") as store:
        write_file(store, "base", b"file", b"one\n")
        write_file(store, "base", b"dir/file", b"two\n")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("LAYERFS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("LAYERFS_AUTHOR", "Test <test@example.org>")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", open(os.devnull, encoding="utf-8"))
    before = signal.getsignal(signal.SIGTERM)
    yield work
    signal.signal(signal.SIGTERM, before)
    gc.unfreeze()


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> tuple[int, bytes, bytes]:
    """Run a command in this process."""
    code = main(list(arguments))
    return code, *capfdbinary.readouterr()


@pytest.mark.parametrize("line", LINES)
def test_odd_words(line: str, place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for word in ODD:
        for last in ((word,), ("--", word)) if word.startswith("-") or word in ODD[-5:] else ((word,),):
            code, _, err = run(capfdbinary, *line.split(), *last)
            assert code not in (EXIT_BUG, EXIT_DAMAGED), (line, last, err)
            assert b"Traceback" not in err, (line, last)
            errors = [text for text in err.split(b"\n") if text.startswith(b"layerfs: error: ")]
            if code not in (0, 1):
                assert len(errors) == 1 and err.count(b"\n") <= 2, (line, last, code, err)
            else:
                assert not errors, (line, last, err)


NEEDS_STORE = [row for row in COMMANDS if row.role is Role.PLUMBING and row.needs is not Needs.NONE]


@pytest.mark.parametrize("row", NEEDS_STORE, ids=lambda row: row.name)
def test_no_store(
    row: object, place: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERFS_STORE", "/dev/null")
    words = {"diff-tree": "a b", "merge-base": "a b", "ls-tree": "a", "ls-extents": "a", "rev-list": "a"}
    words |= {"write-tree": ".", "commit-tree": "a", "read-extent": "a 0", "splice-extent": "a 0 0"}
    name = row.name  # type: ignore[attr-defined]
    code, out, err = run(capfdbinary, name, *words.get(name, "").split())
    assert (code, out) == (10, b"") and err.startswith(b"layerfs: error: cannot open store '/dev/null'"), err


READERS = (
    "rev-parse --stdin",
    "cat-file --batch",
    "update-ref --stdin",
    "hash-object --stdin-paths",
    "hash-object -w --stdin",
)


@pytest.mark.parametrize("line", READERS)
@pytest.mark.parametrize("nul", [(), ("-z",)], ids=["lines", "nul"])
def test_odd_records(
    line: str,
    nul: tuple[str, ...],
    place: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = b"\0" if nul else b"\n"
    for word in (*map(os.fsencode, (word for word in ODD if "\n" not in word or nul)), b"a\0b", b"\xff\xfe"):
        reading, writing = os.pipe()
        os.write(writing, word + end)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            saved = os.dup(0)
            os.dup2(stream.fileno(), 0)
            monkeypatch.setattr("sys.stdin", os.fdopen(os.dup(0), "r", encoding="utf-8"))
            try:
                code, _, err = run(capfdbinary, *line.split(), *nul)
            finally:
                os.dup2(saved, 0)
                os.close(saved)
        assert code not in (EXIT_BUG, EXIT_DAMAGED) and b"Traceback" not in err, (line, word, err)


def test_damage_is_reported_with_its_place(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    pack = place.parent / "store" / "packs" / "00000001.pack"
    data = bytearray(pack.read_bytes())
    data[120:124] = b"????"
    pack.write_bytes(data)
    code, _, err = run(capfdbinary, "show", "base:file")
    assert code == EXIT_DAMAGED and b"pack 00000001" in err and b"fsck" in err
    code, out, _ = run(capfdbinary, "fsck")
    assert code == 1 and b"damaged: pack 00000001" in out
    code, out, _ = run(capfdbinary, "verify-pack", "00000001")
    assert code == 1 and out.startswith(b"00000001 damaged")
