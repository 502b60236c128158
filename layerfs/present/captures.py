"""How ``init`` and ``checkout`` report what they did and what it cost."""

from __future__ import annotations

import os

from layerfs.capture.initialise import Initialised
from layerfs.checkout.restored import Restored
from layerfs.cli.output import Reply
from layerfs.cli.quantities import counted, readable_ratio, readable_size
from layerfs.errors import EXIT_INCOMPLETE, quote
from layerfs.ids import CommitId, short, to_hex
from layerfs.present.names import path_data
from layerfs.present.problems import exit_code, mount_notes, problem_data, problem_notes


def present_init(made: Initialised) -> Reply:
    """Answer ``init``: files, bytes, both ratios, and what could not be captured."""
    told = tuple(f"layerfs: {note}" for note in made.notes)
    if made.captured is None or made.stats is None or made.commit is None:
        text = f"empty store {quote(made.store)}\n"
        return Reply(_nothing(made), text.encode("utf-8", "surrogateescape"), notes=told)
    totals, stats, problems = made.captured.totals, made.stats, made.captured.problems
    stored = stats.stored_bytes
    lines = [
        f"captured {quote(made.source)} as L1 ({short(made.commit)})",
        f"  {counted(totals.files, 'file')}, {counted(totals.directories, 'directory', 'directories')}, "
        f"{counted(totals.others, 'other entry', 'other entries')}, {readable_size(totals.size)}",
        f"  stored in {readable_size(stored)}: dedup {readable_ratio(stats.put_bytes, stats.new_bytes)}, "
        f"compression {readable_ratio(stats.new_bytes, stored)}",
        f"  store {os.fsdecode(made.store)}",
        "  workspace 'source' on branch 'work'",
    ]
    mounts = made.captured.mounts
    notes = [
        *told,
        *mount_notes(mounts),
        *problem_notes(problems, "captured"),
    ]
    data = {
        "store": made.store,
        "source": made.source,
        "layer": 1,
        "commit": to_hex(made.commit),
        "files": totals.files,
        "directories": totals.directories,
        "others": totals.others,
        "bytes": totals.size,
        "put_bytes": stats.put_bytes,
        "new_bytes": stats.new_bytes,
        "stored_bytes": stored,
        "problems": problem_data(problems),
        "mounts": path_data(mounts),
    }
    code = EXIT_INCOMPLETE if mounts else exit_code(problems)
    answer = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    return Reply(data, answer, exit_code=code, notes=tuple(notes))


def _nothing(made: Initialised) -> dict[str, object]:
    """Return what a document says of a store that holds no state."""
    totals = dict.fromkeys(
        ("files", "directories", "others", "bytes", "put_bytes", "new_bytes", "stored_bytes"), 0
    )
    places = {"store": made.store, "source": made.source, "layer": None, "commit": None}
    return {**places, **totals, "problems": [], "mounts": []}


def present_checkout(commit: CommitId, target: bytes, restored: Restored) -> Reply:
    """Answer ``checkout``: what was written, and what this machine could not represent."""
    text = (
        f"checked out {short(commit)} to {os.fsdecode(target)}: "
        f"{counted(restored.files, 'file')}, {readable_size(restored.size)}\n"
    )
    notes = list(problem_notes(restored.problems, "restored"))
    if restored.foreign_owners:
        notes.append(
            f"layerfs: owners of {counted(restored.foreign_owners, 'entry', 'entries')} were not restored (not root)"
        )
    return Reply(
        {
            "commit": to_hex(commit),
            "target": target,
            "files": restored.files,
            "others": restored.others,
            "bytes": restored.size,
            "problems": problem_data(restored.problems),
            "foreign_owners": restored.foreign_owners,
        },
        text.encode("utf-8", "surrogateescape"),
        exit_code=exit_code(restored.problems),
        notes=tuple(notes),
    )
