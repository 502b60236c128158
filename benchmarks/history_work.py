"""What a hundred commits of real work in a whole environment take, beside restic, borg and git on the same states.

Run ``python benchmarks/history_work.py [--steps N] [--quick] [--json FILE]``. The environment (source with its
``.git``, a virtualenv, node_modules) is worked on as one does: every step edits sources, compiles them, runs a build and
sometimes commits to the project's own git; every few steps a package is installed, upgraded or removed with pip or npm.
After each step every tool captures the state. At the end each store is brought to rest by its own means (``layerfs
repack``, ``restic prune``, ``borg compact``, ``git gc``) and weighed on disk. Git would leave the project's ``.git`` out,
so it captures a mirror of hard links in which that has another name. States are checked out of layerfs again and compared
with what was there, path by path and byte by byte.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import environment, need, scratch
from benchmarks.harness import Result
from benchmarks.peers import Peer

STEPS = 100
QUICK_STEPS = 6
GOAL_BEST = 0.8
CHECKED = 5
"""How many states, evenly spread and the last one among them, are checked out again and compared."""

PIP = (
    ("install", "requests"),
    ("install", "flask"),
    ("install", "django==4.2.16"),
    ("uninstall", "flask"),
    ("install", "sqlalchemy"),
    ("install", "--upgrade", "django"),
    ("install", "httpx", "rich"),
    ("uninstall", "requests"),
    ("install", "attrs", "pyyaml"),
    ("install", "black"),
)
NPM = (
    ("install", "lodash"),
    ("install", "react@18", "react-dom@18"),
    ("install", "express"),
    ("uninstall", "lodash"),
    ("install", "react@latest", "react-dom@latest"),
    ("install", "eslint"),
    ("install", "typescript@5.3"),
    ("uninstall", "express"),
    ("install", "vite"),
    ("install", "typescript@latest"),
)
EVERY_COMMIT = 2
EVERY_PACKAGE = 10


class Work:
    """The project that is worked on; the same steps every time, what the package indexes give aside."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self.tree = tree
        self.scratch = scratch
        self.random = Random(11)
        self.modules = sorted((tree / "src").rglob("module_*.py"))
        self.left_out: list[str] = []

    def step(self, number: int) -> None:
        """Do one step of work."""
        self._edit(number)
        if number % EVERY_PACKAGE == 3:
            self._pip(PIP[number // EVERY_PACKAGE % len(PIP)])
        if number % EVERY_PACKAGE == 8:
            self._npm(NPM[number // EVERY_PACKAGE % len(NPM)])
        self._build(number)
        if number % EVERY_COMMIT == 0:
            git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.com")
            self._run(*git, "add", "-A")
            self._run(*git, "commit", "-q", "-m", f"work {number}")

    def _edit(self, number: int) -> None:
        for path in self.random.sample(self.modules, self.random.randrange(1, 6)):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            at = self.random.choice([at for at, line in enumerate(lines) if line.startswith("def ")])
            lines[at:at] = [f"VALUE_{number} = {self.random.randrange(10**6)}\n"]
            path.write_text("".join(lines), encoding="utf-8")
        script = self.tree / "web" / f"page{number % 7}.ts"
        script.parent.mkdir(exist_ok=True)
        with script.open("a", encoding="utf-8") as file:
            file.write(f"export const step{number}: number = {self.random.randrange(10**6)};\n")

    def _build(self, number: int) -> None:
        """Compile the sources, translate the scripts and pack what came out."""
        self._run(sys.executable, "-m", "compileall", "-q", "src")
        compiler = self.tree / "node_modules" / ".bin" / "tsc"
        if compiler.exists():
            pages = sorted(str(path) for path in (self.tree / "web").glob("*.ts"))
            self._run(
                str(compiler), "--outDir", "build/web", "--target", "es2020", "--module", "es2020", *pages
            )
        if number % 5 == 0:
            target = self.tree / "build" / "project.zip"
            target.parent.mkdir(exist_ok=True)
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in self.modules:
                    archive.write(path, path.relative_to(self.tree))

    def _pip(self, words: tuple[str, ...]) -> None:
        python = self.tree / ".venv" / "bin" / "python"
        if python.exists():
            sure = ("-y",) if words[0] == "uninstall" else ()
            quiet = ("-q", "--disable-pip-version-check", "--no-cache-dir")
            self._run(str(python), "-m", "pip", words[0], *quiet, *sure, *words[1:])

    def _npm(self, words: tuple[str, ...]) -> None:
        if (self.tree / "node_modules").exists():
            cache = str(self.scratch / "npm-cache")
            self._run("npm", *words, "--no-audit", "--no-fund", "--ignore-scripts", "--cache", cache)

    def _run(self, *command: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            command,
            cwd=self.tree,
            env={**env, "GIT_CONFIG_GLOBAL": os.devnull},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            name = " ".join(Path(word).name for word in command[:6])
            self.left_out.append(name)
            print(f"failed: {name}: {done.stdout.decode(errors='replace').strip()[-200:]}", file=sys.stderr)


def listing(tree: Path) -> dict[str, tuple[object, ...]]:
    """Return what a state consists of: path → kind, mode, time and the hash of the content."""
    found: dict[str, tuple[object, ...]] = {}
    for path, info in _entries(tree):
        name = str(path.relative_to(tree))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", info.st_mode)
        else:
            digest = hashlib.blake2b(path.read_bytes()).hexdigest()
            found[name] = ("file", info.st_mode, info.st_mtime_ns, digest)
    return found


def _entries(tree: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for directory, directories, names in os.walk(tree):
        for name in [*directories, *names]:
            path = Path(directory, name)
            if path != tree / ".layerfs":
                yield path, path.lstat()


class Keeper:
    """A tool that captures every state; what it takes in time, and in room at the end."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.seconds = 0.0
        peer.fresh()

    def capture(self) -> None:
        """Capture the state."""
        started = time.perf_counter()
        self.peer.capture()
        self.seconds += time.perf_counter() - started

    def size(self) -> int:
        """Return what the store takes on disk, the tool's own cache left out."""
        return peers.disk_bytes(self.peer.store) - sum(
            peers.disk_bytes(self.peer.store / name)
            for name in ("cache", "base")
            if (self.peer.store / name).exists()
        )


def layerfs_keeper(tree: Path, place: Path) -> Peer:
    """Return layerfs as it is used in a directory: ``init`` once, then ``commit``."""
    first = peers.layerfs(tree, place)

    def capture() -> peers.Finished:
        if not (tree / ".layerfs").exists():
            return first.capture()
        return peers.layerfs_command(first.store, "commit", "-m", "state", cwd=tree)

    return first._replace(capture=capture)


def git_keeper(tree: Path, place: Path) -> Peer:
    """Return git on a mirror of the tree, in which ``.git`` is a directory like any other."""
    mirror = place / "mirror"
    peer = peers.git(mirror, place)

    def start() -> None:
        mirror.mkdir(exist_ok=True)
        peer.start()
        env = peers.git_environment(mirror, peer.store)
        peers.run("git", "config", "core.trustctime", "false", env=env)
        peers.run("git", "config", "core.checkStat", "minimal", env=env)

    return peer._replace(start=start)


def mirror(tree: Path, place: Path) -> None:
    """Bring git's mirror up to date."""
    target = place / "mirror"
    shutil.rmtree(target, ignore_errors=True)
    peers.run("cp", "-al", tree, target)
    (target / ".git").rename(target / "dot-git")
    (target / ".layerfs").unlink(missing_ok=True)


def rest(peer: Peer, tree: Path) -> None:
    """Bring a store to rest by the tool's own means."""
    if peer.name == "layerfs":
        peers.layerfs_command(peer.store, "repack", cwd=tree)
    elif peer.name == "restic":
        env = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(peer.store / "cache")}
        peers.run("restic", "-r", peer.store / "repository", "prune", env=env)
    elif peer.name == "borg":
        env = {"BORG_BASE_DIR": str(peer.store / "base"), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
        peers.run("borg", "compact", peer.store / "repository", env=env)
    else:
        peers.run("git", "gc", "-q", env=peers.git_environment(tree.parent / "mirror", peer.store))


def compare_states(
    peer: Peer, place: Path, kept: dict[int, dict[str, tuple[object, ...]]], steps: int
) -> int:
    """Check states out of layerfs and compare them with what was there; return how many were equal, or raise."""
    for number, expected in kept.items():
        target = place / "checked-out"
        revision = f"work~{steps - number}" if number < steps else "work"
        store = peer.store / "store"
        peers.layerfs_command(peer.store, "checkout", "--store", store, revision, "--to", target)
        found = listing(target)
        shutil.rmtree(target)
        if found != expected:
            wrong = sorted(
                name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
            )
            raise SystemExit(
                f"state {number} came back with {len(wrong)} differences, the first at {wrong[0]}"
            )
    return len(kept)


def main() -> None:
    """Work, capture, weigh and compare."""
    parser = harness.parser(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps of work")
    options = parser.parse_args()
    steps = QUICK_STEPS if options.quick else options.steps
    missing = need("restic", "borg", "git")
    found = environment(small=options.quick)
    with scratch("work") as directory:
        place = Path(directory)
        tree = place / "project"
        peers.run("cp", "-a", found.path, tree)
        (tree / ".layerfs").unlink(missing_ok=True)
        others = {"restic": peers.restic, "borg": peers.borg, "git": git_keeper}
        chosen = [make(tree, place) for name, make in others.items() if name not in missing]
        keepers = [Keeper(peer) for peer in [layerfs_keeper(tree, place), *chosen]]
        work = Work(tree, place)
        checked = {round(steps * part / CHECKED) for part in range(1, CHECKED + 1)}
        kept = {}
        for number in range(steps + 1):
            if number:
                work.step(number)
            mirror(tree, place)
            for keeper in keepers:
                keeper.capture()
            if number in checked:
                kept[number] = listing(tree)
            print(f"state {number} of {steps}", file=sys.stderr)
        ours = keepers[0]
        before = harness.sizes("layerfs", ours.size())
        same = compare_states(ours.peer, place, kept, steps)
        for keeper in keepers:
            rest(keeper.peer, tree)
        same += compare_states(ours.peer, place, kept, steps)
        results = table(keepers, before)
    harness.report(
        "history_work",
        results,
        options.json,
        environment=found.described(),
        missing=missing,
        failed_steps=work.left_out,
        steps=steps,
        states_compared=same,
    )
    print(f"\nstates checked out and compared: {same}, all equal")


def table(keepers: list[Keeper], before: harness.Timing) -> list[Result]:
    """Return the rows: the store beside each other one, before and after repack, and the time of all captures."""
    ours, *rivals = keepers
    after = harness.sizes("layerfs", ours.size())
    others = [harness.sizes(each.peer.name, each.size()) for each in rivals]
    best = min(others, key=lambda each: each.median, default=None)
    spent = harness.sizes("layerfs", ours.seconds, unit="s")
    results = []
    for keeper, other in zip(rivals, others, strict=True):
        goal = GOAL_BEST if other is best else None
        results.append(harness.compare("store, before repack", before, other))
        results.append(harness.compare("store, after repack", after, other, goal))
        theirs = harness.sizes(keeper.peer.name, keeper.seconds, unit="s")
        results.append(harness.compare("all captures together", spent, theirs))
    return results or [harness.limit("store, after repack", after)]


if __name__ == "__main__":
    main()
