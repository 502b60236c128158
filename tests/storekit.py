"""What the tests of the store share: small histories, a fault-injecting file layer, and child processes that write."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from world import ROOT

from layerfs.durable.atomicfile import Files
from layerfs.ids import CommitId, ObjectId
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.content import put_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import edit_paths, lookup_path, put_root, read_root
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd, RefSet
from layerfs.objects.trees import build_tree
from layerfs.store.store import Store
from layerfs.upkeep.verify import verify_store

HEADS = "refs/heads/"
DIRECTORY = Entry(EntryKind.DIR, 0o755, 0, 0, 0, 0, b"", (), 0)


def make_store(path: Path, **options: Any) -> Store:
    """Create a store with the system's clock."""
    return Store.create(os.fsencode(path), clock=time.time_ns, **options)


def open_store(path: Path, **options: Any) -> Store:
    """Open a store with the system's clock."""
    return Store.open(os.fsencode(path), clock=time.time_ns, **options)


def write_file(store: Store, branch: str, path: bytes, content: bytes, timeout: float = 60.0) -> CommitId:
    """Commit one file to a branch the way every writer does: heavy work outside the lane, and a rebase inside."""
    with store.batch() as batch:
        kept = put_content(batch, content)
        entry = Entry(EntryKind.FILE, 0o644, 0, 0, 0, kept.size, kept.ref, (), 0)
        batch.prepare()
        with store.lane(timeout) as lane:
            head = lane.refs.head(branch)
            if head is None:
                root = DIRECTORY._replace(ref=build_tree(batch, []))
            else:
                from layerfs.objects.commits import read_commit

                root = read_root(store.objects, read_commit(store.objects, head).root)
            changes = {path: entry}
            for end in [at for at, byte in enumerate(path) if byte == 0x2F]:
                if lookup_path(batch, root, path[:end]) is None:
                    changes[path[:end]] = DIRECTORY
            root = edit_paths(batch, root, changes)
            parents = (head,) if head is not None else ()
            commit = put_commit(batch, Commit(put_root(batch, root), parents, 0, 0, "t", path.decode("latin-1")))
            lane.apply(batch, [RefSet(HEADS + branch, head, commit, "commit")], "test")
    return commit


def publish(store: Store, branch: str) -> None:
    """Put the head of a branch on top of main."""
    with store.batch() as batch, store.lane() as lane:
        top = lane.refs.main_layer()
        number = 1 if top is None else top.number + 1
        commit = lane.refs.need_head(branch)
        how = "init" if top is None else "ff"
        layer = put_layer(batch, Layer(number, commit, None if top is None else top.layer, how, 0, "t", "m"))
        lane.apply(batch, [LayerAdd(number, layer, commit)], "t")


def files_of(store: Store, branch: str) -> dict[bytes, bytes]:
    """Return path → content of a branch."""
    from layerfs.objects.commits import read_commit
    from layerfs.objects.content import read_content
    from layerfs.objects.environment import walk

    head = store.refs.head(branch)
    if head is None:
        return {}
    root = read_root(store.objects, read_commit(store.objects, head).root)
    return {
        path: read_content(store.objects, entry)
        for path, entry in walk(store.objects, root)
        if entry.kind == EntryKind.FILE
    }


def assert_clean(store: Store, read_data: bool = True) -> None:
    """Fail with the list of what fsck finds."""
    report = verify_store(store, read_data)
    assert report.clean, "\n".join(str(problem) for problem in report.problems)


DIED = 99


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child, which may die at any point; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class FaultyFiles(Files):
    """Counts durable calls and makes the n-th one fail, or the process die before it.

    With ``power`` a crash also takes back every write that was not synced since, which is what a power loss may do.
    """

    def __init__(self, fail_at: int | None = None, crash: bool = False, power: bool = False) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.crash = crash
        self.power = power
        self.calls = 0
        self._unsynced: dict[tuple[int, int], list[tuple[int, int, bytes, int]]] = {}

    def _step(self) -> None:
        self.calls += 1
        if self.fail_at is not None and self.calls == self.fail_at:
            if self.crash:
                if self.power:
                    self._lose_unsynced()
                os._exit(DIED)
            from layerfs.durable.atomicfile import storage_error

            raise storage_error(OSError(errno.ENOSPC, "injected"), "testing")

    def _lose_unsynced(self) -> None:
        for writes in self._unsynced.values():
            for descriptor, offset, old, length in reversed(writes):
                os.pwrite(descriptor, old, offset)
                os.ftruncate(descriptor, length)

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self._step()
        status = os.fstat(descriptor)
        old = os.pread(descriptor, len(data), offset)
        key = (status.st_dev, status.st_ino)
        self._unsynced.setdefault(key, []).append((os.dup(descriptor), offset, old, status.st_size))
        super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self._step()
        super().sync(descriptor)
        status = os.fstat(descriptor)
        for write in self._unsynced.pop((status.st_dev, status.st_ino), []):
            os.close(write[0])

    def sync_directory(self, dir_fd: int) -> None:
        self._step()
        super().sync_directory(dir_fd)

    def rename(self, dir_fd: int, old: bytes, new: bytes) -> None:
        self._step()
        super().rename(dir_fd, old, new)

    def rename_new(self, dir_fd: int, old: bytes, new: bytes) -> None:
        self._step()
        super().rename_new(dir_fd, old, new)

    def truncate(self, descriptor: int, length: int) -> None:
        self._step()
        super().truncate(descriptor, length)

    def done(self) -> None:
        """Close what was kept to take writes back."""
        for writes in self._unsynced.values():
            for write in writes:
                os.close(write[0])
        self._unsynced.clear()


def copy_store(source: Path, target: Path) -> None:
    """Copy a closed or crashed store as it lies on disk."""
    shutil.copytree(source, target)


def start_writer(store: Path, script: str, *args: str) -> subprocess.Popen[bytes]:
    """Start a real process that runs ``script`` with STORE and the arguments in ``sys.argv``."""
    environment = dict(os.environ, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'man'}")
    return subprocess.Popen(
        [sys.executable, "-c", script, os.fspath(store), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def finish(process: subprocess.Popen[bytes], timeout: float = 120) -> bytes:
    """Wait for a writer that must succeed; return what it printed."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err.decode(errors="replace")
    return out


def kill(process: subprocess.Popen[bytes]) -> bytes:
    """Kill a writer with SIGKILL; return what it had printed."""
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    return out


def until_clean(run: Callable[[int], bool], limit: int = 400) -> int:
    """Call ``run(n)`` for n = 1, 2, … until it says that nothing failed any more; return how many points there were."""
    for point in range(1, limit):
        if run(point):
            return point - 1
    raise AssertionError("the run never came to its end")


def some_id(byte: int) -> ObjectId:
    """Return an id no object has."""
    return ObjectId(bytes((byte,)) * 32)
