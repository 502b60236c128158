"""A real environment to measure on: a project with git history, a virtualenv and node_modules, built once and kept.

Run ``python benchmarks/environment.py [--rebuild] [--small]``; the other scripts call :func:`environment`. It lies in
``$TMPDIR/layerfs-bench-environment`` (``/tmp`` by default), outside of any repository, and stays there for the next run;
delete the directory to be rid of it. ``--small`` makes a generated tree of about 3,000 files, which needs no network.
What could not be had (no network, no npm) is left out, said so, and recorded with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import NamedTuple

PYTHON_PACKAGES = ("numpy", "pandas", "django", "sympy", "pytest")
NODE_PACKAGES = ("typescript", "webpack", "next")
HISTORY = 40
TOOLS = {"restic": "restic", "borg": "borgbackup", "git": "git", "tar": "tar", "zstd": "zstd", "fio": "fio"}
_RECORD = "layerfs-bench-environment.json"


class Environment(NamedTuple):
    """The tree, what it holds, and what could not be put into it."""

    path: Path
    files: int
    size: int
    left_out: tuple[str, ...]

    def described(self) -> dict[str, object]:
        """Return what belongs into a report."""
        return {"files": self.files, "bytes": self.size, "left_out": list(self.left_out)}


def scratch_root() -> Path:
    """Return where everything of the benchmarks lies."""
    return Path(os.environ.get("TMPDIR", "/tmp"))


def scratch(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a fresh directory that goes away with its ``with`` block."""
    return tempfile.TemporaryDirectory(prefix=f"lfs-bench-{prefix}-", dir=scratch_root())


def environment(small: bool = False, rebuild: bool = False) -> Environment:
    """Return the environment, built if it is not there yet."""
    top = scratch_root() / f"layerfs-bench-environment{'-small' if small else ''}"
    record = top / _RECORD
    if rebuild and top.exists():
        shutil.rmtree(top)
    tree = top / "project"
    if not record.exists():
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir(parents=True)
        left_out = _generate(tree) if small else _build(tree)
        record.write_text(json.dumps({"left_out": left_out}), encoding="utf-8")
    files, size = measure(tree)
    return Environment(tree, files, size, tuple(json.loads(record.read_text(encoding="utf-8"))["left_out"]))


def measure(tree: Path) -> tuple[int, int]:
    """Return the number of files and the bytes in them."""
    files = size = 0
    for directory, _, names in os.walk(tree):
        files += len(names)
        size += sum(os.lstat(os.path.join(directory, name)).st_size for name in names)
    return files, size


def need(*names: str) -> list[str]:
    """Install missing peers from Debian where that is possible; say and return which are still not there."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        packages = sorted({TOOLS[name] for name in missing})
        if not _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages):
            _run("apt-get", "update", "-qq")
            _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
        missing = [name for name in missing if shutil.which(name) is None]
    for name in missing:
        print(f"left out: {name} (not installed; Debian package {TOOLS[name]})", file=sys.stderr)
    return missing


def _run(*command: str, cwd: Path | None = None) -> bool:
    quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **quiet},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        print(f"failed: {' '.join(command[:4])} …: {' '.join(tail)}", file=sys.stderr)
    return done.returncode == 0


def _build(tree: Path) -> list[str]:
    print(f"building the environment in {tree} (once; takes some minutes)", file=sys.stderr)
    left_out = _generate(tree)
    venv = tree / ".venv"
    pip = str(venv / "bin" / "pip")
    if not _run(sys.executable, "-m", "venv", str(venv)):
        left_out.append("the virtualenv")
    elif not _run(pip, "install", "-q", "--disable-pip-version-check", *PYTHON_PACKAGES):
        left_out.append("packages from PyPI")
    else:
        _run(str(venv / "bin" / "python"), "-m", "compileall", "-q", str(venv))
    if shutil.which("npm") is None:
        left_out.append("node_modules (npm is not installed)")
    else:
        (tree / "package.json").write_text('{"name": "project", "private": true}\n', encoding="utf-8")
        install = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
        if not _run(*install, "--cache", str(tree.parent / "npm-cache"), *NODE_PACKAGES, cwd=tree):
            left_out.append("node_modules")
        shutil.rmtree(tree.parent / "npm-cache", ignore_errors=True)
    return left_out


def _generate(tree: Path) -> list[str]:
    """Make a project of a few thousand source files with a git history; always the same."""
    random = Random(7)
    words = [
        f"{a}{b}"
        for a in ("read", "walk", "open", "pack", "find", "load")
        for b in ("er", "ing", "able", "s")
    ]
    for number in range(2600):
        path = tree / f"src/part{number % 37:02d}/unit{number % 11}" / f"module_{number:04d}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        body = "".join(
            f"def {random.choice(words)}_{line}(value: int) -> int:\n    return value + {random.randrange(9999)}\n\n"
            for line in range(random.randrange(5, 60))
        )
        path.write_text(f'"""Module {number}."""\n\n{body}', encoding="utf-8")
    (tree / ".gitignore").write_text(".venv/\nnode_modules/\n", encoding="utf-8")
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.com")
    if shutil.which("git") is None or not _run("git", "init", "-q", "-b", "main", cwd=tree):
        return ["git history (git is not installed)"]
    for step in range(HISTORY):
        for number in random.sample(range(2600), 10) if step else ():
            path = tree / f"src/part{number % 37:02d}/unit{number % 11}" / f"module_{number:04d}.py"
            with path.open("a", encoding="utf-8") as file:
                file.write(f"\nSTEP = {step}\n")
        _run(*git, "add", "-A", cwd=tree)
        _run(*git, "commit", "-q", "-m", f"step {step}", cwd=tree)
    return []


def main() -> None:
    """Build and describe the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="build it anew")
    parser.add_argument("--small", action="store_true", help="the generated tree only, without network")
    options = parser.parse_args()
    found = environment(options.small, options.rebuild)
    print(f"{found.path}: {found.files} files, {found.size / 1e6:.0f} MB")
    for each in found.left_out:
        print(f"left out: {each}")


if __name__ == "__main__":
    main()
