"""Batch commands as a partner in a conversation: each question is answered before the next one is asked."""

from __future__ import annotations

import subprocess
import sys

from world import World


def test_cat_file_batch_answers_at_once(world: World) -> None:
    project = world.work / "project"
    project.mkdir()
    (project / "one").write_bytes(b"first\n")
    (project / "two").write_bytes(b"second\n")
    world.ok("init", cwd=project)
    with subprocess.Popen(
        [sys.executable, "-m", "layerfs", "cat-file", "--batch"],
        cwd=project,
        env=world.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for name, payload in ((b"main:two", b"second\n"), (b"main:one", b"first\n"), (b"main:two", b"second\n")):
            process.stdin.write(name + b"\n")
            process.stdin.flush()
            head = process.stdout.readline().split()
            assert head[1:] == [b"chunk", b"%d" % len(payload)]
            assert process.stdout.read(len(payload) + 1) == payload + b"\n"
        process.stdin.write(b"nothing-like-it\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"nothing-like-it missing\n"
        process.stdin.close()
        assert process.wait() == 0


def test_nothing_is_imported_from_the_working_directory(world: World) -> None:
    trap = world.work / "typer"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('imported from the working directory')\n")
    assert world.run("rev-parse", "main").code == 10
