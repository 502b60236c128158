"""Fidelity: an environment with every kind of entry and oddity is the same after every way through layerfs.

The cases are those users of comparable tools met (A1 to A14 of the field cases); each test is named after what was lost.
The judge is ``odd_tree.describe``: plain system calls, no code of layerfs. What an overlay legitimately shows differently
is listed in ``OVERLAY_DIFFERS`` and nothing else may differ.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from odd_tree import build_odd_tree, describe
from project import Project, difference, refusal, seen
from world import World

ROOT = os.geteuid() == 0
ENGINES = ("overlay", "copy")
OVERLAY_DIFFERS: frozenset[bytes] = frozenset()
"""Paths that an overlay shows otherwise than the source. Before anything is written there are none (st_dev and st_ino
are no part of a description); afterwards one name of a hard-link group that is written to leaves the group."""


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """All of it needs root, devices and real mounts."""


def build_more_oddities(top: Path) -> None:
    """Add what the field cases name and the odd tree does not have."""
    base = os.fsencode(top)
    extra = os.path.join(base, b"more")
    os.mkdir(extra)
    for number in range(3):
        os.mkdir(os.path.join(extra, b"linked-%d" % number))
    one = os.path.join(extra, b"linked-0/name")
    Path(os.fsdecode(one)).write_bytes(b"suid and linked")
    os.link(one, os.path.join(extra, b"linked-1/\xfe\xff"))
    os.link(one, os.path.join(extra, b"linked-2/third\n"))
    os.chmod(one, 0o6755)
    os.setxattr(one, b"user.x", b"1")
    os.symlink(b"self", os.path.join(extra, b"self"))
    os.link(os.path.join(extra, b"self"), os.path.join(extra, b"linked symlink"), follow_symlinks=False)
    os.mkfifo(os.path.join(extra, b"fifo"))
    os.link(os.path.join(extra, b"fifo"), os.path.join(extra, b"linked fifo"))
    os.setxattr(os.path.join(extra, b"linked-0"), b"user.overlay.whiteout", b"y")
    os.setxattr(os.path.join(extra, b"linked-1"), b"user.big", b"v" * 3000)
    os.mkdir(os.path.join(extra, b"setgid"))
    os.chown(os.path.join(extra, b"setgid"), 0, 4321)
    os.chmod(os.path.join(extra, b"setgid"), 0o2775)
    Path(os.fsdecode(os.path.join(extra, b"setgid"))).joinpath("inside").write_bytes(b"of root's group")
    os.chown(os.path.join(extra, b"setgid/inside"), 77, 0)
    deep = extra
    for level in range(40):
        deep = os.path.join(deep, b"level-%d" % level + b"-" * 90)
        os.mkdir(deep)
    with open(os.path.join(extra, b"tail hole"), "wb") as file:
        file.write(os.urandom(200_000))
        file.truncate(5 << 20)
    os.utime(os.path.join(extra, b"tail hole"), ns=(1, 1_999_999_999_999_999_999))


@pytest.fixture
def odd(project: Project) -> Project:
    """A captured project with everything in it."""
    build_odd_tree(project.source, root=ROOT)
    build_more_oddities(project.source)
    stamp = 1_300_000_000_111_222_333
    os.utime(project.source, ns=(stamp, stamp))
    return project


def test_every_oddity_survives_the_whole_way(odd: Project) -> None:
    before = describe(odd.source)
    odd.init()
    assert difference(before, seen(odd.source)) == {}, "init left traces"
    assert odd.changes(odd.source) == {}
    assert difference(before, seen(odd.checkout("main"))) == {}
    for engine in ENGINES:
        place = odd.fork(f"on-{engine}", engine)
        shown = difference(before, seen(place))
        assert shown.keys() <= OVERLAY_DIFFERS, (engine, shown)
        assert odd.changes(place) == {}, f"reading in engine {engine} made changes"
        (place / "touched").write_bytes(b"new\n")
        (place / "dir/deep/er/file").write_bytes(b"changed\n")
        shutil.rmtree(place / "sticky")
        os.rename(place / "empty", place / "renamed")
        wanted = seen(place)
        odd.commit(place)
        assert odd.changes(place) == {}
        assert difference(wanted, seen(odd.checkout(f"on-{engine}"))) == {}
        odd.document("unmount", f"on-{engine}")
        again = odd.mount(f"on-{engine}", engine)
        assert difference(wanted, seen(again)) == {}
        odd.document("unmount", f"on-{engine}")
    assert difference(before, seen(odd.checkout("main"))) == {}
    odd.fsck()


def test_touching_an_odd_entry_keeps_the_rest_of_it(odd: Project) -> None:
    """Copy-up, chmod and rename of each odd entry in the overlay: the commit has exactly what processes then see."""
    odd.init()
    place = odd.fork("a")
    for name in ("setuid", "capable", "plain", "large", "executable"):
        with open(place / name, "ab") as file:
            file.write(b"more")
    with open(place / "sparse", "r+b") as file:
        file.seek(7)
        file.write(b"seven")
    os.rename(place / "dir", place / "dir moved")
    os.rename(os.fsencode(place) + b"/\xfe", os.fsencode(place) + b"/\xfd\n")
    os.rename(place / "fifo", place / "more/setgid/fifo")
    os.rename(place / "null", place / "null moved")
    os.unlink(place / "block")
    os.chmod(place / "unreadable", 0o200)
    os.setxattr(place / "small sparse", "user.new", b"1")
    with open(place / "link one", "ab") as file:
        file.write(b"splits off\n")
    wanted = seen(place)
    assert odd.commit(place)["commit"]
    assert difference(wanted, seen(odd.checkout("a"))) == {}
    odd.document("unmount", "a")
    assert difference(wanted, seen(odd.mount("a"))) == {}
    odd.fsck()


def test_git_objects_linked_between_clones_stay_linked(project: Project) -> None:
    first = project.source / "a"
    for command in (
        ["git", "init", "-q", "a"],
        [
            "git",
            "-C",
            "a",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@e",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "0",
        ],
    ):
        assert project.execute([*command], cwd=project.source).code == 0
    for number in range(40):
        (first / f"file-{number}").write_bytes(os.urandom(20_000))
    for command in (
        ["git", "-C", "a", "add", "."],
        ["git", "-C", "a", "-c", "user.name=t", "-c", "user.email=t@e", "commit", "-q", "-m", "1"],
        ["git", "clone", "-q", "--local", "a", "b"],
    ):
        assert project.execute([*command], cwd=project.source).code == 0
    pairs = inode_groups(project.source)
    assert len(pairs) >= 40
    project.init()
    place = project.fork("copied", "copy")
    for made in (project.checkout("main"), place):
        assert inode_groups(made) == pairs
        assert abs(disk_usage(made) - disk_usage(project.source)) <= disk_usage(project.source) * 0.01
    shown = project.fork("laid-over")
    assert inode_groups(shown) == pairs
    for clone in ("a", "b"):
        done = project.execute(["git", "-C", clone, "fsck", "--strict"], cwd=shown)
        assert done.code == 0, done.err
    assert project.changes(shown) == {}


def inode_groups(top: Path) -> set[tuple[str, ...]]:
    """Return the groups of two or more names for one inode."""
    groups: dict[int, list[str]] = {}
    for directory, _, files in os.walk(top):
        for name in files:
            path = os.path.join(directory, name)
            groups.setdefault(os.lstat(path).st_ino, []).append(os.path.relpath(path, top))
    return {tuple(sorted(names)) for names in groups.values() if len(names) > 1}


def disk_usage(top: Path) -> int:
    """Return the blocks that all files below ``top`` take, each inode once."""
    blocks = {}
    for directory, _, files in os.walk(top):
        for name in files:
            info = os.lstat(os.path.join(directory, name))
            blocks[info.st_ino] = info.st_blocks
    return sum(blocks.values())


def test_a_sparse_file_of_200_gib_stays_sparse(project: Project) -> None:
    data = os.urandom(1 << 20)
    with open(project.source / "s", "wb") as file:
        file.truncate(200 << 30)
        file.seek(100 << 30)
        file.write(data)
    started = time.monotonic()
    made = project.init()
    assert time.monotonic() - started < 10
    assert made["stored_bytes"] < 2_000_000
    places = [project.checkout("main"), project.fork("laid-over"), project.fork("copied", "copy")]
    for place in places:
        info = os.stat(place / "s")
        assert info.st_size == 200 << 30
        assert info.st_blocks * 512 < 3 << 20
        with open(place / "s", "rb") as file:
            assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 100 << 30
            assert os.lseek(file.fileno(), 100 << 30, os.SEEK_HOLE) == (100 << 30) + len(data)
            assert os.pread(file.fileno(), len(data), 100 << 30) == data
    with open(places[2] / "s", "r+b") as file:
        os.pwrite(file.fileno(), b"end", 150 << 30)
    started = time.monotonic()
    assert project.commit(places[2])["stored_bytes"] < 200_000
    assert time.monotonic() - started < 10
    out = project.checkout("copied")
    assert os.stat(out / "s").st_blocks * 512 < 3 << 20


def test_a_capability_survives_a_change_of_owner(project: Project) -> None:
    program = project.source / "f"
    program.write_bytes(b"\x7fELF")
    os.chmod(program, 0o755)
    if shutil.which("setcap") or os.path.exists("/sbin/setcap"):
        subprocess.run(
            ["setcap", "cap_net_raw+ep", program], check=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
        )
        value = os.getxattr(program, "security.capability")
        os.chown(program, 1, 1)
        os.setxattr(program, "security.capability", value)
    else:
        os.chown(program, 1, 1)
        value = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
        os.setxattr(program, "security.capability", value)
    project.init()
    for place in (project.checkout("main"), project.fork("o"), project.fork("c", "copy")):
        info = os.stat(place / "f")
        assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (1, 1, 0o755)
        assert os.getxattr(place / "f", "security.capability") == value


ODD_NAMES = (
    b"a\xff",
    b"\xfe",
    b"new\nline",
    b"tab\t",
    b"-m",
    b"--",
    b"\xf0\x9f\x98\x80",
    b"..x",
    b"HEAD",
    b":x",
    b"@{1}",
    b" ",
)


def test_odd_names_stop_no_command(project: Project) -> None:
    """Every command that takes or prints paths does its work with names that are not UTF-8 or look like options."""
    base = os.fsencode(project.source)
    for name in ODD_NAMES:
        os.mkdir(os.path.join(base, b"d-" + name))
        for path in (name, b"d-" + name + b"/" + name):
            Path(os.fsdecode(os.path.join(base, path))).write_bytes(b"one\ntwo\nthree\n")
    project.init()
    place = project.fork("a", "copy")
    for name in ODD_NAMES:
        with open(os.path.join(os.fsencode(place), name), "ab") as file:
            file.write(b"four\n")
        with open(os.path.join(base, b"d-" + name, name), "ab") as file:
            file.write(b"five\n")
    changed = {
        change.get("path_b64") or change["path"]
        for change in project.document("status", "--all", cwd=place)["changes"]
    }
    assert len(changed) == len(ODD_NAMES)
    for words in (["status"], ["status", "-z"], ["status", "--all"], ["diff"], ["diff", "-z"]):
        done = project.run(*words, cwd=place)
        assert (done.code, done.err) == (0, b""), (words, done.err)
    project.commit(place)
    project.commit(project.source)
    for words in (
        ["diff", "main", "a"],
        ["diff", "-z", "main", "a"],
        ["show", "a"],
        ["log", "a"],
        ["ls-tree", "a"],
        ["ls-tree", "-z", "-r", "a"],
        ["diff-tree", "main", "a"],
        ["diff-tree", "-z", "main", "a"],
        ["merge", "work", "--into", "a"],
        ["publish", "a"],
        ["update", "main"],
        ["update", "main", "-C", str(place)],
    ):
        for form in (words, [*words, "--json"]):
            done = project.run(*form, cwd=project.source)
            assert done.code == 0, (form, done.err)
    assert seen(place, times=False) == seen(project.source, times=False)
    for name in ODD_NAMES:
        done = project.run(b"blame", b"main", b"--", name, cwd=project.source)
        assert done.code == 0, (name, done.err)
        assert done.out.count(b"\n") == 4
        done = project.run(b"restore", b"L1", b"--", name, cwd=project.source)
        assert done.code == 0, (name, done.err)
    assert len(project.changes(project.source)) == len(ODD_NAMES)
    message = refusal(project.run(b"blame", b"main", b"--", b"gone\xff\n", cwd=place), 10)
    assert "gone\\xff\\n" in message


def test_nanoseconds_leave_make_nothing_to_do(project: Project) -> None:
    project.write(
        Makefile="all: out\nout: in\n\tcp in out\n", **{"in": "input\n", "cargo": "x", "script.py": PRINTER}
    )
    assert project.execute(["make", "-s"], cwd=project.source).code == 0
    for name, stamp in (("in", 1_700_000_000_123_456_788), ("out", 1_700_000_000_123_456_789)):
        os.utime(project.source / name, ns=(stamp, stamp))
    project.init()
    fingerprint = project.execute([sys.executable, "script.py"], cwd=project.source).out
    for place in (project.fork("o"), project.fork("c", "copy"), project.checkout("main")):
        assert os.stat(place / "out").st_mtime_ns == 1_700_000_000_123_456_789
        assert project.execute(["make", "-q"], cwd=place).code == 0, f"make would rebuild in {place}"
        assert project.execute([sys.executable, "script.py"], cwd=place).out == fingerprint
        (place / "in").write_bytes(b"newer\n")
        assert project.execute(["make", "-q"], cwd=place).code == 1


PRINTER = """import os
for name in sorted(os.listdir('.')):
    if name != '.layerfs':
        info = os.lstat(name)
        print(name, info.st_mtime_ns, info.st_size, info.st_mode)
"""


def test_fifos_sockets_and_bound_devices_hang_nothing(project: Project) -> None:
    os.mkfifo(project.source / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(project.source / "s"))
    listener.listen()
    project.write(file="x", target="")
    subprocess.run(["mount", "--bind", "/dev/null", project.source / "target"], check=True, timeout=20)
    try:
        done = project.run("init", "--json", cwd=project.source, timeout=30)
        assert done.code in (0, 3), done.err
        project.store = Path(done.document["data"]["store"])
        assert project.run("status", cwd=project.source, timeout=30).code in (0, 3)
    finally:
        subprocess.run(["umount", project.source / "target"], check=True, timeout=20)
        listener.close()
    place = project.fork("o")
    for made in (place, project.fork("c", "copy"), project.checkout("main", codes=(0, 3))):
        assert stat.S_ISFIFO(os.lstat(made / "fifo").st_mode)
        assert stat.S_ISSOCK(os.lstat(made / "s").st_mode)
    os.unlink(place / "file")
    os.mkfifo(place / "file")
    done = project.run("commit", "-m", "a fifo now", cwd=place, timeout=30)
    assert done.code == 0, done.err
    assert stat.S_ISFIFO(os.lstat(project.checkout("o") / "file").st_mode)


def test_a_fifo_swapped_in_while_reading_hangs_nothing(project: Project) -> None:
    """A14's race: a file is replaced by a FIFO and back all the time while captures run."""
    project.write(victim="x", other="y")
    project.init()
    swapper = project.start_any(
        [
            sys.executable,
            "-c",
            "import os\nos.mkfifo('f')\n"
            "while True:\n"
            "    os.rename('f', 'victim')\n"
            "    open('t', 'w').close(); os.rename('t', 'victim'); os.mkfifo('f')\n",
        ]
    )
    deadline = time.monotonic() + 3
    codes = set()
    while time.monotonic() < deadline:
        done = project.run("commit", "-m", "x", cwd=project.source, timeout=30)
        assert done.code in (0, 3, 13), done.err
        codes.add(done.code)
    assert swapper.poll() is None
    os.killpg(swapper.pid, 9)
    swapper.wait(10)
    assert 0 in codes or 3 in codes
    project.run("commit", "-m", "still now", cwd=project.source)
    project.fsck()


def test_what_is_left_out_is_named_and_changes_the_exit_code(project: Project) -> None:
    """Here another file system below the root."""
    project.write(inside__file="x", other="y")
    subprocess.run(["mount", "-t", "tmpfs", "none", project.source / "inside"], check=True, timeout=20)
    try:
        done = project.run("init", cwd=project.source)
        assert done.code == 3
        assert b"'inside' is another file system" in done.err
    finally:
        subprocess.run(["umount", project.source / "inside"], check=True, timeout=20)


@pytest.mark.parametrize("engine", ENGINES)
def test_link_counts_do_not_depend_on_which_name_is_asked_first(project: Project, engine: str) -> None:
    project.write(a="x", d__b="")
    os.unlink(project.source / "d/b")
    os.link(project.source / "a", project.source / "d/b")
    project.write(y="alone")
    project.init()
    place = project.fork("f", engine)
    assert [os.stat(place / name).st_nlink for name in ("a", "d/b", "a")] == [2, 2, 2]
    os.link(place / "y", place / "z")
    assert [os.stat(place / name).st_nlink for name in ("y", "z", "y")] == [2, 2, 2]
    os.unlink(place / "y")
    assert os.stat(place / "z").st_nlink == 1
    assert project.changes(place) == {"y": "D", "z": "A"}


@pytest.mark.parametrize("engine", ENGINES)
def test_edits_that_hide_are_found_and_touched_files_are_not(project: Project, engine: str) -> None:
    """A20: an edit whose mtime is put back, and one of equal size at once after a status; chmod storms are only modes."""
    project.write(back="old content\n", tick="old content\n", moded="m", same="s")
    for name in ("back", "tick", "moded", "same"):
        os.utime(project.source / name, ns=(10**18 + 5, 10**18 + 5))
    project.init()
    place = project.fork("f", engine)
    assert project.changes(place) == {}
    (place / "tick").write_bytes(b"new content\n")
    assert project.changes(place) == {"tick": "M"}
    (place / "tick").write_bytes(b"NEW CONTENT\n")
    (place / "back").write_bytes(b"new content\n")
    os.utime(place / "back", ns=(10**18 + 5, 10**18 + 5))
    os.chmod(place / "moded", 0o600)
    (place / "same").write_bytes(b"s")
    os.utime(place / "same", ns=(10**18 + 5, 10**18 + 5))
    assert project.changes(place) == {"tick": "M", "back": "M", "moded": "M"}
    wanted = seen(place)
    project.commit(place)
    assert difference(wanted, seen(project.checkout("f"))) == {}


def test_a_mount_over_captured_files_is_told(world: World, need_root_mounts: None) -> None:
    project = world.work / "covered"
    (project / "k/m").mkdir(parents=True)
    (project / "k/m/f").write_bytes(b"x")
    world.ok("init", cwd=project)
    subprocess.run(["mount", "-t", "tmpfs", "none", project / "k/m"], check=True, timeout=20)
    try:
        told = b"not captured: 'k/m' is another file system"
        assert told in world.ok("status", cwd=project).err
        assert told in world.ok("commit", "-m", "x", cwd=project).err
    finally:
        subprocess.run(["umount", project / "k/m"], check=True, timeout=20)
