"""Input and output inside an overlay workspace against the same on the file system below it.

Run ``python benchmarks/workspace_io.py [--rounds N] [--quick] [--json FILE]`` as root. Sequential and random reading (of
a file from the captured state) and writing by fio, creating 1,000 files, a local git clone, unpacking a package archive,
and a walk that stats everything. Both sides lie on one disk and start from the same files; times, so less is better. An
overlay mounted by hand over a copy of the same files, with the kernel's defaults, is measured beside both: what it
costs more than the file system below is the kernel's own, and no row of ours.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import environment, need, scratch
from benchmarks.harness import Contender, Result

GOAL = 1 / 0.9
GOAL_CREATE = 1 / 0.6
MEGABYTES = 256


class Job(NamedTuple):
    """Something done in a directory, what it leaves there (removed untimed), and the goal."""

    name: str
    run: Callable[[Path], object]
    leaves: str | None
    goal: float


def fio(mode: str, file: str, megabytes: int, top: Path) -> object:
    """Run fio on one file through the page cache; random access touches a quarter of it, 4 KiB at a time."""
    block = "4k" if mode.startswith("rand") else "1M"
    amount = megabytes // 4 if mode.startswith("rand") else megabytes
    flush = ["--end_fsync=1"] if "write" in mode else []
    return peers.run(
        *("fio", "--name=job", f"--filename={top / file}", f"--rw={mode}", f"--bs={block}"),
        *(
            f"--size={megabytes}M",
            f"--io_size={amount}M",
            "--ioengine=psync",
            "--output-format=terse",
            "--invalidate=0",
        ),
        *("--randseed=7", "--allow_file_create=1", *flush),
    )


def create(count: int, top: Path) -> None:
    """Create small files in one new directory."""
    place = top / "created"
    place.mkdir()
    for number in range(count):
        with open(place / f"file-{number}", "wb") as file:
            file.write(b"content\n")


def walk(top: Path) -> int:
    """Stat everything, as find and language tools do."""
    found = 0
    for directory, _, names in os.walk(top):
        for name in names:
            os.lstat(os.path.join(directory, name))
            found += 1
    return found


def jobs(archive: Path, megabytes: int, files: int, with_fio: bool) -> list[Job]:
    """Return what is compared."""

    def clone(top: Path) -> object:
        return peers.run("git", "clone", "-q", "--no-hardlinks", top, top / "clone")

    def unpack(top: Path) -> object:
        return peers.run("tar", "-x", "-f", archive, "-C", top)

    found = [
        Job(f"create {files:,} files", partial(create, files), "created", GOAL_CREATE),
        Job("git clone", clone, "clone", GOAL),
        Job("unpack a package", unpack, "unpacked", GOAL_CREATE),
        Job("walk and stat", walk, None, GOAL),
    ]
    if with_fio:
        found += [
            Job("sequential read", partial(fio, "read", "data.bin", megabytes), None, GOAL),
            Job("random read", partial(fio, "randread", "data.bin", megabytes), None, GOAL),
            Job("sequential write", partial(fio, "write", "new.bin", megabytes), "new.bin", GOAL),
            Job("random write", partial(fio, "randwrite", "written.bin", megabytes), None, GOAL),
        ]
    return found


def remove(path: Path) -> None:
    """Remove a file or directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def prepare(place: Path, source: Path, megabytes: int) -> tuple[Path, Path]:
    """Make the project that both sides start from, and a package archive of many small files."""
    project = place / "project"
    shutil.copytree(
        source, project, symlinks=True, ignore=shutil.ignore_patterns(".venv", "node_modules", ".layerfs")
    )
    (project / "data.bin").write_bytes(os.urandom(1 << 20) * megabytes)
    archive = place / "package.tar"
    with tarfile.open(archive, "w") as tar:
        package = source / "node_modules" / "typescript"
        tar.add(package if package.exists() else source / "src", arcname="unpacked")
    return project, archive


@contextmanager
def by_hand(project: Path, place: Path) -> Iterator[Path]:
    """Mount an overlay as anybody would, over a copy of the project."""
    lower, upper, work, merged = (place / name for name in ("lower", "upper", "work", "merged"))
    for directory in (upper, work, merged):
        directory.mkdir()
    peers.run("cp", "-a", project, lower)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    peers.run("mount", "-t", "overlay", "overlay", "-o", options, merged)
    try:
        yield merged
    finally:
        peers.run("umount", merged)


def compared(sides: dict[str, Path], job: Job, rounds: int) -> list[Result]:
    """Run one job on all sides in turn."""

    def contender(name: str, top: Path) -> Contender:
        def clean() -> None:
            if job.leaves:
                remove(top / job.leaves)
            peers.settle(top)

        return Contender(name, partial(job.run, top), clean=clean)

    timings = harness.run_interleaved([contender(name, top) for name, top in sides.items()], rounds)
    where = f"{job.name} in an overlay"
    return [
        harness.compare(f"{where} workspace", timings["overlay"], timings["native"], job.goal),
        harness.compare(f"{where} workspace", timings["overlay"], timings["by hand"]),
        harness.compare(f"{where} mounted by hand", timings["by hand"], timings["native"]),
    ]


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    if os.geteuid():
        sys.exit("mounting an overlay for all to see needs root")
    missing = need("fio", "git")
    megabytes = 16 if options.quick else MEGABYTES
    results = []
    with scratch("io") as directory:
        place = Path(directory)
        project, archive = prepare(place, environment(small=True).path, megabytes)
        home, mounted = place / "home", place / "mounted"
        peers.layerfs_command(home, "init", project)
        peers.layerfs_command(home, "fork", "work2", cwd=project)
        peers.layerfs_command(home, "mount", "work2", mounted, "--engine", "overlay", cwd=project)
        try:
            with by_hand(project, place) as plain:
                sides = {"overlay": mounted, "native": project, "by hand": plain}
                if "fio" not in missing:
                    for top in sides.values():
                        fio("write", "written.bin", megabytes, top)
                for job in jobs(archive, megabytes, 100 if options.quick else 1000, "fio" not in missing):
                    if job.name != "git clone" or "git" not in missing:
                        results += compared(sides, job, options.rounds)
        finally:
            peers.layerfs_command(home, "unmount", "--discard", "work2", cwd=project)
    harness.report("workspace I/O", results, options.json, missing=missing)


if __name__ == "__main__":
    main()
