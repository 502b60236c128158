"""Real tools in a workspace: what they do works, and what they made is what the commit has.

Each tool works in an overlay and in a copy. Afterwards the state is committed, the workspace unmounted and mounted again,
and everything must be as the tool left it; a checkout is compared as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from project import Project, difference, seen

ENGINES = ("overlay", "copy")
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "gc.auto=0")

Shell = Callable[..., bytes]


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tool(name: str) -> str:
    """Return a tool's path; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


class Bench:
    """A project's workspace, in which a test runs tools."""

    def __init__(self, project: Project, engine: str) -> None:
        self.project = project
        self.engine = engine
        self.place = project.fork("bench", engine)

    def sh(self, *command: str | Path, cwd: str = ".", stdin: bytes = b"", code: int = 0) -> bytes:
        """Run a tool in the workspace; return what it printed."""
        done = self.project.execute([*command], cwd=self.place / cwd, stdin=stdin)
        assert done.code == code, (command, done.code, done.out, done.err.decode(errors="replace"))
        return done.out

    def round_trip(self) -> None:
        """Commit, unmount, mount again and check out: every time the same."""
        wanted = seen(self.place)
        self.project.commit(self.place)
        assert self.project.changes(self.place) == {}
        self.project.document("unmount", "bench")
        assert difference(wanted, seen(self.project.checkout("bench"))) == {}
        self.place = self.project.mount("bench", self.engine, self.place)
        assert difference(wanted, seen(self.place)) == {}
        assert self.project.changes(self.place) == {}


@pytest.fixture
def bench(project: Project, engine: str) -> Iterator[Callable[[], Bench]]:
    """Capture the source as it is and open a workspace of it; in the end the store verifies."""
    made: list[Bench] = []

    def start() -> Bench:
        project.init()
        made.append(Bench(project, engine))
        return made[0]

    yield start
    if made:
        project.fsck()


def git_repository(top: Path, project: Project) -> None:
    def git(*words: str) -> None:
        done = project.execute([*GIT, *words], cwd=top)
        assert done.code == 0, done.err

    git("init", "-q", "-b", "trunk", ".")
    for number in range(60):
        path = top / f"dir{number % 5}" / f"file{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"line {number}\n" * 20)
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("branch", "other")
    (top / "dir0/file0.txt").write_text("changed\n")
    git("commit", "-q", "-a", "-m", "second")


def test_git(project: Project, bench: Callable[[], Bench]) -> None:
    git_repository(project.source, project)
    b = bench()
    assert b.sh(*GIT, "status", "--porcelain") == b""
    (b.place / "dir1/file1.txt").write_text("work\n")
    (b.place / "new.txt").write_text("new\n")
    assert b.sh(*GIT, "status", "--porcelain") == b" M dir1/file1.txt\n?? new.txt\n"
    b.sh(*GIT, "add", ".")
    b.sh(*GIT, "commit", "-q", "-m", "third")
    b.sh(*GIT, "switch", "-q", "other")
    assert not (b.place / "new.txt").exists()
    b.sh(*GIT, "merge", "-q", "trunk")
    b.sh(*GIT, "stash", "list")
    b.sh(*GIT, "mv", "dir2", "moved")
    b.sh(*GIT, "commit", "-q", "-m", "a directory moves")
    b.round_trip()
    b.sh(*GIT, "gc", "-q", "--prune=now")
    assert b"error" not in b.sh(*GIT, "fsck", "--full", "--strict")
    assert b.sh(*GIT, "status", "--porcelain") == b""
    b.sh(*GIT, "worktree", "add", "-q", "tree", "trunk")
    b.sh(*GIT, "worktree", "remove", "tree")
    b.sh(*GIT, "clone", "-q", "--local", ".", "clone")
    b.round_trip()
    b.sh(*GIT, "fsck", "--full", "--strict", cwd="clone")
    done = project.execute([*GIT, "fsck", "--strict"], cwd=project.source)
    assert done.code == 0, "gc in one fork touches no other"


def make_wheel(place: Path) -> Path:
    """Make a wheel with a module and a script, without any network."""
    wheel = place / "smallpkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "smallpkg/__init__.py", "def answer():\n    return 42\n\n\ndef main():\n    print(answer())\n"
        )
        info = "smallpkg-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: smallpkg\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nsmall = smallpkg:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_python(project: Project, bench: Callable[[], Bench]) -> None:
    make_wheel(project.source)
    project.write(test_it="import smallpkg\n\n\ndef test_answer():\n    assert smallpkg.answer() == 42\n")
    os.rename(project.source / "test_it", project.source / "test_it.py")
    b = bench()
    b.sh(sys.executable, "-m", "venv", "venv")
    b.sh(
        "venv/bin/python",
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "smallpkg-1.0-py3-none-any.whl",
    )
    assert b.sh("venv/bin/small") == b"42\n"
    site = next(Path(path) for path in sys.path if os.path.isdir(os.path.join(path, "pytest")))
    (b.place / "venv/lib").joinpath(f"python{sys.version_info[0]}.{sys.version_info[1]}").joinpath(
        "site-packages/tools.pth"
    ).write_text(f"{site}\n")
    assert b"1 passed" in b.sh("venv/bin/python", "-m", "pytest", "-q", "test_it.py")
    b.round_trip()
    assert b.sh("venv/bin/small") == b"42\n"
    b.sh("venv/bin/python", "-m", "pip", "uninstall", "-q", "-y", "smallpkg")
    b.sh("venv/bin/python", "-c", "import smallpkg", code=1)
    b.round_trip()


def test_npm(project: Project, bench: Callable[[], Bench]) -> None:
    npm = tool("npm")
    package = project.work / "left"
    (package / "lib").mkdir(parents=True)
    (package / "package.json").write_text(
        json.dumps({"name": "left", "version": "1.0.0", "bin": "lib/cli.js"})
    )
    (package / "lib/cli.js").write_text("#!/usr/bin/env node\nconsole.log('left')\n")
    (package / "index.js").write_text("module.exports = 7\n")
    done = project.execute([npm, "pack", "--silent", "--pack-destination", project.source], cwd=package)
    assert done.code == 0, done.err
    (project.source / "package.json").write_text(json.dumps({"name": "top", "version": "1.0.0"}))
    b = bench()
    install = (npm, "install", "--offline", "--no-audit", "--no-fund", "--silent", "./left-1.0.0.tgz")
    b.sh(*install)
    assert b.sh("node", "-p", "require('left')") == b"7\n"
    assert b.sh("node_modules/.bin/left") == b"left\n"
    b.round_trip()
    b.sh("rm", "-rf", "node_modules")
    b.sh(*install)
    assert b.sh("node_modules/.bin/left") == b"left\n"
    b.round_trip()


SQLITE_WRITER = """
import sqlite3, sys
db = sqlite3.connect("data.db", timeout=60, isolation_level=None)
for number in range(200):
    db.execute("begin immediate")
    db.execute("insert into t values (?, ?)", (sys.argv[1], number))
    db.execute("commit")
db.close()
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_sqlite_in_two_processes(project: Project, bench: Callable[[], Bench], journal: str) -> None:
    import sqlite3

    db = sqlite3.connect(project.source / "data.db")
    db.execute("create table t (who, number)")
    db.close()
    b = bench()
    # Once and before the two: SQLite does not wait when both switch at the same moment, on no file system.
    db = sqlite3.connect(b.place / "data.db")
    assert db.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
    db.close()
    children = [
        project.start_any([sys.executable, "-c", SQLITE_WRITER, name], cwd=b.place)
        for name in ("a", "b")
    ]
    for child in children:
        _, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
    held = sqlite3.connect(b.place / "data.db")
    assert held.execute("select count(*) from t").fetchone() == (400,)
    held.close()
    b.round_trip()
    db = sqlite3.connect(b.place / "data.db")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    assert db.execute("select who, count(*) from t group by 1 order by 1").fetchall() == [
        ("a", 200),
        ("b", 200),
    ]
    db.close()


def test_tar_and_rsync(project: Project, bench: Callable[[], Bench]) -> None:
    for number in range(50):
        project.write(**{f"t{number % 3}__f{number}": os.urandom(number * 100)})
    os.link(project.source / "t0/f0", project.source / "t1/link")
    os.chmod(project.source / "t0/f3", 0o4711)
    b = bench()
    b.sh("tar", "--xattrs", "-cf", "all.tar", "t0", "t1", "t2")
    b.sh("rm", "-rf", "t0", "t1")
    b.sh("tar", "--xattrs", "-xpf", "all.tar")
    os.unlink(b.place / "all.tar")
    assert project.changes(b.place) == {}, "what was unpacked again is what it was, hard links and all"
    rsync = tool("rsync")
    b.sh(rsync, "-aHAX", "t0/", "copy/")
    b.sh(rsync, "-aHAX", "--delete", "t2/", "copy/")
    b.sh("cp", "-a", "t0", "t0.copy")
    b.round_trip()


def test_make_has_nothing_to_do_after_a_fork(project: Project, bench: Callable[[], Bench]) -> None:
    tool("make")
    project.write(Makefile="all: a.o b.o\n%.o: %.c\n\tcp $< $@\n", **{"a.c": "a\n", "b.c": "b\n"})
    assert project.execute(["make", "-s"], cwd=project.source).code == 0
    b = bench()
    b.sh("make", "-q")
    (b.place / "a.c").write_text("newer\n")
    assert b"b.o" not in b.sh("make")
    b.round_trip()
    b.sh("make", "-q")


LOCKER = """
import fcntl, os, sys
for _ in range(100):
    with open("counter", "r+") as file:
        {lock}(file, fcntl.LOCK_EX)
        number = int(file.read() or 0) + 1
        file.seek(0)
        file.write(str(number))
        file.flush()
        {lock}(file, fcntl.LOCK_UN)
"""


@pytest.mark.parametrize("lock", ["fcntl.flock", "fcntl.lockf"])
def test_locks_between_eight_processes(project: Project, bench: Callable[[], Bench], lock: str) -> None:
    project.write(counter="0")
    b = bench()
    script = LOCKER.format(lock=lock)
    children = [project.start_any([sys.executable, "-c", script], cwd=b.place) for _ in range(8)]
    for child in children:
        _, err = child.communicate(timeout=30)
        assert child.returncode == 0, err
    assert (b.place / "counter").read_text() == "800"
    b.round_trip()


MAPPED = """
import mmap, os, sys
fd = os.open("map", os.O_RDWR)
view = mmap.mmap(fd, 8192)
if sys.argv[1] == "write":
    view[4096:4101] = b"there"
    view.flush()
else:
    assert view[4096:4101] == b"there"
"""


def test_editors_maps_and_open_files(project: Project, bench: Callable[[], Bench]) -> None:
    """Atomic saves, shared maps, unlinked open files, appends deep down, exec, errors that arrive as themselves."""
    project.write(text="old\n", map=bytes(8192), deep__er__est__log="one\n")
    shutil.copy2("/bin/true", project.source / "program")
    b = bench()
    for number in range(20):
        (b.place / "text.tmp").write_text(f"save {number}\n")
        os.rename(b.place / "text.tmp", b.place / "text")
    b.sh(sys.executable, "-c", MAPPED, "write")
    b.sh(sys.executable, "-c", MAPPED, "read")
    with open(b.place / "text", "r+b") as held:
        os.unlink(b.place / "text")
        held.seek(0)
        assert held.read() == b"save 19\n"
        held.write(b"unseen")
    (b.place / "text").write_text("again\n")
    with open(b.place / "deep/er/est/log", "ab") as log:
        log.write(b"two\n")
    b.sh("./program")
    os.rename(b.place / "deep/er", b.place / "deep/moved")
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(b.place / "deep")
    with pytest.raises(OSError, match="too long"):
        (b.place / ("n" * 256)).write_text("")
    b.round_trip()
    assert (b.place / "deep/moved/est/log").read_bytes() == b"one\ntwo\n"


def test_a_tree_removed_and_made_again(project: Project, bench: Callable[[], Bench]) -> None:
    """What ``rm -rf`` and a new install do: opaque directories, and types that change."""
    for number in range(300):
        project.write(**{f"node_modules__p{number % 20}__{number}": f"{number}\n"})
    b = bench()
    b.sh("rm", "-rf", "node_modules")
    for number in range(0, 300, 3):
        path = b.place / f"node_modules/p{number % 20}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number} again\n")
    shutil.rmtree(b.place / "node_modules/p0")
    (b.place / "node_modules/p0").write_text("a file now\n")
    os.unlink(b.place / "node_modules/p3/3")
    os.symlink("../p1", b.place / "node_modules/p3/3")
    b.round_trip()
    subprocess.run(["rm", "-rf", b.place / "node_modules"], check=True, timeout=60)
    b.round_trip()
