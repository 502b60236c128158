"""Patches against git: the hunks git writes, patches git applies, and names that survive quoting."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerfs.history.diffing import FileDiff, diff_states, is_only_a_time, list_changes
from layerfs.objects.content import put_content
from layerfs.objects.entry import Entry, EntryKind, device_ref
from layerfs.objects.environment import edit_paths
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.trees import build_tree
from layerfs.present.names import show_line, show_path
from layerfs.present.patch import format_diff, format_stat

FILE, DIR, LINK = EntryKind.FILE, EntryKind.DIR, EntryKind.SYMLINK
GIT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}


class Ground:
    """States in memory, made from paths and contents."""

    def __init__(self) -> None:
        self.store = MemoryObjects()

    def file(self, content: bytes, mode: int = 0o644, **more: object) -> Entry:
        ref, size = put_content(self.store, content)
        return Entry(FILE, mode, 0, 0, 0, size, ref)._replace(**more)  # type: ignore[arg-type]

    def link(self, target: bytes) -> Entry:
        return Entry(LINK, 0o777, 0, 0, 0, 0, target)

    def directory(self, mode: int = 0o755, mtime_ns: int = 0) -> Entry:
        return Entry(DIR, mode, 0, 0, mtime_ns, 0, b"")

    def state(self, paths: dict[bytes, Entry]) -> Entry:
        root = Entry(DIR, 0o755, 0, 0, 0, 0, build_tree(self.store, ()))
        with_parents: dict[bytes, Entry | None] = {}
        for path in paths:
            while b"/" in path:
                path = path.rpartition(b"/")[0]
                with_parents[path] = self.directory()
        return edit_paths(self.store, root, {**with_parents, **paths})

    def diffs(self, old: dict[bytes, Entry], new: dict[bytes, Entry], times: bool = False) -> list[FileDiff]:
        return list(diff_states(self.store, self.state(old), self.state(new), (), times))

    def patch(self, old: dict[bytes, Entry], new: dict[bytes, Entry]) -> bytes:
        return b"".join(map(format_diff, self.diffs(old, new)))


@pytest.fixture
def ground() -> Ground:
    return Ground()


LINES = st.lists(st.sampled_from([b"a", b"b", b"", b"    c", b"{", b"}", b"d d", b"\xff"]), max_size=30)
TEXTS = st.builds(lambda lines, end: b"\n".join(lines) + (b"\n" if end and lines else b""), LINES, st.booleans())
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(old=TEXTS, new=TEXTS)
def test_hunks_are_those_of_git(tmp_path: Path, old: bytes, new: bytes) -> None:
    (tmp_path / "old").write_bytes(old)
    (tmp_path / "new").write_bytes(new)
    command = ["git", "-c", "core.abbrev=12", "diff", "--no-index", "--no-color", "--text", "old", "new"]
    done = subprocess.run(command, cwd=tmp_path, env=GIT, capture_output=True, check=False)
    body = done.stdout[done.stdout.find(b"@@") :] if b"@@" in done.stdout else b""
    expected = re.sub(rb"(?m)^(@@ [^@]* @@).*$", rb"\1", body)
    ground = Ground()
    ours = ground.patch({b"f": ground.file(old)}, {b"f": ground.file(new)})
    assert (ours[ours.find(b"@@") :] if b"@@" in ours else b"") == expected


def write_state(directory: Path, contents: dict[bytes, bytes | None]) -> None:
    for path, content in contents.items():
        place = os.path.join(os.fsencode(directory), path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if content is not None:
            with open(place, "wb") as file:
                file.write(content)


NOT_NAMES = (b".", b"..", b".git")
NAME = st.binary(min_size=1, max_size=6).filter(lambda name: not set(name) & {0, 0x2F} and name not in NOT_NAMES)
NAMES = st.lists(NAME, min_size=1, max_size=3).map(b"/".join)


@QUICK
@given(data=st.data())
def test_git_applies_our_patches(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A patch brings a copy of the old state to the new one, whatever the names are."""
    tmp_path = tmp_path_factory.mktemp("apply")
    names: list[bytes] = []
    for name in data.draw(st.lists(NAMES, max_size=4, unique=True)):
        if not any(name.startswith(other + b"/") or other.startswith(name + b"/") for other in names):
            names.append(name)
    old = {name: data.draw(TEXTS) for name in names if data.draw(st.booleans())}
    new = {name: data.draw(TEXTS) for name in names if data.draw(st.booleans())}
    ground = Ground()
    patch = ground.patch(
        {name: ground.file(content) for name, content in old.items()},
        {name: ground.file(content) for name, content in new.items()},
    )
    patch = b"".join(piece for piece in re.split(rb"(?m)^(?=diff --git )", patch) if b"file mode 04" not in piece)
    write_state(tmp_path, dict(old))
    if patch:
        command = ["git", "apply", "--whitespace=nowarn", "--allow-empty", "-"]
        done = subprocess.run(command, cwd=tmp_path, env=GIT, input=patch, capture_output=True, check=False)
        assert not done.returncode, (done.stderr, patch)
    found = {}
    for directory, _, files in os.walk(os.fsencode(tmp_path)):
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, os.fsencode(tmp_path))] = file.read()
    assert found == new


def test_git_applies_modes_and_links(tmp_path: Path, ground: Ground) -> None:
    old = {b"run": ground.file(b"x\n"), b"link": ground.link(b"run"), b"gone": ground.link(b"a")}
    new = {b"run": ground.file(b"x\n", 0o755), b"link": ground.link(b"else"), b"made": ground.link(b"b c")}
    (tmp_path / "run").write_text("x\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "gone").symlink_to("a")
    patch = ground.patch(old, new)
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, env=GIT, input=patch, capture_output=True, check=False)
    assert not done.returncode, done.stderr
    assert (tmp_path / "run").stat().st_mode & 0o111
    assert str((tmp_path / "link").readlink()) == "else" and str((tmp_path / "made").readlink()) == "b c"
    assert not (tmp_path / "gone").is_symlink()


def test_what_git_does_not_keep_is_in_the_header(ground: Ground) -> None:
    plain = ground.file(b"x\n")
    cases = {
        b"owner": plain._replace(uid=1000, gid=5),
        b"times": plain._replace(mtime_ns=1_500_000_000),
        b"xattr": plain._replace(xattrs=((b"user.a", b"\x00\xff"),)),
        b"links": plain._replace(link_group=0xABC),
    }
    patch = ground.patch(dict.fromkeys(cases, plain), cases).decode()
    assert "old owner 0:0\nnew owner 1000:5\n" in patch
    assert "old mtime 0.000000000\nnew mtime 1.500000000\n" in patch
    assert "new xattr user.a=00ff\n" in patch
    assert "old link group 0000000000000000\nnew link group 0000000000000abc\n" in patch
    assert "@@" not in patch and "index" not in patch


def test_a_time_is_shown_only_where_nothing_else_says_that_the_file_changed(ground: Ground) -> None:
    old = {b"f": ground.file(b"x\n")}
    assert b"mtime" not in ground.patch(old, {b"f": ground.file(b"y\n", mtime_ns=5)})
    assert b"mtime" in ground.patch(old, {b"f": ground.file(b"x\n", mtime_ns=5)})


def test_a_directory_whose_time_moved_is_left_out_unless_asked_for(ground: Ground) -> None:
    old, new = {b"d": ground.directory()}, {b"d": ground.directory(mtime_ns=7)}
    assert not ground.diffs(old, new)
    assert [diff.path for diff in ground.diffs(old, new, times=True)] == [b"d"]
    changed = {b"d": ground.directory(0o700, mtime_ns=7)}
    assert [diff.path for diff in ground.diffs(old, changed)] == [b"d"]
    assert not any(is_only_a_time(change) for change in list_changes(ground.store, None, ground.state(new)))


def test_changes_of_kind_are_a_deletion_and_an_addition(ground: Ground) -> None:
    patch = ground.patch(
        {b"p": ground.file(b"x\n"), b"q": ground.link(b"t"), b"r": ground.file(b"a\0b")},
        {b"p": ground.link(b"t"), b"q": ground.directory(), b"r": ground.link(b"z")},
    ).decode()
    assert patch.count("deleted file mode") == patch.count("new file mode") == 3
    assert "-x\n" in patch and "+t\n\\ No newline" in patch and "-t\n\\ No newline" in patch
    assert "Binary files a/r and /dev/null differ (3 -> 0 bytes)" in patch


def test_devices_and_other_nodes(ground: Ground) -> None:
    node = Entry(EntryKind.CHARDEV, 0o600, 0, 0, 0, 0, device_ref(1, 3))
    fifo = Entry(EntryKind.FIFO, 0o644, 0, 0, 0, 0, b"")
    patch = ground.patch({b"n": node}, {b"n": node._replace(ref=device_ref(1, 5)), b"p": fifo}).decode()
    assert "old device 1:3\nnew device 1:5\n" in patch and "new file mode 010644\n" in patch


def test_big_and_binary_contents_are_named_with_their_sizes(ground: Ground) -> None:
    patch = ground.patch({b"b": ground.file(b"a\0b")}, {b"b": ground.file(b"a" * (5 << 20))})
    assert b"Binary files a/b and b/b differ (3 -> 5242880 bytes)" in patch


def test_stat_counts_and_shortens(ground: Ground) -> None:
    long = b"a-directory-with-a-long-name/" * 4 + b"file"
    diffs = ground.diffs({b"f": ground.file(b"x\n" * 500)}, {b"f": ground.file(b"y\n" * 300), long: ground.file(b"z\n")})
    text = format_stat(diffs, 80).decode()
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert "..." in text and "insertions(+)" in text and "500 deletions(-)" in text
    assert format_stat([], 80) == b""


_NAMED = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}


def unquote(shown: bytes) -> bytes:
    """Read a quoted name back, as git does."""
    if not shown.startswith(b'"'):
        return shown
    out = bytearray()
    for octal, named, plain in re.findall(rb'\\([0-7]{3})|\\([abtnvfr"\\])|([^\\])', shown[1:-1], re.DOTALL):
        out += bytes([int(octal, 8)]) if octal else bytes([_NAMED[named]]) if named else plain
    return bytes(out)


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_a_shown_path_is_one_line_and_can_be_read_back(path: bytes) -> None:
    shown = show_path(path)
    assert unquote(shown) == path
    assert not re.search(rb"[\x00-\x1f\x7f]", shown)
    shown.decode("utf-8")


@given(st.text())
def test_text_for_one_line_is_one_line(text: str) -> None:
    assert b"\n" not in show_line(text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"))


def test_letters_of_any_script_stay_readable() -> None:
    assert show_path("café/日本".encode()) == "café/日本".encode()
    assert show_path(b"a b") == b"a b"
    assert show_path(b"a\tb\xff", b"a/") == b'"a/a\\tb\\377"'
