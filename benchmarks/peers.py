"""The tools layerfs is compared with, and layerfs itself, as commands: what each does for a job, in a place of its own.

Every tool keeps its store, cache and configuration below the one directory it is given, works quietly, and gets the
compression it is usually run with (zstd level 3, restic's default). A command that fails ends the benchmark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Without bytecode kept, every start of a Python program would compile it anew."""


LAST_WORDS = 4096


class Finished(NamedTuple):
    """One command that ran: the most memory it had resident, in bytes.

    The kernel starts counting with what the benchmark itself had when it started the command, so the benchmark keeps
    nothing of what commands print.
    """

    peak: int


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run a command to its end; raise with its last words if it fails. ``env`` is added to the environment."""
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env={**_ENVIRONMENT, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        last = b""
        while part := process.stdout.read(LAST_WORDS):
            last = (last + part)[-LAST_WORDS:]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        words = b"\n".join(last.splitlines()[-5:]).decode(errors="replace")
        raise SystemExit(f"{command[0]} failed with {process.returncode}: {words}")
    return Finished(usage.ru_maxrss * 1024)


def settle(place: Path) -> None:
    """Write out what is dirty on the disk of ``place``, so that one contender does not pay for what another wrote."""
    run("sync", "-f", place)


def disk_bytes(path: Path) -> int:
    """Return what a directory takes on disk, in whole blocks."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in [".", *names]:
            total += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total


class Peer(NamedTuple):
    """A tool: how it starts a store, captures a tree, restores the newest state, and where its store lies."""

    name: str
    store: Path
    start: Callable[[], object]
    capture: Callable[[], Finished]
    restore: Callable[[Path], Finished] | None = None

    def fresh(self) -> None:
        """Make an empty store; nothing of an older one stays."""
        shutil.rmtree(self.store, ignore_errors=True)
        self.store.mkdir(parents=True)
        self.start()


def layerfs_environment(home: Path) -> dict[str, str]:
    """Return the environment of a ``layerfs`` command of this checkout."""
    return {
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "XDG_DATA_HOME": str(home),
        "LAYERFS_AUTHOR": "bench <b@x>",
    }


def layerfs_command(home: Path, *arguments: str | Path, cwd: Path | None = None) -> Finished:
    """Run ``layerfs`` of this checkout as a process of its own."""
    return run(sys.executable, "-m", "layerfs", *arguments, env=layerfs_environment(home), cwd=cwd)


def layerfs(tree: Path, place: Path) -> Peer:
    """Return layerfs itself: ``init`` and ``checkout --to``."""
    home = place / "layerfs"
    store = home / "store"

    def start() -> None:
        (tree / ".layerfs").unlink(missing_ok=True)

    def capture() -> Finished:
        return layerfs_command(home, "init", "--store", store, tree)

    def restore(target: Path) -> Finished:
        return layerfs_command(home, "checkout", "--store", store, "main", "--to", target)

    return Peer("layerfs", home, start, capture, restore)


def restic(tree: Path, place: Path) -> Peer:
    """Return restic with its default compression and a cache of its own."""
    store = place / "restic"
    env = {
        "RESTIC_REPOSITORY": str(store / "repository"),
        "RESTIC_PASSWORD": "bench",
        "RESTIC_CACHE_DIR": str(store / "cache"),
    }

    def restore(target: Path) -> Finished:
        return run("restic", "restore", "latest", "--target", target, env=env)

    return Peer(
        "restic",
        store,
        lambda: run("restic", "init", env=env),
        lambda: run("restic", "backup", "-q", ".", env=env, cwd=tree),
        restore,
    )


def borg(tree: Path, place: Path) -> Peer:
    """Return borg without encryption, zstd level 3."""
    store = place / "borg"
    env = {
        "BORG_REPO": str(store / "repository"),
        "BORG_BASE_DIR": str(store / "base"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }

    return Peer(
        "borg",
        store,
        lambda: run("borg", "init", "-e", "none", env=env),
        lambda: run("borg", "create", "-C", "zstd,3", "::{utcnow:%Y%m%d%H%M%S%f}", ".", env=env, cwd=tree),
    )


def git_environment(tree: Path, store: Path) -> dict[str, str]:
    """Return the environment of git with a repository outside of the tree."""
    return {
        "GIT_DIR": str(store / "repository.git"),
        "GIT_WORK_TREE": str(tree),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def git(tree: Path, place: Path) -> Peer:
    """Return git; it leaves out the tree's own ``.git`` whatever one asks, which is to its advantage."""
    store = place / "git"
    env = git_environment(tree, store)

    def start() -> None:
        run("git", "init", "-q", env=env)
        for key, value in (
            ("user.name", "bench"),
            ("user.email", "b@x"),
            ("gc.auto", "0"),
            ("advice.addEmbeddedRepo", "false"),
        ):
            run("git", "config", key, value, env=env)

    def capture() -> Finished:
        added = run("git", "add", "-A", "-f", ".", env=env, cwd=tree)
        committed = run("git", "commit", "-q", "--allow-empty", "-m", "state", env=env, cwd=tree)
        return Finished(max(added.peak, committed.peak))

    return Peer("git", store, start, capture)


def tar_zstd(tree: Path, place: Path) -> Peer:
    """Return ``tar -c | zstd -3 -T2``, the limit: no hashing, no deduplication, no sync."""
    store = place / "tar"
    command = f'tar -c -C "$1" . | zstd -q -f -3 -T2 -o "{store}/all.tar.zst"'
    return Peer("tar + zstd -3 -T2", store, lambda: None, lambda: run("sh", "-c", command, "sh", tree))
