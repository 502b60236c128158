"""Files against a model: random operations on a few names, and every read must give what byte arrays say.

Names are hard links to contents, contents are byte arrays, descriptors outlive names. For places that only another
process can see, :func:`main` takes the directories that :func:`prepare` made one after the other.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from mounting import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

BASE = {"base0": b"0123456789" * 50, "base1": b"", "base2": bytes(range(256)) * 300}
NAMES = st.sampled_from([*BASE, "new0", "new1", "dir/one", "dir/two"])
OFFSETS = st.one_of(st.integers(0, 600), st.integers(60_000, 90_000))
DATA = st.binary(min_size=1, max_size=300)


def prepare(place: Path) -> None:
    """Make what every example begins with."""
    (place / "dir").mkdir(parents=True)
    for name, content in BASE.items():
        (place / name).write_bytes(content)


class Files(RuleBasedStateMachine):
    """``begin`` makes a prepared directory, ``end`` takes it away."""

    begin: Callable[[], Path]
    end: Callable[[Path], None]

    def __init__(self) -> None:
        super().__init__()
        self.top = type(self).begin()
        self.contents = [bytearray(content) for content in BASE.values()]
        self.names = {name: number for number, name in enumerate(BASE)}
        self.open: list[tuple[int, int]] = []

    def teardown(self) -> None:
        try:
            for name, number in self.names.items():
                assert (self.top / name).read_bytes() == self.contents[number], name
            listed = {str(path.relative_to(self.top)) for path in self.top.rglob("*") if path.name != "dir"}
            assert listed - {".layerfs"} == self.names.keys()
        finally:
            for fd, _ in self.open:
                os.close(fd)
            type(self).end(self.top)

    def path(self, name: str) -> bytes:
        return os.fsencode(self.top / name)

    @rule(name=NAMES, append=st.booleans(), readonly=st.booleans())
    def open_file(self, name: str, append: bool, readonly: bool) -> None:
        if len(self.open) > 6:
            os.close(self.open.pop(0)[0])
        flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT | (os.O_APPEND if append else 0)
        try:
            fd = os.open(self.path(name), flags, 0o644)
        except FileNotFoundError:
            assert readonly and name not in self.names
            return
        if name not in self.names:
            self.contents.append(bytearray())
            self.names[name] = len(self.contents) - 1
        self.open.append((fd, self.names[name]))

    def some(self, pick: int) -> tuple[int, bytearray, int]:
        fd, number = self.open[pick % len(self.open)]
        return fd, self.contents[number], fcntl.fcntl(fd, fcntl.F_GETFL)

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 9), offset=OFFSETS, data=DATA)
    def write(self, pick: int, offset: int, data: bytes) -> None:
        fd, content, flags = self.some(pick)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return
        if flags & os.O_APPEND:
            assert os.write(fd, data) == len(data)
            content += data
            return
        assert os.pwrite(fd, data, offset) == len(data)
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 9), offset=OFFSETS, length=st.integers(1, 1000))
    def read(self, pick: int, offset: int, length: int) -> None:
        fd, content, _ = self.some(pick)
        assert os.pread(fd, length, offset) == bytes(content[offset : offset + length])
        assert os.fstat(fd).st_size == len(content)

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 9), length=OFFSETS, sync=st.booleans())
    def truncate_open(self, pick: int, length: int, sync: bool) -> None:
        fd, content, flags = self.some(pick)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return
        os.ftruncate(fd, length)
        self._cut(content, length)
        if sync:
            os.fsync(fd)

    @rule(name=NAMES, length=OFFSETS)
    def truncate_named(self, name: str, length: int) -> None:
        if name not in self.names:
            return
        os.truncate(self.path(name), length)
        self._cut(self.contents[self.names[name]], length)

    @staticmethod
    def _cut(content: bytearray, length: int) -> None:
        del content[length:]
        content.extend(bytes(length - len(content)))

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 9), at=st.integers(0, 5000), data=DATA)
    def map_and_write(self, pick: int, at: int, data: bytes) -> None:
        fd, content, flags = self.some(pick)
        if flags & os.O_ACCMODE == os.O_RDONLY or at + len(data) > len(content):
            return
        with mmap.mmap(fd, len(content)) as view:
            assert view[:] == bytes(content)
            view[at : at + len(data)] = data
        content[at : at + len(data)] = data

    @rule(old=NAMES, new=NAMES, flags=st.sampled_from([0, 0, RENAME_EXCHANGE, RENAME_NOREPLACE]))
    def rename(self, old: str, new: str, flags: int) -> None:
        try:
            renameat2(self.path(old), self.path(new), flags)
        except FileNotFoundError:
            assert old not in self.names or (flags == RENAME_EXCHANGE and new not in self.names)
            return
        except FileExistsError:
            assert flags == RENAME_NOREPLACE and new in self.names
            return
        except OSError as error:
            # overlayfs may say so of two names of one file, where a disk does nothing: layerfs-posix(7)
            if error.errno != errno.ESTALE or self.names.get(old) != self.names.get(new):
                raise
            return
        assert not (flags == RENAME_NOREPLACE and new in self.names)
        if flags == RENAME_EXCHANGE:
            self.names[old], self.names[new] = self.names[new], self.names[old]
        elif self.names.get(new) != self.names[old]:
            self.names[new] = self.names.pop(old)

    @rule(old=NAMES, new=NAMES)
    def link(self, old: str, new: str) -> None:
        try:
            os.link(self.path(old), self.path(new))
        except FileExistsError:
            assert new in self.names
            return
        except FileNotFoundError:
            assert old not in self.names
            return
        self.names[new] = self.names[old]

    @rule(name=NAMES)
    def unlink(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            assert name not in self.names
            return
        del self.names[name]

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        try:
            info = os.stat(self.path(name))
        except FileNotFoundError:
            assert name not in self.names
            return
        number = self.names[name]
        assert info.st_size == len(self.contents[number])
        assert info.st_nlink == list(self.names.values()).count(number)

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        os.close(self.open.pop(pick % len(self.open))[0])


def run_model(
    begin: Callable[[], Path], end: Callable[[Path], None], examples: int, *, shrink: bool = True
) -> None:
    """Run the machine in the directories that ``begin`` gives; without ``shrink`` a failure is told as it was found."""
    machine = type("FilesHere", (Files,), {"begin": staticmethod(begin), "end": staticmethod(end)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def main(top: str) -> None:
    """Run the machine in directories prepared before; there must be more than it needs."""
    prepared = sorted(Path(top).glob("m*"))
    run_model(prepared.pop, lambda place: None, max(1, len(prepared) // 16), shrink=False)
