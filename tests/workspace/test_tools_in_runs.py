"""Real tools in ``layerfs run``: as root, as a user in a namespace, and in a copy where no overlay can be made.

Each tool works in one run, which is committed; a run of a fork of that finds everything as it was left and, if it builds
things, nothing to do. The scripts stop at the first command that fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from stranger import Stranger
from world import ROOT

WAYS = ("root", "user", "copy")
GIT_WORDS = {
    "root": {"LINKS": "--local", "MOVE": "git mv dir moved"},
    "user": {"LINKS": "--no-hardlinks", "MOVE": "mv dir moved; git add -A dir moved"},
    "copy": {"LINKS": "--local", "MOVE": "git mv dir moved"},
}
"""How to clone and to rename a directory: git wants more than a user namespace gives, as layerfs-posix(7) says."""
GIT_SETTINGS = "[user]\nname = t\nemail = t@example.org\n[gc]\nauto = 0\n[safe]\ndirectory = *\n"


class Tool(NamedTuple):
    """Programs that must be there, what is done in the first run, and what in the run of the fork."""

    needs: tuple[str, ...]
    first: str
    second: str


TOOLS = {
    "git": Tool(
        ("git",),
        """
        test -z "$(git status --porcelain)"
        git clone -q $LINKS . clone
        git -C clone fsck --strict
        git switch -q -c topic
        echo topic > one
        git commit -q -am topic
        git switch -q trunk
        test "$(cat one)" = 1
        git merge -q topic
        eval "$MOVE"
        git commit -q -m moved
        git worktree add -q tree topic
        test -e tree/dir/two
        git worktree remove tree
        git gc -q --prune=now
        git fsck --full --strict
        """,
        """
        test "$(git status --porcelain)" = '?? clone/'
        git fsck --full --strict
        git -C clone pull -q
        test "$(cat clone/moved/two)" = 2
        """,
    ),
    "npm": Tool(
        ("npm", "node"),
        """
        (cd left; npm pack --silent --pack-destination ..)
        install="npm install --offline --no-audit --no-fund --silent ./left-1.0.0.tgz"
        $install
        test "$(node_modules/.bin/left)" = left
        rm -rf node_modules
        test ! -e node_modules
        $install
        test "$(node -p "require('left')")" = 7
        """,
        """
        test "$(node_modules/.bin/left)" = left
        rm -rf node_modules
        npm ci --offline --no-audit --no-fund --silent
        test "$(node_modules/.bin/left)" = left
        """,
    ),
    "make": Tool(
        ("make", "cc"),
        """
        make -j4
        ./program
        make -q
        """,
        """
        make -q
        ./program
        sleep 0.02
        touch b.c
        test "$(make -j4 | grep -o '[a-z.]*c$')" = b.c
        make -q
        """,
    ),
    "cargo": Tool(
        ("cargo",),
        """
        cargo build --offline 2>&1 | grep Compiling
        test "$(target/debug/small)" = 7
        """,
        """
        cargo build --offline 2> said
        test "$(grep -c Compiling said)" = 0
        echo 'pub fn seven() -> u32 { 8 }' > src/part.rs
        cargo build --offline 2>&1 | grep Compiling
        test "$(target/debug/small)" = 8
        """,
    ),
    "tar and rsync": Tool(
        ("tar", "rsync"),
        """
        mkdir t
        for n in 1 2 3 4 5; do head -c ${n}0000 /dev/zero > t/$n; done
        ln t/1 t/twin
        ln -s 1 t/link
        tar -cf all.tar t
        mv t kept
        tar -xpf all.tar
        diff -r t kept
        test t/1 -ef t/twin
        rsync -aH t/ copy/
        rm t/2
        rsync -aH --delete t/ copy/
        test ! -e copy/2
        """,
        """
        test t/1 -ef t/twin
        diff -r t copy
        test -z "$(rsync -aHn --itemize-changes --delete t/ copy/)"
        tar -df all.tar t/3 t/link
        """,
    ),
    "atomic saves": Tool(
        (),
        """
        for n in 1 2 3 4 5 6 7 8 9; do echo $n > one.tmp; mv one.tmp one; done
        test $(cat one) = 9
        sed -i s/9/x/ one
        """,
        """
        test $(cat one) = x
        test ! -e one.tmp
        """,
    ),
    "flock": Tool(
        ("flock",),
        """
        echo 0 > count
        for n in 1 2 3 4 5 6 7 8; do
            (for i in 1 2 3 4 5 6 7 8 9 10; do flock lock sh -c 'echo $(($(cat count) + 1)) > count'; done) &
        done
        wait
        test "$(cat count)" = 80
        """,
        "test $(cat count) = 80",
    ),
    "watching": Tool(
        ("inotifywait",),
        """
        inotifywait -q -t 60 -e modify --format %e:%f dir > seen & watcher=$!
        while ! grep -q inotify /proc/$watcher/fdinfo/* 2>/dev/null; do sleep 0.05; done
        echo more >> dir/two
        wait $watcher
        grep -q MODIFY:two seen
        """,
        "grep -q MODIFY:two seen",
    ),
    "sqlite": Tool(
        (),
        """
        for journal in wal delete; do
            "$PYTHON" writer.py mode $journal
            "$PYTHON" writer.py a & first=$!
            "$PYTHON" writer.py b
            wait $first
        done
        "$PYTHON" writer.py check 800
        """,
        """
        "$PYTHON" writer.py check 800
        "$PYTHON" writer.py c
        "$PYTHON" writer.py check 1000
        """,
    ),
    "pip and pytest": Tool(
        ("cc",),
        """
        export PYTHONPATH="$SITE"
        "$PYTHON" -m venv venv
        venv/bin/python -m pip install -q --no-index --no-deps --no-build-isolation -e ./project
        cd project
        ../venv/bin/python -m pytest -q -p no:cacheprovider tests/unit/test_native_linediff.py
        """,
        """
        export PYTHONPATH="$SITE"
        cd project
        test "$(../venv/bin/python -c 'import layerfs; print(layerfs.__file__)')" = "$PWD/layerfs/__init__.py"
        ../venv/bin/python -m pytest -q -p no:cacheprovider tests/unit/test_frames.py
        """,
    ),
}

WRITER = """
import sqlite3, sys
db = sqlite3.connect("data.db", timeout=60, isolation_level=None)
if sys.argv[1] == "check":
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    assert db.execute("select count(*) from t").fetchone() == (int(sys.argv[2]),)
    sys.exit()
if sys.argv[1] == "mode":
    assert db.execute(f"pragma journal_mode={sys.argv[2]}").fetchone() == (sys.argv[2],)
    sys.exit()
for number in range(200):
    db.execute("begin immediate")
    db.execute("insert into t values (?, ?)", (sys.argv[1], number))
    db.execute("commit")
db.close()
"""


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def tools(stranger: Stranger) -> Iterator[dict[str, str]]:
    """What the scripts find in their environment; a Rust toolchain is mounted where everybody may go."""
    rust = shutil.which("rustc")
    path = os.defpath
    if rust is not None:
        told = subprocess.run([rust, "--print", "sysroot"], capture_output=True, text=True, check=True)
        place = stranger.top / "rust"
        place.mkdir()
        subprocess.run(["mount", "--bind", told.stdout.strip(), place], check=True, timeout=20)
        path = f"{place}/bin:{path}"
    yield {"PATH": path, "PYTHON": str(stranger.python), "SITE": str(stranger.top / "site")}
    if rust is not None:
        subprocess.run(["umount", "-l", place], check=True, timeout=20)


def prepare(stranger: Stranger, name: str) -> None:
    """Write what the tool works on."""
    stranger.write("one", "1\n")
    stranger.write("dir/two", "2\n")
    (stranger.home / ".gitconfig").write_text(GIT_SETTINGS)
    if name == "git":
        for words in (["init", "-q", "-b", "trunk", "."], ["add", "."], ["commit", "-q", "-m", "first"]):
            assert stranger.execute(["git", *words]).code == 0
    elif name == "npm":
        stranger.write("package.json", '{"name": "top", "version": "1.0.0"}')
        stranger.write("left/package.json", '{"name": "left", "version": "1.0.0", "bin": "cli.js"}')
        stranger.write("left/cli.js", "#!/usr/bin/env node\nconsole.log('left')\n")
        stranger.write("left/index.js", "module.exports = 7\n")
    elif name == "make":
        stranger.write("Makefile", "program: a.o b.o\n\tcc -o $@ $^\n%.o: %.c h.h\n\tcc -c -o $@ $<\n")
        stranger.write("h.h", "int other(void);\n")
        stranger.write("a.c", '#include "h.h"\nint main(void) { return other(); }\n')
        stranger.write("b.c", '#include "h.h"\nint other(void) { return 0; }\n')
    elif name == "cargo":
        stranger.write("Cargo.toml", '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n')
        stranger.write("src/main.rs", 'mod part;\nfn main() { println!("{}", part::seven()); }\n')
        stranger.write("src/part.rs", "pub fn seven() -> u32 { 7 }\n")
    elif name == "sqlite":
        stranger.write("writer.py", WRITER)
        make = "import sqlite3; sqlite3.connect('data.db').execute('create table t (who, number)')"
        made = stranger.execute([stranger.python, "-c", make])
        assert made.code == 0, made
    elif name == "pip and pytest":
        built = shutil.ignore_patterns("*.so", "__pycache__")
        for part in ("layerfs", "csrc", "tests", "man", "completions"):
            shutil.copytree(ROOT / part, stranger.source / "project" / part, ignore=built)
        for part in ("pyproject.toml", "setup.py", "README.md"):
            shutil.copy2(ROOT / part, stranger.source / "project" / part)
        for path in (stranger.source / "project", *(stranger.source / "project").rglob("*")):
            os.chown(path, stranger.uid, stranger.uid)


@pytest.mark.usefixtures("need_user_namespace")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full) if name == "pip and pytest" else name for name in TOOLS],
)
def test_a_tool_in_a_run_and_in_a_fork_of_it(
    stranger: Stranger, tools: dict[str, str], overlay_disk: Path, name: str, way: str
) -> None:
    tool = TOOLS[name]
    for program in tool.needs:
        if shutil.which(program, path=tools["PATH"]) is None:
            pytest.skip(f"{program} is not installed")
    prepare(stranger, name)
    stranger.ok("init", *(["--store", overlay_disk / "store"] if way == "copy" else []))
    stranger.ok("fork", "f")
    who = {} if way == "root" else {"user": stranger.uid, "group": stranger.uid, "extra_groups": []}

    def run(branch: str, script: str, *options: str) -> str:
        done = subprocess.run(
            [stranger.python, "-m", "layerfs", "run", branch, *options, "--", "sh", "-euc", script],
            cwd=stranger.source,
            env={**stranger.environment(), **tools, **GIT_WORDS[way]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **who,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stderr

    said = run("f", tool.first, "--commit", "-m", name)
    assert ("engine copy" in said) == (way == "copy"), said
    stranger.ok("fork", "g", "--from", "f")
    run("g", tool.second, "--discard")
    assert (stranger.source / "one").read_bytes() == b"1\n", "the captured directory is as it was"
    stranger.ok("fsck")
