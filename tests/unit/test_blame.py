"""Blame on histories built by hand: field case D12, renames, binaries, line ranges, merges that decide something."""

from __future__ import annotations

import pytest
from trees import Spec, tree

from layerfs.errors import NotFound, UsageError
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.merge.blame import blame
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.environment import put_root
from layerfs.objects.memory import MemoryObjects


class History:
    """Commits with names, one second apart."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.reader = CommitReader(self.objects)
        self.commits: dict[str, CommitId] = {}

    def add(
        self, name: str, files: dict[str, Spec], *parents: str, renames: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        root = put_root(self.objects, tree(self.objects, files))
        above = tuple(self.commits[parent] for parent in parents)
        when = len(self.commits) * 10**9
        commit = Commit(root, above, when, 0, "a", name, renames=renames)
        self.commits[name] = put_commit(self.objects, commit)

    def blame(self, name: str, path: bytes = b"f", first_parent: bool = False) -> list[str]:
        """Return, line by line, the commit's name with the origin line (and the origin path if it differs)."""
        names = {oid: commit for commit, oid in self.commits.items()}
        lines = []
        for part in blame(self.reader, self.commits[name], path, first_parent=first_parent):
            where = "" if part.path == path else f" {part.path.decode()}"
            lines += [f"{names[part.commit]}:{part.origin_line + line}{where}" for line in range(part.lines)]
        return lines


@pytest.fixture
def history() -> History:
    found = History()
    found.add("first", {"f": b"a\nb\nc\n"})
    return found


def test_each_line_goes_to_the_commit_that_wrote_it(history: History) -> None:
    history.add("second", {"f": b"a\nB\nc\nd\n"}, "first")
    history.add("other", {"f": b"a\nB\nc\nd\n", "g": b"x\n"}, "second")
    assert history.blame("other") == ["first:1", "second:2", "first:3", "second:4"]


def test_a_revert_credits_the_revert(history: History) -> None:
    history.add("bad", {"f": b"a\nX\nc\n"}, "first")
    history.add("revert", {"f": b"a\nb\nc\n"}, "bad")
    assert history.blame("revert") == ["first:1", "revert:2", "first:3"]


def test_whitespace_and_reformatting_are_changes_of_their_lines_only(history: History) -> None:
    history.add("space", {"f": b"a\nb \nc\n"}, "first")
    history.add("indent", {"f": b"    a\nb \nc\n"}, "space")
    assert history.blame("indent") == ["indent:1", "space:2", "first:3"]


def test_a_clean_merge_is_blamed_for_nothing_and_a_decision_for_its_line(history: History) -> None:
    history.add("ours", {"f": b"A\nb\nc\n"}, "first")
    history.add("theirs", {"f": b"a\nb\nC\n"}, "first")
    history.add("clean", {"f": b"A\nb\nC\n"}, "ours", "theirs")
    assert history.blame("clean") == ["ours:1", "first:2", "theirs:3"]
    history.add("decided", {"f": b"A\nboth\nC\n"}, "ours", "theirs")
    assert history.blame("decided") == ["ours:1", "decided:2", "theirs:3"]
    assert history.blame("clean", first_parent=True) == ["ours:1", "first:2", "clean:3"]


def test_a_recorded_rename_is_followed_with_its_edit(history: History) -> None:
    history.add("moved", {"d": {"g": b"a\nb\nnew\n"}}, "first", renames=((b"f", b"d/g"),))
    assert history.blame("moved", b"d/g") == ["first:1 f", "first:2 f", "moved:3"]


def test_an_exact_move_is_followed(history: History) -> None:
    text = b"".join(b"line %d\n" % number for number in range(10))
    history.add("long", {"f": text}, "first")
    history.add("moved", {"g": text}, "long")
    history.add("after", {"g": text + b"end\n"}, "moved")
    assert history.blame("after", b"g") == [f"long:{line} f" for line in range(1, 11)] + ["after:11"]


def test_a_binary_is_one_record(history: History) -> None:
    history.add("binary", {"f": b"\0one"}, "first")
    history.add("kept", {"f": b"\0one", "g": b""}, "binary")
    (record,) = blame(history.reader, history.commits["kept"], b"f")
    assert (record.commit, record.final_line, record.lines) == (history.commits["binary"], 0, 1)


def test_line_ranges(history: History) -> None:
    history.add("second", {"f": b"a\nB\nc\n"}, "first")
    (record,) = blame(history.reader, history.commits["second"], b"f", start=2, end=2)
    assert (record.commit, record.final_line, record.origin_line) == (history.commits["second"], 2, 2)
    with pytest.raises(UsageError):
        blame(history.reader, history.commits["second"], b"f", start=4)


def test_what_is_no_file_is_refused(history: History) -> None:
    history.add("dir", {"d": {"x": b""}}, "first")
    for path in (b"d", b"gone", b"d/x/y", b""):
        with pytest.raises(NotFound):
            blame(history.reader, history.commits["dir"], path)
    assert blame(history.reader, history.commits["dir"], b"d/x") == ()


def test_unchanged_files_are_not_read(history: History) -> None:
    last = "first"
    for number in range(200):
        history.add(f"n{number}", {"f": b"a\nb\nc\n", "other": b"%d\n" % number}, last)
        last = f"n{number}"
    history.objects.reads = 0
    assert history.blame(last) == ["first:1", "first:2", "first:3"]
    assert history.objects.reads <= 201 * 3 + 5
