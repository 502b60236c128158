"""Every cut of the write stream: the files of a store, SQLite's included, rebuilt as they were after each write.

One writer is traced; what it wrote, truncated, renamed and synced is replayed up to each of these calls, in three ways:
as a killed process leaves it; as a power loss leaves it that takes back all that was not synced; and as one that leaves,
of what was not synced, some sectors of 512 bytes and not others. SQLite's shared memory is not among them: it is made
anew.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from storekit import assert_clean, files_of, make_store, open_store, write_file
from world import ROOT

SEED = int(os.environ.get("CRASH_SEED", "20250101"))
SECTOR = 512
CUTS = 40
WAYS = ("killed", "unsynced lost", "sectors torn")

STORY = """
import sys
from pathlib import Path
from layerfs.objects.kinds import Kind
from storekit import open_store, write_file
number = 0
for session in range(3):
    with open_store(Path(sys.argv[1]), seal_bytes=3_000) as store:
        for _ in range(5):
            write_file(store, "a", b"f%d" % number, b"content %d " % number * 40)
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()
            number += 1
        with store.batch(threads=1) as batch:
            for piece in range(2100):
                batch.put(Kind.CHUNK, b"%d %d" % (number, piece))
            with store.lane() as lane:
                lane.apply(batch, [], "bulk")
"""

TRACED = (
    "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,"
    "ftruncate,fallocate,mkdirat"
)
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\w+)(?:<([^>]*)>)?")
_FILE = re.compile(r"^(?:AT_FDCWD|\d+)<([^>]*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Event(NamedTuple):
    """One call: its kind, the paths it names, and the bytes and number it was given."""

    kind: str
    paths: tuple[bytes, ...]
    data: bytes = b""
    number: int = 0


def unescape(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def events_of(log: Path, store: Path) -> Iterator[Event]:
    """Yield what the traced process did to the store, and each line it printed."""
    top = os.fsencode(store) + b"/"
    for line in log.read_text("ascii").splitlines():
        match = _CALL.match(line)
        if match is None or match[3].startswith("-"):
            continue
        kind, words, _, opened = match.groups()
        on = _FILE.match(words)
        path = unescape(on[1]) if on else b""
        strings = [unescape(text) for text in _STRING.findall(words)]
        if kind == "openat":
            made = unescape(opened)
            if "O_CREAT" in words and made.startswith(top):
                yield Event("create", (made.removeprefix(top),))
        elif kind == "write":
            if words.startswith("1<"):
                yield Event("said", (), strings[0])
            else:
                assert not path.startswith(top), line
        elif kind in ("pwrite64", "ftruncate", "fsync", "fdatasync", "fallocate"):
            if path.startswith(top):
                number = int(words.rpartition(", ")[2]) if kind in ("pwrite64", "ftruncate") else 0
                yield Event(kind, (path.removeprefix(top),), strings[0] if strings else b"", number)
        else:
            directories = [unescape(text) for text in re.findall(r"(?:AT_FDCWD|\d+)<([^>]*)>", words)]
            full = [
                name if name.startswith(b"/") else directories[min(at, len(directories) - 1)] + b"/" + name
                for at, name in enumerate(strings)
            ]
            if all(name.startswith(top) for name in full):
                yield Event(kind, tuple(name.removeprefix(top) for name in full))


class File:
    """A file as processes see it, and the writes that a power loss may take back, oldest first."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.synced = b""
        self.since: list[tuple[int, bytes] | int] = []

    def write(self, at: int, data: bytes) -> None:
        self._put(self.now, at, data)
        self.since.append((at, data))

    def truncate(self, length: int) -> None:
        self._cut(self.now, length)
        self.since.append(length)

    def sync(self) -> None:
        self.synced = bytes(self.now)
        self.since.clear()

    def torn(self, rng: random.Random) -> bytes:
        """Return the content after a power loss that left some sectors of what was not synced."""
        content = bytearray(self.synced)
        for change in self.since:
            if isinstance(change, int):
                if rng.random() < 0.5:
                    self._cut(content, change)
                continue
            at, data = change
            start = 0
            while start < len(data):
                end = min(len(data), start + SECTOR - (at + start) % SECTOR)
                if rng.random() < 0.5:
                    self._put(content, at + start, data[start:end])
                start = end
        return bytes(content)

    @staticmethod
    def _put(content: bytearray, at: int, data: bytes) -> None:
        content.extend(bytes(max(0, at - len(content))))
        content[at : at + len(data)] = data

    @staticmethod
    def _cut(content: bytearray, length: int) -> None:
        del content[length:]
        content.extend(bytes(length - len(content)))


class Disk:
    """The files of the store at one moment of the stream; names are never taken back."""

    def __init__(self, store: Path) -> None:
        self.files: dict[bytes, File] = {}
        for path in store.rglob("*"):
            if path.is_file():
                file = self.files[os.fsencode(path.relative_to(store))] = File()
                file.write(0, path.read_bytes())
                file.sync()

    def do(self, event: Event) -> None:
        """Apply one call."""
        files, path = self.files, event.paths[0]
        if event.kind == "create":
            files.setdefault(path, File())
        elif event.kind == "pwrite64":
            files[path].write(event.number, event.data)
        elif event.kind == "ftruncate":
            files[path].truncate(event.number)
        elif event.kind in ("fsync", "fdatasync"):
            if path in files:
                files[path].sync()
        elif event.kind in ("rename", "renameat", "renameat2"):
            files[event.paths[1]] = files.pop(path)
        elif event.kind in ("link", "linkat"):
            files[event.paths[1]] = files[path]
        elif event.kind in ("unlink", "unlinkat"):
            files.pop(path, None)

    def lay_out(self, place: Path, way: str, rng: random.Random) -> None:
        """Write the files as a crash of this kind leaves them."""
        for directory in ("packs", "tmp", "cache", "workspaces", "mnt"):
            (place / directory).mkdir(parents=True, mode=0o700, exist_ok=True)
        place.chmod(0o700)
        for path, file in self.files.items():
            if path.endswith(b"-shm"):
                continue
            target = place / os.fsdecode(path)
            if way == "killed":
                target.write_bytes(file.now)
            else:
                target.write_bytes(file.synced if way == "unsynced lost" else file.torn(rng))
            target.chmod(0o600)


def record(tmp_path: Path) -> tuple[Path, list[Event]]:
    """Run the story under trace; return a store as it was before it, and what happened."""
    before, place, log = tmp_path / "before", tmp_path / "s", tmp_path / "strace.log"
    make_store(before).close()
    shutil.copytree(before, place)
    command = [
        "strace",
        "-f",
        "-qq",
        "-y",
        "-xx",
        "-s",
        "100000000",
        "-e",
        f"trace=?{TRACED.replace(',', ',?')}",
    ]
    done = subprocess.run(
        [*command, "-o", log, sys.executable, "-c", STORY, place],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'man'}"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return before, list(events_of(log, place))


def test_every_cut_of_the_write_stream(
    need_strace: None, tmp_path: Path, memory: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever the cut and the way, the store opens at the last acknowledged commit, or a whole one after it."""
    before, events = record(tmp_path)
    changing = [at for at, event in enumerate(events) if event.kind != "said"]
    of_the_database = sum(events[at].paths[0].startswith(b"meta.db") for at in changing)
    assert of_the_database > 100, "the database hardly wrote anything"
    rng = random.Random(SEED)
    chosen = set(changing if request.config.getoption("--full") else rng.sample(changing, CUTS))
    disk, said = Disk(before), b""
    points = behind = 0
    for at, event in enumerate(events):
        if event.kind == "said":
            said += event.data
            continue
        disk.do(event)
        for way in WAYS if at in chosen else ():
            place = memory / f"cut{at}"
            disk.lay_out(place, way, rng)
            try:
                behind += check(place, said.count(b"\n"))
            except BaseException:
                print(f"cut after call {at} of {len(events)}, {event.kind} {event.paths}: {way}; seed {SEED}")
                raise
            points += 1
            shutil.rmtree(place)
    print(
        f"{points} cuts ({of_the_database} calls of the database), nothing lost; {behind} were recovered by replay"
    )


def check(place: Path, acknowledged: int) -> bool:
    """Open what a cut left; return whether the database had to catch up."""
    with open_store(place, attach=False) as store:
        store.attach_as_is()
        known = store.db.state().sequence
    with open_store(place) as store:
        found = files_of(store, "a")
        assert acknowledged <= len(found) <= acknowledged + 1, "an acknowledged commit is lost"
        assert found == {b"f%d" % number: b"content %d " % number * 40 for number in range(len(found))}
        behind = store.db.state().sequence > known
        assert_clean(store)
        write_file(store, "a", b"goes on", b"goes on")
        store.sweep()
        assert_clean(store)
    assert not [name for name in os.listdir(place / "packs") if name.startswith(".")]
    return behind
