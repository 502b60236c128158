"""Judges: test suites of other programs, run on a plain directory and in a workspace, outcome by outcome.

What counts is that the workspace gives the very outcomes the plain directory gives; the absolute numbers are the
machine's (running as root changes many). A judge that cannot be had here is left out by name, with the reason.

    python benchmarks/judges.py                  every judge, on the directory's file system and in an overlay workspace
    python benchmarks/judges.py --only cpython,fio --place run
    python benchmarks/judges.py --sources DIR    where the sources of SQLite and git are, or are fetched to and built
    python benchmarks/judges.py --json FILE      the figures for scripts

Places: ``plain`` is a directory next to the store, ``overlay`` a mounted workspace, ``copy`` a workspace that is a copy,
``run`` an unprivileged ``layerfs run`` (an overlay in a user namespace; only when not started as root).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
PLACES = ("plain", "overlay", "copy", "run")

CPYTHON = (
    "test_os",
    "test_shutil",
    "test_pathlib",
    "test_tempfile",
    "test_mmap",
    "test_fileio",
    "test_largefile",
    "test_zipfile",
    "test_tarfile",
    "test_mailbox",
    "test_posix",
    "test_posixpath",
    "test_fcntl",
    "test_sqlite3",
    "test_file",
    "test_filecmp",
    "test_glob",
    "test_genericpath",
    "test_dbm",
    "test_dbm_dumb",
    "test_shelve",
    "test_stat",
    "test_py_compile",
    "test_compileall",
    "test_zipimport",
    "test_bz2",
    "test_gzip",
)
EXPLAINED = {
    ("run", "test.test_os.ChownFileTests.test_chown_without_permission"): "giving-a-file-away",
    ("run", "chown"): "giving-a-file-away",
}
"""(place, outcome) that differ as layerfs-posix(7) says, and the name of the check there."""
MODULE_SECONDS = 300
"""How long one module may take; what does not finish is an outcome like any other."""
SQLITE = (
    "wal",
    "wal2",
    "lock",
    "lock2",
    "crash",
    "crash3",
    "walcrash",
    "pager1",
    "shared",
    "ioerr",
    "mmap1",
    "walmode",
    "journal1",
    "io",
)
RANDOM = ("crash", "crash3", "walcrash")
"""Scripts that crash at random moments, and so run another number of tests each time."""
GIT = (
    "t1400",
    "t1006",
    "t3200",
    "t7508",
    "t5304",
    "t1450",
    "t7063",
    "t5300",
    "t2030",
    "t6416",
    "t6423",
)
FIO = {
    "random writes": "--ioengine=psync --rw=randwrite",
    "mapped": "--ioengine=mmap --rw=randwrite",
    "direct": "--ioengine=psync --direct=1 --rw=randwrite",
    "asynchronous": "--ioengine=libaio --iodepth=8 --rw=randrw",
    "appending": "--ioengine=psync --rw=write --bs=12k --fsync=8",
}

Outcomes = dict[str, str]


class Missing(Exception):
    """A judge cannot be had here; the text says why."""


class Judge(NamedTuple):
    """``prepare`` gets a directory for sources and returns what ``run`` needs, or raises Missing."""

    name: str
    prepare: Callable[[Path], list[str]]
    run: Callable[[list[str], Path], Outcomes]


def call(
    command: list[str], cwd: Path, seconds: float = 1800, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run a judge in a mount namespace of its own, since some mount things; never fail on its exit code.

    Raises TimeoutExpired when time is up, and then ends everything of the judge's session.
    """
    private = ["unshare", "--mount", "--propagation", "private"] if os.geteuid() == 0 else []
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PYTHON"))}
    child = subprocess.Popen(
        [*private, *command],
        cwd=cwd,
        env={**environment, **extra},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=seconds)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


# -- CPython's own tests ---------------------------------------------------------------------------------------------


def prepare_cpython(_: Path) -> list[str]:
    """Find an installed interpreter that came with its tests."""
    for python in (os.path.realpath(sys.executable), shutil.which("python3")):
        if (
            python
            and not subprocess.run(
                [python, "-c", "import test.test_os, test.libregrtest"], capture_output=True, check=False
            ).returncode
        ):
            return [python]
    raise Missing("no interpreter here has the package 'test' (Debian: libpython3-testsuite)")


def run_cpython(known: list[str], place: Path) -> Outcomes:
    """Run the tests, a module at a time, with every temporary file in the place."""
    outcomes: Outcomes = {}
    for module in CPYTHON:
        report = place.parent / f"{place.name}-{module}.xml"
        options = ["--tempdir", str(place), "--junit-xml", str(report), "-u", "largefile,subprocess"]
        try:
            done = call([known[0], "-m", "test", *options, module], place, MODULE_SECONDS, TMPDIR=str(place))
        except subprocess.TimeoutExpired:
            outcomes[module] = "did not finish"
            continue
        if not report.exists():
            outcomes[module] = f"no report: {done.stderr.strip()[-200:]}"
            continue
        outcomes.update(read_report(report))
        report.unlink()
    return outcomes


def read_report(report: Path) -> Outcomes:
    """Return the outcome of each test case in a JUnit report."""
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in case}
        outcome = (
            "failed"
            if tags & {"failure", "error"}
            else "skipped"
            if "skipped" in tags
            else case.get("result")
        )
        outcomes[str(case.get("name"))] = {"completed": "passed", None: "passed"}.get(outcome, str(outcome))
    return outcomes


# -- SQLite ----------------------------------------------------------------------------------------------------------


def fetch_source(package: str, sources: Path) -> Path:
    """Return the unpacked source of a Debian package, fetched with apt-get if it is not there."""
    found = sorted(path for path in sources.glob(f"{package}-*") if path.is_dir())
    if not found:
        if shutil.which("apt-get") is None:
            raise Missing("apt-get is not here")
        if not os.access(sources, os.W_OK):
            raise Missing(f"the source of {package} is not in {sources}, where we cannot write")
        settings = source_lists(sources)
        for words in (["update"], ["source", package]):
            done = subprocess.run(
                ["apt-get", *settings, "-q", *words], cwd=sources, capture_output=True, text=True, check=False
            )
            if done.returncode:
                said = done.stderr.strip().splitlines() or ["it failed"]
                raise Missing(f"apt-get {' '.join(words)}: {said[-1]}")
        found = sorted(path for path in sources.glob(f"{package}-*") if path.is_dir())
    return found[0]


def source_lists(sources: Path) -> list[str]:
    """Have Debian's source packages listed for us alone; the machine's own settings stay."""
    parts, lists = sources / "apt/parts", sources / "apt/lists"
    for directory in (parts, lists / "partial"):
        directory.mkdir(parents=True, exist_ok=True)
    for known in Path("/etc/apt/sources.list.d").glob("debian*.sources"):
        text = re.sub(r"^Types:.*$", "Types: deb-src", known.read_text(), flags=re.MULTILINE)
        (parts / known.name).write_text(text)
    plain = Path("/etc/apt/sources.list")
    lines = plain.read_text().splitlines() if plain.exists() else []
    own = sources / "apt/sources.list"
    own.write_text(
        "".join(f"deb-src {line.partition(' ')[2]}\n" for line in lines if line.startswith("deb "))
    )
    places = {"Dir::Etc::sourcelist": own, "Dir::Etc::sourceparts": parts, "Dir::State::lists": lists}
    return [word for name, place in places.items() for word in ("-o", f"{name}={place}")]


def build(source: Path, result: str, command: str) -> None:
    """Build what is not built yet."""
    if (source / result).exists():
        return
    done = subprocess.run(["sh", "-c", command], cwd=source, capture_output=True, text=True, check=False)
    if done.returncode or not (source / result).exists():
        raise Missing(f"{result} could not be built: {done.stderr.strip()[-200:]}")


def prepare_sqlite(sources: Path) -> list[str]:
    """Have SQLite's test program."""
    source = fetch_source("sqlite3", sources)
    build(source, "testfixture", "./configure --disable-amalgamation && make -j2 testfixture")
    return [str(source)]


def run_sqlite(known: list[str], place: Path) -> Outcomes:
    """Run each script in the place; failures come by name, what passed by number."""
    outcomes: Outcomes = {}
    for name in SQLITE:
        place.joinpath(name).mkdir()
        source = Path(known[0])
        done = call([str(source / "testfixture"), str(source / f"test/{name}.test")], place / name)
        total = re.search(r"(\d+) errors out of (\d+) tests", done.stdout)
        failed = sorted(set(re.findall(r"^! (\S+) expected", done.stdout, re.MULTILINE)))
        for test in failed:
            outcomes[f"{name}: {test}"] = "failed"
        if total is None:
            outcomes[name] = "did not finish"
            continue
        passed = int(total[2]) - len(failed)
        for number in range(1 if name in RANDOM else passed):
            outcomes[f"{name}: #{number}"] = "passed"
    return outcomes


# -- git -------------------------------------------------------------------------------------------------------------


def prepare_git(sources: Path) -> list[str]:
    """Have git with its tests."""
    source = fetch_source("git", sources)
    build(source, "t/helper/test-tool", "make -j2 NO_GETTEXT=1 NO_TCLTK=1 NO_CURL=1 NO_EXPAT=1")
    return [str(source)]


def run_git(known: list[str], place: Path) -> Outcomes:
    """Run each script with its trash directory in the place."""
    outcomes: Outcomes = {}
    tests = Path(known[0]) / "t"
    for number in GIT:
        script = next(tests.glob(f"{number}-*.sh"))
        done = call(["sh", script.name, f"--root={place}"], tests)
        for word, text in re.findall(r"^(ok|not ok) \d+ - (.*)$", done.stdout, re.MULTILINE):
            name, _, directive = text.partition(" # ")
            outcome = "passed" if word == "ok" else "failed"
            outcomes[f"{number}: {name}"] = directive.split()[0].lower() if directive else outcome
        if not re.search(r"^1\.\.\d+", done.stdout, re.MULTILINE):
            outcomes[number] = "did not finish"
    return outcomes


# -- stress-ng and fio -----------------------------------------------------------------------------------------------


def prepare_program(name: str) -> Callable[[Path], list[str]]:
    def prepare(_: Path) -> list[str]:
        found = shutil.which(name)
        if found is None:
            raise Missing(f"{name} is not installed")
        return [found]

    return prepare


def run_stress(known: list[str], place: Path) -> Outcomes:
    """Every stressor of the class, one after the other, with its results verified."""
    listed = subprocess.run([known[0], "--class", "filesystem?"], capture_output=True, text=True, check=False)
    names = listed.stdout.partition(":")[2].split()
    outcomes: Outcomes = {}
    for name in names:
        options = ["--timeout", "2s", "--verify", "--temp-path", str(place), "--oomable", "--metrics-brief"]
        try:
            done = call([known[0], f"--{name}", "1", *options], place, seconds=120)
        except subprocess.TimeoutExpired:
            outcomes[name] = "did not finish"
            continue
        text = done.stdout + done.stderr
        skipped = "skipped: 1" in text or "passed: 0" in text or "not implemented" in text
        outcomes[name] = (
            "failed" if done.returncode == 2 else "skipped" if done.returncode or skipped else "passed"
        )
    return outcomes


def run_fio(known: list[str], place: Path) -> Outcomes:
    """Write and read back with checksums."""
    outcomes: Outcomes = {}
    for name, options in FIO.items():
        words = [
            "--name=judge",
            f"--directory={place}",
            "--size=32m",
            "--bs=4k",
            "--verify=crc32c",
            "--do_verify=1",
        ]
        done = call([known[0], *words, "--verify_fatal=1", "--numjobs=2", *options.split()], place)
        lacks = "engine" in done.stderr and "not loadable" in done.stderr
        outcomes[name] = (
            "skipped" if lacks else "failed" if done.returncode or "verify:" in done.stderr else "passed"
        )
    return outcomes


JUDGES = (
    Judge("cpython", prepare_cpython, run_cpython),
    Judge("sqlite", prepare_sqlite, run_sqlite),
    Judge("git", prepare_git, run_git),
    Judge("stress-ng", prepare_program("stress-ng"), run_stress),
    Judge("fio", prepare_program("fio"), run_fio),
)


# -- places ----------------------------------------------------------------------------------------------------------


class Bench:
    """A scratch directory with a captured project, in which the places are made."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.source = top / "project"
        self.source.mkdir()
        (self.source / "README").write_text("a place for judges\n")
        self.layerfs("init", "--store", top / "store")

    def layerfs(self, *words: str | Path) -> None:
        environment = {**os.environ, "PYTHONPATH": PACKAGES}
        subprocess.run(
            [sys.executable, "-m", "layerfs", *map(str, words)],
            cwd=self.source,
            env=environment,
            check=True,
            capture_output=True,
        )

    @contextmanager
    def place(self, kind: str) -> Iterator[Path]:
        """A directory to judge."""
        if kind == "plain":
            path = self.top / "plain--"  # as long a name as the others have: paths of sockets have a limit
            path.mkdir()
            yield path
            shutil.rmtree(path, ignore_errors=True)
            return
        path = self.top / kind.ljust(7, "-")
        self.layerfs("mount", "main", path, "--engine", kind)
        try:
            yield path
        finally:
            self.layerfs("unmount", "main", "--discard")


def run_inside(judge: str, sources: Path, place: Path) -> Outcomes:
    """Have one judge run by this very script within ``layerfs run``; the outcomes come back in a file."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--inside", judge, file.name, "--sources", str(sources)]
        environment = {**os.environ, "PYTHONPATH": PACKAGES}
        subprocess.run(
            [sys.executable, "-m", "layerfs", "run", "main", "--discard", "--", *command],
            cwd=place,
            env=environment,
            check=True,
        )
        found: Outcomes = json.load(file)
        return found


def judge_place(bench: Bench, judge: Judge, known: list[str], kind: str, sources: Path) -> Outcomes:
    if kind == "run":
        return run_inside(judge.name, sources, bench.source)
    with bench.place(kind) as top:
        place = top / judge.name
        place.mkdir(mode=0o777)
        return judge.run(known, place)


def compare(plain: Outcomes, other: Outcomes, kind: str) -> list[str]:
    """Return a line for each outcome that differs, and where that is explained if it is."""
    lines = []
    for name in sorted(plain.keys() | other.keys()):
        if plain.get(name) != other.get(name):
            check = EXPLAINED.get((kind, name))
            why = f" (layerfs-posix(7), {check})" if check else ""
            lines.append(f"{name}: {plain.get(name, 'absent')} -> {other.get(name, 'absent')}{why}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(judge.name for judge in JUDGES), help="judges, comma-separated"
    )
    parser.add_argument("--place", default="", help="places besides plain, comma-separated")
    parser.add_argument("--sources", type=Path, help="where sources of judges are kept")
    parser.add_argument("--top", type=Path, help="where to make the scratch directory")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sources = options.sources or Path(tempfile.gettempdir()) / "layerfs-judges"
    sources.mkdir(parents=True, exist_ok=True)
    by_name = {judge.name: judge for judge in JUDGES}
    if options.inside:
        judge = by_name[options.inside[0]]
        place = Path.cwd() / judge.name
        place.mkdir()
        Path(options.inside[1]).write_text(json.dumps(judge.run(judge.prepare(sources), place)))
        return 0
    kinds = [kind for kind in options.place.split(",") if kind] or ["overlay" if os.geteuid() == 0 else "run"]
    figures: dict[str, object] = {"python": sysconfig.get_python_version(), "kernel": os.uname().release}
    different = 0
    with tempfile.TemporaryDirectory(
        prefix="layerfs-judges-", dir=options.top, ignore_cleanup_errors=True
    ) as scratch:
        os.chmod(scratch, 0o755)
        bench = Bench(Path(scratch))
        for name in options.only.split(","):
            judge = by_name[name]
            try:
                known = judge.prepare(sources)
                plain = {**judge_place(bench, judge, known, "plain", sources)}
            except Missing as missing:
                print(f"{name}: left out: {missing}", flush=True)
                figures[name] = {"left out": str(missing)}
                continue
            counts = {"plain": dict(Counter(plain.values()))}
            print(f"{name}: plain: {dict(Counter(plain.values()))}", flush=True)
            lines: dict[str, list[str]] = {}
            for kind in kinds:
                began = time.monotonic()
                found = judge_place(bench, judge, known, kind, sources)
                counts[kind] = dict(Counter(found.values()))
                lines[kind] = compare(plain, found, kind)
                different += sum("layerfs-posix" not in line for line in lines[kind])
                print(f"{name}: {kind}: {counts[kind]} in {time.monotonic() - began:.0f} s", flush=True)
                for line in lines[kind]:
                    print(f"    {line}", flush=True)
            figures[name] = {"counts": counts, "different": lines}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
