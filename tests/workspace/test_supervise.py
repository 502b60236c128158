"""Running commands in a workspace: where they are, what they see, what they return, and that all of them can be ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounting import SOURCE, Stand

from layerfs.errors import Unable
from layerfs.workspace import kernel
from layerfs.workspace.namespace import Place
from layerfs.workspace.overlay import Layers, reset_work
from layerfs.workspace.overlayprobe import enter_user_namespace, probe_overlay
from layerfs.workspace.supervise import Command, Outcome, Running, is_in_use, members, start

PR_SET_DUMPABLE = 4
SOMEBODY = 4242
ENV = {b"PATH": os.fsencode(os.environ.get("PATH", os.defpath))}


@pytest.fixture
def stand(tmp_path: Path, overlay_mounts: None) -> Stand:
    """A captured directory ``project`` with ``sub``, its materialised copy as the lower, and an empty upper."""
    place = Stand(os.fsencode(tmp_path))
    for top in (b"project", b"lower"):
        os.makedirs(os.path.join(place.path(top), b"sub", b"deep"))
    Path(os.fsdecode(place.path(b"lower")), "file").write_text("from the workspace\n")
    Path(os.fsdecode(place.path(b"project")), "file").write_text("original\n")
    for name in (b"upper", b"work"):
        place.path(name)
    return place


def the_place(stand: Stand, **changes: object) -> Place:
    layers = Layers((stand.path(b"lower"),), stand.path(b"upper"), stand.path(b"work"))
    return Place(stand.path(b"project"), SOURCE, layers)._replace(**changes)


def run_in(
    stand: Stand, script: str, *, place: Place | None = None, inside: bytes = b"", timeout: float | None = 20
) -> tuple[Outcome, str, Running]:
    """Run a shell script in the workspace and return its outcome and what it printed."""
    reading, writing = os.pipe()
    directory = os.path.join(stand.path(b"project"), inside) if inside else stand.path(b"project")
    command = Command((b"sh", b"-c", script.encode()), ENV, directory, stdout=writing)
    running = start(place or the_place(stand), command)
    os.close(writing)
    outcome = running.wait(timeout)
    with open(reading, "rb") as pipe:
        return outcome, pipe.read().decode(), running


def test_the_workspace_lies_over_the_captured_path_and_only_inside(stand: Stand) -> None:
    project = Path(os.fsdecode(stand.path(b"project")))
    outcome, text, _ = run_in(stand, f"cat file {project}/file; echo new > made; pwd")
    assert outcome == Outcome(0, False, ())
    assert text == f"from the workspace\nfrom the workspace\n{project}\n"
    assert (project / "file").read_text() == "original\n"
    assert not (project / "made").exists()
    assert Path(os.fsdecode(stand.path(b"upper")), "made").read_text() == "new\n"


def test_the_command_is_in_the_callers_sub_directory(stand: Stand) -> None:
    _, text, running = run_in(stand, "pwd; echo $PWD", inside=b"sub/deep")
    path = os.path.join(stand.path(b"project"), b"sub/deep")
    assert text == os.fsdecode(path) + "\n" + os.fsdecode(path) + "\n"
    assert running.entered.directory == path


def test_a_sub_directory_the_workspace_lacks_leads_to_the_nearest_above(stand: Stand) -> None:
    os.makedirs(os.path.join(stand.path(b"project"), b"sub/only/here"))
    _, text, running = run_in(stand, "pwd", inside=b"sub/only/here")
    assert running.entered.directory == os.path.join(stand.path(b"project"), b"sub")
    assert text.strip() == os.fsdecode(running.entered.directory)


def test_a_missing_captured_path_is_made(stand: Stand) -> None:
    gone = os.path.join(stand.top, b"elsewhere", b"project")
    outcome, text, _ = run_in(stand, f"cat {os.fsdecode(gone)}/file", place=the_place(stand, target=gone))
    assert (outcome.code, text) == (0, "from the workspace\n")


def test_a_plain_directory_can_be_bound_instead(stand: Stand) -> None:
    place = the_place(stand, layers=None, bound=stand.path(b"lower"))
    outcome, text, _ = run_in(stand, "cat file; echo x > made", place=place)
    assert (outcome.code, text) == (0, "from the workspace\n")
    assert os.path.exists(os.path.join(stand.path(b"lower"), b"made"))


def test_mounts_below_the_path_are_put_back_or_reported(stand: Stand) -> None:
    project = stand.path(b"project")
    os.mkdir(os.path.join(project, b"nowhere"))
    places = [os.path.join(project, b"sub"), os.path.join(project, b"nowhere")]
    with contextlib.ExitStack() as stack:
        for path in places:
            kernel.mount(b"none", path, b"tmpfs")
            stack.callback(kernel.umount, path)
            Path(os.fsdecode(path), "data").write_text("data\n")
        _, text, running = run_in(stand, "cat sub/data; cat file")
        assert text == "data\nfrom the workspace\n"
        assert running.entered.kept == (places[0],)
        assert running.entered.lost == (places[1],)


def test_a_path_is_passed_through(stand: Stand) -> None:
    Path(os.fsdecode(stand.path(b"project")), "sub", "data").write_text("big\n")
    _, text, _ = run_in(stand, "cat sub/data", place=the_place(stand, pass_through=(b"sub",)))
    assert text == "big\n"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_exit_codes_are_the_commands_own(stand: Stand, script: str, code: int) -> None:
    assert run_in(stand, script)[0].code == code


def test_commands_that_cannot_be_run(stand: Stand) -> None:
    lower = Path(os.fsdecode(stand.path(b"lower")))
    (lower / "plain").write_text("data")
    script = lower / "script"
    script.write_text("exit 5\n")
    script.chmod(0o755)
    codes = {}
    for name in (b"no-such-command", b"./plain", b"./sub", b"./script"):
        running = start(the_place(stand), Command((name,), ENV, stand.path(b"project")))
        codes[name] = (running.wait(20).code, running.problem is not None)
        reset_work(stand.path(b"work"))
    assert codes == {
        b"no-such-command": (127, True),
        b"./plain": (126, True),
        b"./sub": (126, True),
        b"./script": (5, False),
    }


def test_a_workspace_that_cannot_be_entered_is_no_failed_command(stand: Stand) -> None:
    broken = the_place(stand, layers=Layers((b"/nonexistent",), stand.path(b"upper"), stand.path(b"work")))
    with pytest.raises(Unable, match="cannot enter the workspace"):
        start(broken, Command((b"true",), ENV, b"/"))


def test_time_up_ends_the_whole_tree(stand: Stand) -> None:
    """Also what ignores SIGTERM, has a session of its own, or has lost its parents."""
    script = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 4300' &) ; setsid sleep 4300 & sleep 4300"
    began = time.monotonic()
    command = Command((b"sh", b"-c", script.encode()), ENV, stand.path(b"project"))
    running = start(the_place(stand), command)
    time.sleep(0.3)
    assert len(members(running.namespace, running.pid)) >= 4
    outcome = running.wait(0.1)
    assert outcome.timed_out and outcome.code == 137
    assert members(running.namespace, running.pid) == []
    assert time.monotonic() - began < 10


def test_what_is_left_running_is_named_and_keeps_the_workspace_in_use(stand: Stand, tmp_path: Path) -> None:
    lock = os.fsencode(tmp_path / "lock")
    command = Command((b"sh", b"-c", b"sleep 4300 >/dev/null 2>&1 &"), ENV, stand.path(b"project"), lock=lock)
    outcome = start(the_place(stand), command).wait(20)
    assert outcome.code == 0 and len(outcome.left_running) == 1
    assert is_in_use(lock)
    os.kill(outcome.left_running[0], signal.SIGKILL)
    for _ in range(200):
        if not is_in_use(lock):
            return
        time.sleep(0.01)
    pytest.fail("the lock outlived the last process")


def test_signals_without_a_terminal_reach_the_command(stand: Stand) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        reset_work(stand.path(b"work"))
        code = _run_in_own_session(stand, "trap 'exit 42' TERM INT HUP; echo ready; while :; do sleep 0.05; done", number)
        assert code == 42


def _run_in_own_session(stand: Stand, script: str, number: int) -> int:
    """Start the supervisor in a process of its own, send it a signal, and return the exit code it reports."""
    project = stand.path(b"project")
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            command = Command((b"sh", b"-c", script.encode()), ENV, project, stdout=writing)
            os._exit(start(the_place(stand), command).wait(20).code)
        finally:
            os._exit(99)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.readline() == b"ready\n"
        os.kill(pid, number)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_on_a_terminal_control_c_reaches_the_command_once(stand: Stand) -> None:
    project = stand.path(b"project")
    pid, terminal = pty.fork()
    if not pid:
        try:
            script = b"trap 'echo caught' INT; echo ready; read line; echo got $line; test -t 0"
            os._exit(start(the_place(stand), Command((b"bash", b"-c", script), ENV, project)).wait(20).code)
        finally:
            os._exit(99)
    seen = _read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    seen += _read_until(terminal, b"caught")
    os.write(terminal, b"hello\n")
    with contextlib.suppress(OSError):
        seen += _read_until(terminal, b"got")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert seen.count(b"caught") == 1
    assert os.waitstatus_to_exitcode(status) in (0, 130)


def _read_until(fd: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        seen += os.read(fd, 1024)
    return seen


def test_the_command_dies_with_its_caller(stand: Stand) -> None:
    project = stand.path(b"project")
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            command = Command((b"sh", b"-c", b"echo $$; exec sleep 4300"), ENV, project, stdout=writing)
            start(the_place(stand), command).wait()
        finally:
            os._exit(99)
    os.close(writing)
    with open(reading, "rb") as pipe:
        child = int(pipe.readline())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert pipe.read() == b""
    for _ in range(500):
        if child not in members("", child):
            return
        time.sleep(0.01)
    pytest.fail("the command outlived its caller")


def test_several_at_once_from_threads(stand: Stand) -> None:
    codes: dict[int, int] = {}

    def one(number: int) -> None:
        layers = Layers((stand.path(b"lower"),), stand.path(b"u%d" % number), stand.path(b"w%d" % number))
        command = Command((b"sh", b"-c", b"echo x > made; exit %d" % number), ENV, stand.path(b"project"))
        codes[number] = start(the_place(stand, layers=layers), command).wait(20).code

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == {number: number for number in range(8)}
    assert all(os.path.exists(os.path.join(stand.path(b"u%d" % number), b"made")) for number in range(8))


def test_output_the_callers_python_ignores_is_not_ignored_inside(stand: Stand) -> None:
    assert run_in(stand, "yes | head -n 1; kill -PIPE $$")[0].code == 128 + signal.SIGPIPE


@pytest.fixture
def open_stand(stand: Stand) -> Iterator[Stand]:
    """The stand, owned by somebody who is not root, below directories anybody may pass."""
    for directory, dirs, files in os.walk(stand.top):
        for name in [b".", *dirs, *files]:
            os.chown(os.path.join(directory, name), SOMEBODY, SOMEBODY)
    path = stand.top
    changed = []
    while path not in (b"/", b"/tmp"):
        mode = os.stat(path).st_mode & 0o7777
        changed.append((path, mode))
        os.chmod(path, mode | 0o011)
        path = os.path.dirname(path)
    yield stand
    for path, mode in changed:
        os.chmod(path, mode)


def as_somebody(function: object) -> int:
    """Call a function in a child process that is an ordinary user, as after a login; return its exit code."""
    assert callable(function)
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            os._exit(function())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.usefixtures("need_user_namespace")
def test_without_root_the_command_keeps_its_uid_and_has_no_capability(open_stand: Stand) -> None:
    stand = open_stand
    place = the_place(stand, userns=True, userxattr=True)
    script = (
        "test $(id -u) = 4242 && test $(id -g) = 4242 && grep -q 'from the workspace' file "
        "&& grep -qE '^CapEff:.0+$' /proc/self/status && rm file && mkdir made && rm -r sub && mkdir sub "
        "&& mv made moved && exit 33"
    )
    command = Command((b"sh", b"-c", script.encode()), ENV, stand.path(b"project"))
    assert as_somebody(lambda: start(place, command).wait(20).code) == 33
    upper = stand.path(b"upper")
    assert os.lstat(os.path.join(upper, b"file")).st_rdev == 0
    assert os.getxattr(os.path.join(upper, b"sub"), "user.overlay.opaque") == b"y"
    assert os.path.isdir(os.path.join(upper, b"moved"))
    assert Path(os.fsdecode(stand.path(b"project")), "file").read_text() == "original\n"


@pytest.mark.usefixtures("need_user_namespace")
def test_without_root_time_up_ends_the_whole_tree(open_stand: Stand) -> None:
    stand = open_stand
    command = Command((b"sh", b"-c", b"setsid sleep 4301 & (sleep 4302 &); sleep 4300"), ENV, stand.path(b"project"))

    def check() -> int:
        running = start(the_place(stand, userns=True, userxattr=True), command)
        time.sleep(0.2)
        before = len(members(running.namespace, running.pid))
        outcome = running.wait(0.1)
        return 0 if before >= 4 and outcome.timed_out and not members(running.namespace, running.pid) else 1

    assert as_somebody(check) == 0


@pytest.mark.usefixtures("need_user_namespace")
def test_without_root_mounts_below_the_path_are_put_back(open_stand: Stand) -> None:
    stand = open_stand
    sub = os.path.join(stand.path(b"project"), b"sub")
    kernel.mount(b"none", sub, b"tmpfs")
    try:
        Path(os.fsdecode(sub), "data").write_text("data\n")
        command = Command((b"grep", b"-q", b"data", b"sub/data"), ENV, stand.path(b"project"))
        assert as_somebody(lambda: start(the_place(stand, userns=True, userxattr=True), command).wait(20).code) == 0
    finally:
        kernel.umount(sub)


@pytest.mark.usefixtures("need_user_namespace")
def test_denied_user_namespaces_are_named(open_stand: Stand) -> None:
    """The limit is set to 0 in a user namespace of the test's own; the machine's setting is left alone."""
    stand = open_stand

    def check() -> int:
        enter_user_namespace()
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        probe = probe_overlay(stand.top, userns=True)
        if probe.works or probe.reason != "user namespaces are denied":
            return 1
        try:
            start(the_place(stand, userns=True, userxattr=True), Command((b"true",), ENV, b"/"))
        except Unable:
            return 0
        return 2

    assert as_somebody(check) == 0


def test_the_probe_leaves_nothing_and_says_what_works(stand: Stand) -> None:
    before = sorted(os.listdir(stand.top))
    probe = probe_overlay(stand.top, userns=False)
    assert probe.works and probe.trusted and probe.redirects
    assert sorted(os.listdir(stand.top)) == before
    with open("/proc/self/mountinfo", "rb") as file:
        assert b"layerfs:probe" not in file.read()


def test_the_store_on_an_overlay_is_refused_by_name(stand: Stand) -> None:
    script = (
        "import os, sys; from layerfs.workspace.overlayprobe import why_not;"
        "reason = why_not(os.getcwdb()); print(reason); sys.exit(0 if reason else 1)"
    )
    env = {**ENV, b"PYTHONPATH": os.fsencode(os.pathsep.join(path or os.getcwd() for path in sys.path))}
    command = Command((os.fsencode(sys.executable), b"-c", script.encode()), env, stand.path(b"project"))
    assert start(the_place(stand), command).wait(20).code == 0


def test_nothing_of_this_module_runs_on() -> None:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 430" not in listing
