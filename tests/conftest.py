"""Fixtures every tier shares: the hermetic world, probes for what a machine can do, and the leak check.

A probe tries the real thing instead of guessing from versions. Where it fails, or where a program is not installed, the
test is skipped on a developer's machine. With ``CI=true`` in the environment every skip is a failure, so that a runner
that lost a capability cannot pass by testing less; only what is marked ``varies`` differs between kernels that are all
right.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from project import Project
from world import World

MOUNT_TIMEOUT = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the full tier too: sweeps and big trees")
    parser.addoption("--update-transcripts", action="store_true", help="write what commands print into tests/cli/*.txt")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: only in the full tier (bootstrap.sh test --full)")
    config.addinivalue_line("markers", "varies: what it needs differs between kernels, so it may be skipped in CI too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full") or "full" in str(config.getoption("-m")):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not item.get_closest_marker("varies"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"under CI nothing is skipped: {reason}"
    return report


@pytest.fixture(autouse=True)
def hermetic_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own stores, clock and author out of every test, also of those that run in this process."""
    for name in list(os.environ):
        if name.startswith("LAYERFS_") and name != "LAYERFS_REQUIRE_NATIVE":
            monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A hermetic world under the test's own temporary directory."""
    return World(tmp_path / "world")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project to capture; what a test mounts or starts with it is gone afterwards."""
    made = Project(tmp_path / "project")
    yield made
    made.close()


@pytest.fixture
def need_root_mounts() -> None:
    """The test mounts file systems as root."""
    _require(_probe_tmpfs(), "mounting as root")


@pytest.fixture
def need_overlay() -> None:
    """The test mounts overlayfs as root, on the file system of the temporary directory."""
    _require(_probe_overlay(), "mounting overlayfs as root")


@pytest.fixture
def need_user_namespace() -> None:
    """The test mounts overlayfs in a user namespace."""
    _require(_probe_user_namespace(), "overlayfs in a user namespace")


@pytest.fixture
def need_fuse() -> None:
    """The test mounts a FUSE file system."""
    _require(_probe_fuse(), "mounting FUSE")


def _require(reason: str, what: str) -> None:
    """Skip when a probe returned a reason why not."""
    if reason:
        pytest.skip(f"{what} does not work here: {reason}")


@cache
def _probe_tmpfs() -> str:
    with tempfile.TemporaryDirectory(prefix="layerfs-probe-") as scratch:
        return _mounted(["mount", "-t", "tmpfs", "none", scratch], scratch)


@cache
def _probe_overlay() -> str:
    with tempfile.TemporaryDirectory(prefix="layerfs-probe-") as scratch:
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(os.path.join(scratch, name))
        places = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        options = f"{places},redirect_dir=on,metacopy=on,index=off"
        merged = os.path.join(scratch, "merged")
        return _mounted(["mount", "-t", "overlay", "overlay", "-o", options, merged], merged)


@cache
def _probe_user_namespace() -> str:
    script = (
        "set -e; cd \"$1\"; mkdir l u w m; mount -t overlay overlay -o "
        "userxattr,lowerdir=l,upperdir=u,workdir=w m; : > m/x; umount m"
    )
    with tempfile.TemporaryDirectory(prefix="layerfs-probe-") as scratch:
        return _failed(["unshare", "-Urm", "sh", "-c", script, "sh", scratch])


@cache
def _probe_fuse() -> str:
    try:
        import pyfuse3  # noqa: F401
    except ImportError:
        return "pyfuse3 is not installed"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return ""


def _mounted(command: list[str], place: str) -> str:
    reason = _failed(command)
    if not reason:
        subprocess.run(["umount", place], check=True, timeout=MOUNT_TIMEOUT)
    return reason


def _failed(command: list[str]) -> str:
    """Run a probe; return why it failed, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOUNT_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the end of the session nothing is mounted under the tests' directory and no child process is left."""
    base = tmp_path_factory.getbasetemp().resolve()
    yield
    problems = [f"still mounted: {place}" for place in _mounts_below(base)]
    problems += [f"still running: {line}" for line in _children()]
    if problems:
        pytest.fail("tests left something behind:\n" + "\n".join(problems))


def _mounts_below(base: Path) -> list[str]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            places = [line.split(" ")[4] for line in table]
    except FileNotFoundError:
        return []
    return [place for place in places if place.startswith(f"{base}/")]


def _children() -> list[str]:
    """Return what runs as a child of this process, apart from the workers of the test runner."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                fields = stream.read().rpartition(")")[2].split()
            with open(f"/proc/{name}/cmdline", "rb") as stream:
                words = stream.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and "multiprocessing" not in words and "execnet" not in words:
            found.append(f"{name} {words or '(ended, not waited for)'}")
    return found
