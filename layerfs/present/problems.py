"""How things that could not be captured or restored are told: listed one by one, and the exit code says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerfs.capture.captured import Problem
from layerfs.cli.output import Reply
from layerfs.cli.quantities import counted
from layerfs.errors import EXIT_INCOMPLETE, EXIT_OK, quote

SHOWN = 50


def problem_notes(problems: Sequence[Problem], doing: str) -> tuple[str, ...]:
    """Return the lines for stderr: each problem, up to ``SHOWN``, then how many more."""
    lines = [
        f"layerfs: not {doing}: {quote(problem.path)}: {problem.why}{' (kept as it was)' if problem.kept else ''}"
        for problem in problems[:SHOWN]
    ]
    if len(problems) > SHOWN:
        lines.append(f"layerfs: and {counted(len(problems) - SHOWN, 'more path')}; --json lists all")
    return tuple(lines)


def mount_notes(mounts: Iterable[bytes]) -> tuple[str, ...]:
    """Return the lines for stderr about what is mounted in a captured tree, and so is no part of it."""
    return tuple(f"layerfs: not captured: {quote(path)} is another file system" for path in mounts)


def problem_data(problems: Iterable[Problem]) -> list[Mapping[str, Any]]:
    """Return problems for a document."""
    return [{"path": problem.path, "why": problem.why, "kept": problem.kept} for problem in problems]


def exit_code(problems: Sequence[Problem]) -> int:
    """Return 3 when anything is listed: done, but not faithfully."""
    return EXIT_INCOMPLETE if problems else EXIT_OK


def with_problems(reply: Reply, problems: Sequence[Problem], doing: str) -> Reply:
    """Return an answer that also tells what is missing from it."""
    return reply._replace(
        data={**reply.data, "problems": problem_data(problems)},
        notes=(*reply.notes, *problem_notes(problems, doing)),
        exit_code=reply.exit_code or exit_code(problems),
    )
