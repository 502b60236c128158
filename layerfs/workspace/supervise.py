"""Running a command in a workspace: start it, pass on what it is told, wait, and end all of it when time is up.

Owns fork, exec, signals and exit codes of ``run`` and ``shell``. Setting up happens in the child and is reported through
a close-on-exec pipe, so a workspace that could not be entered is never mistaken for a command that failed.

Terminal and signals: if this process is in the foreground of a terminal, the command stays in its process group. Then
Ctrl-C, Ctrl-Z and window changes reach the command from the kernel, a pipeline around ``layerfs run`` keeps working, and
only signals that somebody sends to layerfs itself are passed on. Without a terminal the command gets a process group of
its own, and every signal is passed on to that.

Everything that runs in a workspace is known by its mount namespace, also what has put itself in the background and lost
its parents. An inherited lock descriptor says to others that the workspace is in use as long as any of it lives; where
nothing can be mounted and so all share one namespace, that descriptor is what tells its processes from others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from layerfs.errors import Unable, quote
from layerfs.workspace import kernel
from layerfs.workspace.childprocess import encode_failure
from layerfs.workspace.namespace import Entered, Place, enter

NOT_EXECUTABLE = 126
NOT_FOUND = 127
_SETUP_FAILED = 125

GRACE_SECONDS = 2.0
"""How long a command may take to end by itself after SIGTERM once its time is up."""

_ALWAYS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WITHOUT_TERMINAL = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
_HEAD = struct.Struct("<BI")
_ENTERED, _SETUP, _EXEC = 1, 2, 3


class Command(NamedTuple):
    """What to run and how: arguments and environment as bytes, the caller's directory, where output goes if elsewhere.

    ``lock`` is the file whose shared lock says that the workspace is in use. ``dies_with_caller`` has the kernel send
    SIGTERM to the command if the thread that started it is killed.
    """

    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes]
    directory: bytes
    lock: bytes | None = None
    stdout: int | None = None
    stderr: int | None = None
    dies_with_caller: bool = True


class Outcome(NamedTuple):
    """How a command ended: its exit code (128 + n for signal n), whether time was up, and the pids it left running."""

    code: int
    timed_out: bool
    left_running: tuple[int, ...]


class Running:
    """A command that was started. :meth:`wait` must be called once, by the thread that started it.

    ``namespace`` names its mount namespace as the child itself saw it: a short command may be gone before we look.
    """

    def __init__(
        self, pid: int, own_group: bool, mask: set[int], lock_fd: int, lock: bytes | None = None
    ) -> None:
        self.pid = pid
        self._lock = None if lock is None else os.path.realpath(lock)
        self.own_group = own_group
        self.entered = Entered(b"", (), ())
        self.problem: str | None = None
        self._failed_code: int | None = None
        self._mask = mask
        self._lock_fd = lock_fd
        self.namespace = ""
        self.mark = b""

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for the command to end, passing signals on; after ``timeout`` seconds end everything it started."""
        try:
            if self._failed_code is not None:
                os.waitpid(self.pid, 0)
                return Outcome(self._failed_code, False, ())
            timed_out = self._watch(timeout)
            if timed_out:
                self._end_all()
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            left = () if timed_out else tuple(self._members())
            return Outcome(code if code >= 0 else 128 - code, timed_out, left)
        finally:
            self._release()

    def _watch(self, timeout: float | None) -> bool:
        """Return False when the command has ended and can be waited for, True when time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.ExitStack() as opened:
            ended = os.pidfd_open(self.pid)
            opened.callback(os.close, ended)
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            signals = -1
            if self._mask_numbers():
                signals = kernel.signalfd(self._mask_numbers())
                opened.callback(os.close, signals)
                poll.register(signals, select.POLLIN)
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
                ready = {fd for fd, _ in poll.poll(left)}
                if ended in ready:
                    return False
                if signals in ready:
                    self._pass_on(*kernel.read_signal(signals))
                elif deadline is not None and time.monotonic() >= deadline:
                    return True

    def _mask_numbers(self) -> tuple[signal.Signals, ...]:
        return _handled(self.own_group) if threading.current_thread() is threading.main_thread() else ()

    def _pass_on(self, number: int, code: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.own_group:
                os.killpg(self.pid, number)
                if number == signal.SIGTSTP:
                    os.kill(os.getpid(), signal.SIGSTOP)
            elif code != kernel.SI_KERNEL:
                os.kill(self.pid, number)

    def _end_all(self) -> None:
        """SIGTERM, a moment, then SIGKILL until nothing of it is left that we may kill."""
        for pid in self._members():
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and self._members():
            time.sleep(0.02)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            alive = self._members()
            if not alive:
                break
            for pid in alive:
                _send(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _members(self) -> list[int]:
        return members(self.namespace, self.pid, None if self.namespace else self._lock, self.mark)

    def _release(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def run(place: Place, command: Command, timeout: float | None = None) -> Outcome:
    """Start a command in a workspace and wait for it."""
    return start(place, command).wait(timeout)


def start(place: Place, command: Command) -> Running:
    """Start a command inside a workspace; returns once it runs.

    Raises Unable when the workspace cannot be entered. A command that cannot be executed is no error here: ``problem``
    says why, and waiting gives 127 (not found) or 126. ``entered`` says where it is and which mounts it has lost.
    """
    own_group = not in_foreground()
    lock_fd = lock_shared(command.lock) if command.lock is not None else -1
    reading, writing = os.pipe2(os.O_CLOEXEC)
    handled = _handled(own_group) if threading.current_thread() is threading.main_thread() else ()
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, handled)}
    caller = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        Running(0, own_group, mask, lock_fd)._release()
        raise
    if not pid:
        _become(place, command, own_group, mask, lock_fd, writing, caller)
    os.close(writing)
    running = Running(pid, own_group, mask, lock_fd, command.lock)
    try:
        with open(reading, "rb") as pipe:
            messages = list(_messages(pipe.read()))
        _take_report(running, place, command, messages)
    except BaseException:
        _send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        running._release()
        raise
    return running


def _take_report(
    running: Running, place: Place, command: Command, messages: list[tuple[int, list[bytes]]]
) -> None:
    for kind, fields in messages:
        if kind == _ENTERED:
            running.namespace = fields[0].decode("ascii")
            running.mark = b" " + place.source + b" " if place.layers is not None else b""
            count = int(fields[2])
            running.entered = Entered(fields[1], tuple(fields[3 : 3 + count]), tuple(fields[3 + count :]))
            continue
        number, text = int(fields[0]), fields[1].decode("utf-8", "replace")
        if kind == _SETUP:
            raise Unable(
                f"cannot enter the workspace at {quote(place.target)}: {text}", "layerfs doctor explains"
            )
        running._failed_code = NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
        running.problem = f"cannot run {quote(command.argv[0])}: {os.strerror(number).lower()}"
    if not messages:
        raise Unable(f"cannot enter the workspace at {quote(place.target)}: the child process was killed")


def in_foreground() -> bool:
    """Whether this process has a terminal and is in its foreground group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _handled(own_group: bool) -> tuple[signal.Signals, ...]:
    return (*_ALWAYS, *_WITHOUT_TERMINAL) if own_group else _ALWAYS


def lock_shared(path: bytes) -> int:
    """Take the in-use lock of a workspace beside others; return its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:
            above = os.stat(os.path.dirname(path))
            os.fchown(fd, above.st_uid, above.st_gid)
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_in_use(lock: bytes) -> bool:
    """Whether any process holds the in-use lock of a workspace."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# -- the child ----------------------------------------------------------------------------------------------------------


def _become(
    place: Place,
    command: Command,
    own_group: bool,
    mask: set[int],
    lock_fd: int,
    writing: int,
    caller: int,
) -> NoReturn:
    """Turn this forked child into the command; it never returns."""
    kind = _SETUP
    try:
        if own_group:
            os.setpgid(0, 0)
        entered = enter(place, command.directory)
        if lock_fd >= 0:
            os.set_inheritable(lock_fd, True)
        for fd, standard in ((command.stdout, 1), (command.stderr, 2)):
            if fd is not None:
                os.dup2(fd, standard)
        if command.dies_with_caller:
            kernel.set_parent_death_signal(signal.SIGTERM)
            if os.getppid() != caller:
                os._exit(_SETUP_FAILED)
        for number in (*_RESET, *_handled(own_group)):
            if number in _RESET or callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        namespace = b"" if place.elsewhere else os.readlink(b"/proc/self/ns/mnt")
        fields = [namespace, entered.directory, b"%d" % len(entered.kept), *entered.kept, *entered.lost]
        _report(writing, _ENTERED, b"\0".join(fields))
        kind = _EXEC
        env = dict(command.env)
        env[b"PWD"] = entered.directory
        execute(command.argv, env)
    except BaseException as error:
        _report(writing, kind, encode_failure(error))
    finally:
        os._exit(_SETUP_FAILED)


def execute(argv: Sequence[bytes], env: Mapping[bytes, bytes]) -> NoReturn:
    """execvp(3) with an environment: search ``PATH``, and give a script without ``#!`` to the shell as shells do."""
    refused: OSError | None = None
    for path in _candidates(argv[0], env):
        try:
            os.execve(path, tuple(argv), env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve(b"/bin/sh", (b"sh", path, *argv[1:]), env)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _candidates(name: bytes, env: Mapping[bytes, bytes]) -> list[bytes]:
    if b"/" in name or not name:
        return [name]
    directories = env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    return [os.path.join(directory or b".", name) for directory in directories]


def _report(writing: int, kind: int, payload: bytes) -> None:
    data = _HEAD.pack(kind, len(payload)) + payload
    while data:
        data = data[os.write(writing, data) :]


def _messages(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    at = 0
    while at + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield kind, data[at : at + length].split(b"\0")
        at += length


# -- who belongs to a run -----------------------------------------------------------------------------------------------


def members(namespace: str, root: int, lock: bytes | None = None, mark: bytes = b"") -> list[int]:
    """Return the living processes of a run: those in its mount namespace or below it, and ``root`` itself.

    Being below counts because a process may have moved on to a namespace of its own, and one that changed its user
    does not let us see its namespace. A run without a namespace of its own is known by its ``lock`` (a real path). The
    kernel gives the number of a namespace that ended to the next one; ``mark`` (the workspace's own mount, as the mount
    table names it) tells the two apart.
    """
    parents: dict[int, int] = {}
    inside: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        state, parent = _state(pid)
        if state in "ZX":
            continue
        parents[pid] = parent
        if namespace:
            belongs = _namespace_of(pid) == namespace and (not mark or _shows(pid, mark))
        else:
            belongs = lock is not None and _has_open(pid, lock)
        if pid == root or belongs:
            inside.add(pid)
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in inside} - inside
        inside |= below
        grown = bool(below)
    return sorted(inside - {os.getpid()})


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state letter and parent; a process that is gone is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0].decode("ascii"), int(fields[1])


def _shows(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


def _namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _has_open(pid: int, path: bytes) -> bool:
    top = b"/proc/%d/fd" % pid
    try:
        return any(os.readlink(os.path.join(top, name)) == path for name in os.listdir(top))
    except OSError:
        return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
