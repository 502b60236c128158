"""Calling a function in a forked child, because namespaces belong to processes and must not stick to this one.

Owns the pipe by which the child's result or failure comes back as itself: an OSError in the child is a
:class:`ChildFailed` with the same errno here, and a child that dies otherwise is one without. The child never returns
into the caller's code and runs none of its exit handlers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

_OK = b"ok"


class ChildFailed(Exception):
    """What went wrong in the child: ``errno`` (0 if it was no system call) and the text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number
        self.text = text


def call_in_child(function: Callable[[], bytes]) -> bytes:
    """Run ``function`` in a child process and return its result (at most a pipe full); raise ChildFailed."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        _run(function, writing)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            message = pipe.read()
    finally:
        _, status = os.waitpid(pid, 0)
    kind, _, rest = message.partition(b"\0")
    if kind == _OK:
        return rest
    if not message:
        raise ChildFailed(0, f"the child process ended with status {os.waitstatus_to_exitcode(status)}")
    raise ChildFailed(int(kind), rest.decode("utf-8", "replace"))


def _run(function: Callable[[], bytes], writing: int) -> NoReturn:
    code = 1
    try:
        os.write(writing, _OK + b"\0" + function())
        code = 0
    except BaseException as error:
        os.write(writing, encode_failure(error))
    finally:
        os._exit(code)


def encode_failure(error: BaseException) -> bytes:
    """Return an exception as ``errno NUL text``, short enough to be written to a pipe in one piece."""
    number = error.errno or 0 if isinstance(error, OSError) else 0
    text = (
        (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    )
    if isinstance(error, OSError) and error.filename is not None:
        text += f": {error.filename!r}"
    return b"%d\0%s" % (number, text.encode("utf-8", "replace")[:2000])
