"""Running a command on machines of every kind: as root, with user namespaces only, with neither; and absolute paths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project import Project, refusal
from stranger import Stranger
from world import Outcome

JOB = """
import hashlib, os, sys
os.makedirs("build/deep", exist_ok=True)
for name in sorted(os.listdir("src")):
    data = open(os.path.join("src", name), "rb").read()
    with open(os.path.join("build", "deep", name + ".sum"), "w") as out:
        out.write(hashlib.sha256(data).hexdigest() + "\\n")
os.chmod("build/deep/one.sum", 0o755)
os.rename("old", "moved/new")
os.symlink("deep/one.sum", "build/latest")
os.link("build/deep/two.sum", "build/twin")
os.unlink("gone")
with open("src/one", "a") as out:
    out.write("appended by the job\\n")
print("job done in", os.path.basename(os.getcwd()))
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def working(stranger: Stranger) -> Stranger:
    """A project of somebody's, with a job to run in it."""
    for name in ("src/one", "src/two", "old", "gone", "sub/file", "moved/x"):
        stranger.write(name, f"content of {name}\n")
    stranger.write("job.py", JOB)
    return stranger


def tree(somebody: Stranger, revision: str) -> list[str]:
    """List a state with contents and modes, without owners and times."""
    listed = somebody.document("ls-tree", "-r", revision)["entries"]
    return sorted(
        f"{one['path']} {one['kind']} {one['mode']} {one['id'] if one['kind'] == 'file' else one.get('target')}"
        for one in listed
    )


@pytest.mark.usefixtures("need_user_namespace")
def test_one_job_three_ways(working: Stranger) -> None:
    """As root, as a user with namespaces, and with nothing: same output, same exit code, same commit."""
    working.ok("init")
    working.ok("fork", "root", "user", "none")
    job = ["--commit", "-m", "job", "--", working.python, "job.py"]
    seen: dict[str, Outcome] = {}
    environment = {**working.environment(), "HOME": str(working.home)}
    done = subprocess.run(
        [working.python, "-m", "layerfs", "run", "root", *job],
        cwd=working.source,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    seen["root"] = Outcome(done.returncode, done.stdout, done.stderr)
    seen["user"] = working.run("run", "user", *job)
    seen["none"] = working.run("run", "none", *job, denied=True)
    for name, outcome in seen.items():
        assert outcome.code == 7, (name, outcome)
        expected = "src" if name != "none" else "copy"
        assert outcome.text == f"job done in {expected}\n", (name, outcome)
        assert b"committed to " + name.encode() in outcome.err
    assert b"engine copy" not in seen["root"].err + seen["user"].err
    assert b"user namespaces are denied" in seen["none"].err
    assert (working.source / "gone").exists(), "the captured directory stays as it is"
    assert tree(working, "root") == tree(working, "user") == tree(working, "none") != tree(working, "main")
    assert working.document("workspace", "list")["workspaces"][0]["name"] == "source"
    owners = {path: os.lstat(path).st_uid for path in working.store.rglob("*")}
    foreign = [path for path, uid in owners.items() if uid != working.uid and b"/cache/" not in os.fsencode(path)]
    assert foreign == []
    working.ok("fsck")


@pytest.mark.usefixtures("need_user_namespace")
def test_where_no_overlay_works_a_copy_lies_over_the_captured_path(working: Stranger, overlay_disk: Path) -> None:
    working.ok("init", "--store", overlay_disk / "store")
    done = working.run(
        "run", "main", "--as", "f", "--", "sh", "-c", "pwd; cat file; echo new > made; exit 5",
        cwd=working.source / "sub",
    )
    assert done.code == 5, done
    assert done.text == f"{working.source}/sub\ncontent of sub/file\n"
    assert b"engine copy" in done.err and b"upper" in done.err
    assert not (working.source / "sub/made").exists()
    assert working.ok("diff", "--name-status", "main", "f").text.split() == ["A", "sub/made"]
    kept = working.run("run", "main", "--", "sh", "-c", "echo kept > kept")
    assert kept.code == 0 and b"kept in workspace 'main'" in kept.err, kept
    assert working.ok("run", "--in", "main", "--", "cat", f"{working.source}/kept").text == "kept\n"
    working.ok("workspace", "remove", "main", "--discard")


def test_where_nothing_can_be_mounted_the_command_runs_elsewhere(working: Stranger) -> None:
    working.ok("init")
    script = f"pwd; cat file; echo new > made; cat {working.source}/old"
    done = working.run("run", "main", "--", "sh", "-c", script, cwd=working.source / "sub", denied=True)
    assert done.code == 0, done
    where, content, outside = done.text.splitlines()
    assert where.endswith("/copy/sub") and content == "content of sub/file" and outside == "content of old"
    assert b"runs in a copy elsewhere" in done.err and b"namespaces are denied" in done.err
    assert not (working.source / "sub/made").exists()
    done = working.run("run", "--in", "main", "--as", "g", "--", "cat", "sub/made", denied=True)
    assert (done.code, done.text) == (0, "new\n"), done
    assert working.ok("diff", "--name-status", "main", "g").text.split() == ["A", "sub/made"]
    done = working.run("run", "main", "--pass-through", "sub", "--", "true", denied=True)
    assert "--pass-through" in refusal(done, 20)
    assert [row["name"] for row in working.document("workspace", "list")["workspaces"]] == ["source"]


REFERENCES = {
    "scripts/tool": ("#!{source}/scripts/python -s\nprint(1)\n", 0o755),
    "scripts/long": ("#!/bin/sh\n'''exec' \"{source}/scripts/python\" \"$0\" \"$@\"\n' '''\n", 0o755),
    "lib/editable.pth": ("{source}/src\n", 0o644),
    "pyvenv.cfg": ("home = /usr/bin\ncommand = /usr/bin/python3 -m venv {source}\n", 0o644),
    "build/CMakeCache.txt": ("CMAKE_HOME_DIRECTORY:INTERNAL={source}\n", 0o644),
    "build/x.d": ("x.o: {source}/src/one\n", 0o644),
}
OTHERS = {
    "scripts/plain": ("#!/bin/sh\necho {source}\n", 0o755),
    "notes.txt": ("see {source}/src\n", 0o644),
    "lib/other.pth": ("{source}-other/src\n/mnt{source}/x\n", 0o644),
}


def test_absolute_references_are_found_and_refused(working: Stranger) -> None:
    for name, (text, mode) in (REFERENCES | OTHERS).items():
        working.write(name, text.format(source=working.source), mode)
    links = {"link-in": f"{working.source}/src/one", "link-out": "/usr/bin/env", "link-away": "/nonexistent/x"}
    for name, target in {**links, "link-up": "../../elsewhere", "link-near": "src/one"}.items():
        (working.source / name).symlink_to(target)
    working.ok("init")
    found = working.document("doctor")["references"]
    assert {one["path"] for one in found["into"]} == {*REFERENCES, "link-in"}
    assert {one["path"] for one in found["missing"]} == {"link-away", "link-up"}
    assert found["foreign"] == [] and found["system"] >= 2
    listing = working.ok("doctor").text
    assert "'scripts/tool' (interpreter) -> " in listing and "'link-away' (symlink) -> '/nonexistent/x'" in listing
    done = working.run("run", "main", "--", "true", denied=True)
    message = refusal(done, 20)
    assert "user namespaces are denied" in message and "lead to the original" in message
    assert b"--no-at-source" in done.err
    assert [row["name"] for row in working.document("workspace", "list")["workspaces"]] == ["source"]
    done = working.run("run", "main", "--no-at-source", "--", "pwd", denied=True)
    assert done.code == 0 and b"7 absolute references lead to the original" in done.err, done
    assert done.text.strip().endswith("/copy")


def test_references_of_one_state_come_from_those_of_another(working: Stranger) -> None:
    working.ok("init")
    assert working.document("doctor")["references"]["into"] == []
    working.write("tool", f"#!{working.source}/python\n", 0o755)
    (working.source / "link").symlink_to(working.source / "src")
    working.ok("commit", "-m", "references")
    assert {one["path"] for one in working.document("doctor")["references"]["into"]} == {"tool", "link"}
    os.unlink(working.source / "tool")
    os.rename(working.source / "link", working.source / "sub/link")
    working.ok("commit", "-m", "fewer")
    assert {one["path"] for one in working.document("doctor")["references"]["into"]} == {"sub/link"}
    fresh = working.store / "cache/references"
    fresh.write_bytes(b"rubbish")
    assert {one["path"] for one in working.document("doctor")["references"]["into"]} == {"sub/link"}


def test_mount_warns_only_if_something_leads_to_the_original(project: Project) -> None:
    project.write(a="x\n", tool="#!/bin/sh\n")
    project.init()
    for engine in ("overlay", "copy"):
        done = project.run("mount", "main", project.work / engine, "--engine", engine, cwd=project.source)
        assert done.code == 0 and b"original" not in done.err, done
        project.document("unmount", "main")
    (project.source / "link").symlink_to(project.source / "a")
    project.commit(project.source)
    for engine in ("overlay", "copy"):
        done = project.run("mount", "work", project.work / engine, "--engine", engine, cwd=project.source)
        assert done.code == 0 and b"absolute paths in 'link' lead to the original" in done.err, done
        project.document("unmount", "work")


def test_time_up_in_a_copy_elsewhere_ends_its_processes_and_no_others(project: Project) -> None:
    project.write(a="x\n")
    project.init()
    bystander = project.start_any(["sleep", "4400"])
    script = "(setsid sleep 4401 &) ; sleep 4402"
    began = time.monotonic()
    done = project.run(
        "run", "main", "--no-at-source", "--timeout", "0.5", "--", "sh", "-c", script, cwd=project.source
    )
    assert done.code == 124 and time.monotonic() - began < 20, done
    assert bystander.poll() is None
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 4401" not in listing and "sleep 4402" not in listing
    done = project.run("run", "main", "--no-at-source", "--", "sh", "-c", "(setsid sleep 4403 >/dev/null 2>&1 &)",
                       cwd=project.source)
    assert b"processes still run in the workspace" in done.err, done
    pid = int(done.err.decode().partition("which is kept: ")[2].split()[0])
    os.kill(pid, signal.SIGKILL)
    bystander.kill()


TOOL = "import sys, tool_code; print(tool_code.WHO, sys.prefix)\n"


@pytest.mark.usefixtures("need_user_namespace")
@pytest.mark.parametrize("who", ["root", "user"])
def test_two_agents_with_one_virtualenv_each_run_their_own_code(stranger: Stranger, who: str) -> None:
    """The environment's script and its editable install name the captured path, and lead into the workspace."""
    source = stranger.source
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    made = stranger.execute([python, "-m", "venv", "--without-pip", ".venv"])
    assert made.code == 0, made
    (site,) = (source / ".venv/lib").glob("python*/site-packages")
    stranger.write(f"{site.relative_to(source)}/editable.pth", f"{source}/code\n")
    stranger.write(".venv/bin/tool", f"#!{source}/.venv/bin/python\n{TOOL}", 0o755)
    stranger.write("code/tool_code.py", "WHO = 'the original'\n")
    stranger.ok("init")
    stranger.ok("fork", "a", "b")
    for name in ("a", "b"):
        write = f"echo \"WHO = 'agent {name}'\" > {source}/code/tool_code.py"
        stranger.ok("run", name, "--commit", "-m", "mine", "--", "sh", "-c", write)
    fifo = "while [ ! -e /proc/self/cwd/go ] && [ $((n += 1)) -lt 200 ]; do sleep 0.02; done; "
    identity = {} if who == "root" else {"user": 1000, "group": 1000, "extra_groups": []}
    children = [
        subprocess.Popen(
            [stranger.python, "-m", "layerfs", "run", name, "--discard", "--", "sh", "-c",
             f"touch go; {fifo} {source}/.venv/bin/tool; sleep 0.3; tool"],
            cwd=source,
            env={**stranger.environment(), "PATH": f"{source}/.venv/bin:{os.defpath}", "PYTHONPATH":
                 stranger.environment()["PYTHONPATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **identity,
        )
        for name in ("a", "b")
    ]
    for name, child in zip(("a", "b"), children, strict=True):
        out, err = child.communicate(timeout=60)
        assert out.decode() == f"agent {name} {source}/.venv\n" * 2, (out, err)
        assert child.returncode == 0
    assert stranger.execute([source / ".venv/bin/tool"]).text == f"the original {source}/.venv\n"
    place = stranger.home / "elsewhere"
    stranger.ok("mount", "a", place, "--engine", "copy")
    copied = stranger.execute([place / ".venv/bin/tool"]).text
    assert copied == f"the original {source}/.venv\n", "why a copy elsewhere is warned about"
    assert len(stranger.document("doctor")["references"]["into"]) >= 3
