"""The one door to the process's surroundings: environment, clock, working directory, user, host, terminal.

Owns every read of ``os.environ``, the clock, the user database and the terminal. A :class:`Context` is a frozen value
made once per process by :func:`read_context`; everything below the command line takes it, or the time, as an argument.

Three variables make a run reproducible and are documented as testing aids in layerfs-scripting(7):

* ``LAYERFS_CLOCK``: nanoseconds since the epoch of the first reading; each further reading is one second later.
* ``LAYERFS_AUTHOR``: the author recorded in commits and layers, instead of ``name <user@host>``.
* ``COLUMNS``: the terminal's width.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from layerfs.errors import UsageError, quote

NANOSECONDS = 1_000_000_000


class SteppingClock:
    """A clock for tests: starts at a given instant, and every reading is one second after the one before."""

    def __init__(self, start_ns: int) -> None:
        self._next_ns = start_ns

    def __call__(self) -> int:
        now = self._next_ns
        self._next_ns += NANOSECONDS
        return now


class Context(NamedTuple):
    """What a command may know of the world around it."""

    env: Mapping[str, str]
    clock: Callable[[], int]
    cwd: bytes
    uid: int
    columns: int
    stdin_tty: bool = False
    stdout_tty: bool = False
    stderr_tty: bool = False

    def now_ns(self) -> int:
        """Return the current time in nanoseconds since the epoch."""
        return self.clock()

    def tz_minutes(self, when_ns: int) -> int:
        """Return the local offset from UTC, in minutes, at ``when_ns``."""
        return time.localtime(when_ns // NANOSECONDS).tm_gmtoff // 60

    def author(self) -> str:
        """Return ``name <address>`` for what this process writes (``LAYERFS_AUTHOR``, git's variables, the account)."""
        given = self.env.get("LAYERFS_AUTHOR")
        if given:
            return given
        name, login = _account(self.uid)
        name = self.env.get("GIT_AUTHOR_NAME") or name or login
        address = self.env.get("GIT_AUTHOR_EMAIL") or f"{login}@{self.hostname()}"
        return f"{name} <{address}>"

    def environment_bytes(self) -> dict[bytes, bytes]:
        """Return the environment as a new process takes it."""
        return {os.fsencode(name): os.fsencode(value) for name, value in self.env.items()}

    def hostname(self) -> str:
        """Return this machine's name."""
        return os.uname().nodename or "localhost"

    def home(self) -> bytes:
        """Return the home directory, from ``HOME`` or else from the user database."""
        given = self.env.get("HOME")
        return os.fsencode(given) if given else os.path.expanduser(b"~")

    def data_home(self) -> bytes:
        """Return ``$XDG_DATA_HOME``, by default ``~/.local/share``; a relative value is ignored, as XDG demands."""
        given = self.env.get("XDG_DATA_HOME", "")
        if given.startswith("/"):
            return os.fsencode(given)
        return os.path.join(self.home(), b".local", b"share")

    def absolute(self, path: str | bytes) -> bytes:
        """Return a path given on the command line as an absolute, normalised byte path (links are not resolved)."""
        return os.path.normpath(os.path.join(self.cwd, os.fsencode(path)))


def read_context() -> Context:
    """Read the surroundings of this process once."""
    env = dict(os.environ)
    return Context(
        env=env,
        clock=_clock(env.get("LAYERFS_CLOCK")),
        cwd=current_directory(env),
        uid=os.geteuid(),
        columns=_columns(env),
        stdin_tty=_is_tty(0),
        stdout_tty=_is_tty(1),
        stderr_tty=_is_tty(2),
    )


def current_directory(env: Mapping[str, str]) -> bytes:
    """Return the working directory, as the shell names it (``PWD``) when that is the same directory.

    The shell's name keeps symbolic links, so messages show the path the user typed; it is believed only if it leads to
    the very directory the kernel says.
    """
    try:
        here = os.getcwdb()
    except FileNotFoundError:
        return b"/"
    named = env.get("PWD", "")
    if named.startswith("/") and os.path.normpath(named) == named:
        try:
            if os.path.samestat(os.stat(named), os.stat(here)):
                return os.fsencode(named)
        except OSError:
            return here
    return here


def _clock(given: str | None) -> Callable[[], int]:
    if given is None:
        return time.time_ns
    try:
        return SteppingClock(int(given))
    except ValueError:
        raise UsageError(f"LAYERFS_CLOCK is not a number of nanoseconds: {quote(given)}") from None


def _columns(env: Mapping[str, str]) -> int:
    given = env.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return min(int(given), 10_000)
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                return os.get_terminal_size(stream.fileno()).columns or 80
        except (OSError, ValueError):
            continue
    return 80


def _is_tty(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _account(uid: int) -> tuple[str, str]:
    """Return the full name and login of ``uid``; an account without an entry (containers) is named by its number."""
    import pwd

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return "", f"uid{uid}"
    return entry.pw_gecos.split(",")[0].strip(), entry.pw_name
