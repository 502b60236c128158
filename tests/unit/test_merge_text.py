"""Text merge: the table of cases by hand, and git merge-file as the oracle for many more."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from layerfs.merge.linediff import count_lines, split_lines
from layerfs.merge.textmerge import (
    TEXT_MAX_BYTES,
    TEXT_MAX_LINES,
    Labels,
    Style,
    TextMerge,
    is_text,
    marker_size,
    merge,
    render,
)

LABELS = Labels(b"base", b"ours", b"theirs")
BASE = b"".join(b"line%d\n" % number for number in range(10))


def edited(**lines: bytes) -> bytes:
    parts = split_lines(BASE)
    for name, line in lines.items():
        parts[int(name[1:])] = line
    return b"".join(parts)


def test_lines_end_with_newline_only() -> None:
    data = b"a\rb\n\x0bc\x0c\n\xe2\x80\xa8d\x85\x1c"
    assert split_lines(data) == [b"a\rb\n", b"\x0bc\x0c\n", b"\xe2\x80\xa8d\x85\x1c"]
    assert split_lines(b"") == [] and split_lines(b"\n") == [b"\n"]
    assert [count_lines(text) for text in (b"", b"\n", b"a", b"a\nb")] == [0, 1, 1, 2]


def test_what_is_text() -> None:
    assert is_text(b"") and is_text("Größe".encode("latin-1")) and is_text(b"x" * 8000 + b"\0")
    assert not is_text(b"x" * 7999 + b"\0")
    assert not is_text("text".encode("utf-16"))
    assert not is_text(b"x" * (TEXT_MAX_BYTES + 1))
    assert not is_text(b"\n" * (TEXT_MAX_LINES + 1))


def test_changes_with_an_unchanged_line_between_them_combine() -> None:
    assert merge(BASE, edited(_2=b"O\n"), edited(_4=b"T\n")).clean == edited(_2=b"O\n", _4=b"T\n")


def test_changes_of_adjacent_lines_conflict() -> None:
    result = merge(BASE, edited(_2=b"O\n"), edited(_3=b"T\n"))
    assert result.clean is None
    (hunk,) = result.hunks
    assert hunk[:6] == (2, 4, 2, 4, 2, 4)


def test_the_same_insertion_is_made_once() -> None:
    both = BASE.replace(b"line3\n", b"line3\nnew\n")
    assert merge(BASE, both, both + b"more\n").clean == both + b"more\n"


def test_deleting_an_edited_line_conflicts() -> None:
    assert merge(BASE, edited(_5=b""), edited(_5=b"T\n")).clean is None


def test_a_missing_last_newline_survives_and_never_glues_a_marker() -> None:
    assert merge(BASE, edited(_1=b"O\n"), BASE[:-1]).clean == edited(_1=b"O\n")[:-1]
    shown = render(merge(b"a\n", b"o", b"t"), LABELS, "merge")
    assert shown == b"<<<<<<< ours\no\n=======\nt\n>>>>>>> theirs\n"


def test_markers_follow_crlf() -> None:
    shown = render(merge(b"a\r\nb\r\n", b"a\r\no\r\n", b"a\r\nt\r\n"), LABELS, "diff3")
    assert b"\n" not in shown.replace(b"\r\n", b"")


def test_markers_grow_when_the_text_has_some() -> None:
    ours, theirs = b"<<<<<<< not one\no\n", b"t\n"
    assert marker_size(ours, theirs) == 8
    assert b"<" * 8 + b" ours\n" in render(merge(b"", ours, theirs), LABELS)
    assert marker_size(b"a <<<<<<<<<\n") == 7


def test_styles() -> None:
    ours, theirs = b"a\nsame\no\nz\n", b"a\nsame\nt\nz\n"
    result = merge(b"a\nb\nz\n", ours, theirs)
    assert render(result, LABELS, "merge") == (b"a\nsame\n<<<<<<< ours\no\n=======\nt\n>>>>>>> theirs\nz\n")
    assert render(result, LABELS, "zdiff3") == (
        b"a\nsame\n<<<<<<< ours\no\n||||||| base\nb\n=======\nt\n>>>>>>> theirs\nz\n"
    )
    assert render(result, LABELS, "diff3") == (
        b"a\n<<<<<<< ours\nsame\no\n||||||| base\nb\n=======\nsame\nt\n>>>>>>> theirs\nz\n"
    )


def test_sides_of_a_conflict_that_are_equal_are_no_conflict() -> None:
    # two different ways to say the same: the diffs overlap without being equal
    assert merge(b"a\nb\nc\n", b"x\n", b"x\n").clean == b"x\n"


# -- git as the oracle -------------------------------------------------------------------------------------------------

WORDS = (b"", b"{", b"}", b"\t")


class Triples:
    """Random base, ours and theirs: few distinct lines and many, close edits and far ones, all line ends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def line(self, alphabet: int) -> bytes:
        if self.random.random() < 0.1:
            return self.random.choice(WORDS)
        return b"l%d" % self.random.randrange(alphabet)

    def edit(self, lines: list[bytes], alphabet: int) -> list[bytes]:
        edited_lines = list(lines)
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 4))):
            at = self.random.randrange(len(edited_lines) + 1)
            action = self.random.random()
            if action < 0.35:
                edited_lines[at:at] = [self.line(alphabet) for _ in range(self.random.randrange(1, 4))]
            elif action < 0.65:
                del edited_lines[at : at + self.random.randrange(1, 4)]
            else:
                edited_lines[at : at + 1] = [b"n%d" % self.random.randrange(3)]
        return edited_lines

    def triple(self) -> list[bytes]:
        choose = self.random.choice
        alphabet, length = choose((2, 3, 8, 50, 1000)), choose((3, 8, 20, 60, 200))
        base = [self.line(alphabet) for _ in range(self.random.randrange(length + 1))]
        ours = self.edit(base, alphabet)
        theirs = self.edit(ours if self.random.random() < 0.15 else base, alphabet)
        ends = [choose((b"\n", b"\n", b"\n", b"\r\n"))] * 3
        if self.random.random() < 0.1:
            ends = [choose((b"\n", b"\r\n")) for _ in range(3)]
        texts = [
            b"".join(line + end for line in lines)
            for lines, end in zip((base, ours, theirs), ends, strict=True)
        ]
        return [text[:-1] if self.random.random() < 0.15 else text for text in texts]


def git_merge_file(directory: Path, texts: list[bytes], style: Style) -> tuple[bool, bytes]:
    for name, text in zip(("base", "ours", "theirs"), texts, strict=True):
        (directory / name).write_bytes(text)
    command = ["git", "merge-file", "-p", "-L", "ours", "-L", "base", "-L", "theirs"]
    if style != "merge":
        command.append(f"--{style}")
    done = subprocess.run(
        [*command, "ours", "base", "theirs"], cwd=directory, capture_output=True, check=False
    )
    assert done.returncode < 128, done.stderr
    return done.returncode == 0, done.stdout


def compare_with_git(directory: Path, seed: int, triples: int) -> Counter[str]:
    """Compare ``triples`` merges in every style; fail on any difference outside the listed class."""
    source = Triples(seed)
    seen: Counter[str] = Counter()
    for number in range(triples):
        texts = source.triple()
        result = merge(*texts)
        style: Style = get_args(Style)[number % 3] if number % 2 else "merge"
        git_clean, git_text = git_merge_file(directory, texts, style)
        ours_clean = result.clean is not None
        equal_sides = any(region.take == "both" for region in result.regions)
        if style != "merge" and equal_sides:
            # the listed class: git's diff3 styles show a conflict whose two sides are equal; cleanliness here never
            # depends on the style, and git's default style has none either
            seen["equal sides"] += 1
            git_clean, git_text = git_merge_file(directory, texts, "merge")
            style = "merge"
        assert ours_clean == git_clean, texts
        if not (equal_sides and not ours_clean and style != "merge"):
            assert render(result, LABELS, style) == git_text, (style, texts)
        seen["clean" if git_clean else "conflict"] += 1
        check_laws(texts, result)
    return seen


def check_laws(texts: list[bytes], result: TextMerge) -> None:
    base, ours, theirs = texts
    mirrored = merge(base, theirs, ours)
    assert mirrored.clean == result.clean
    swapped = [
        (h.base_start, h.base_end, h.theirs_start, h.theirs_end, h.ours_start, h.ours_end)
        for h in mirrored.hunks
    ]
    assert swapped == [tuple(hunk)[:6] for hunk in result.hunks]
    # no loss: every line of a side is in the rendered result, or was in the base and removed by the other side
    shown = set(split_lines(render(result, LABELS, "diff3").replace(b"\r\n", b"\n")))
    known = {line.rstrip(b"\r\n") for line in shown}
    for side in (ours, theirs):
        added = {line.rstrip(b"\r\n") for line in split_lines(side)} - {
            line.rstrip(b"\r\n") for line in split_lines(base)
        }
        assert added <= known


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")


@needs_git
def test_equals_git_merge_file(tmp_path: Path) -> None:
    seen = compare_with_git(tmp_path, 20, 500)
    assert seen["clean"] > 100 and seen["conflict"] > 100


@needs_git
@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_equals_git_merge_file_widely(tmp_path: Path, seed: int) -> None:
    compare_with_git(tmp_path, 1000 + seed, 1000)
