"""How upkeep is shown: collection, pruning, purging."""

from __future__ import annotations

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import counted, readable_size
from layerfs.errors import quote
from layerfs.ids import to_hex
from layerfs.present.names import path_data, show_path
from layerfs.upkeep.collect import Collected
from layerfs.upkeep.prune import Pruned
from layerfs.upkeep.purge import Purged


def present_collected(done: Collected) -> Reply:
    """Answer ``gc``."""
    return Reply(
        data=_collected_data(done),
        text=encode_text(_collected_line(done) + "\n"),
        status="ok" if done.dropped_packs or done.reflog_lines else "up-to-date",
    )


def present_pruned(done: Pruned) -> Reply:
    """Answer ``prune``: what went, and what was left because there is work in it."""
    would = "would remove" if done.collected.dry_run else "removed"
    evicted = done.evicted
    lines = [
        encode_text(_collected_line(done.collected)),
        encode_text(
            f"layer cache: {would} {counted(evicted.layers, 'layer')}, {readable_size(evicted.freed_bytes)}"
        ),
        encode_text(f"leftovers: {would} {done.leftovers:,}, {readable_size(done.freed_bytes)}"),
    ]
    lines += [
        b"kept, holds uncommitted work of an unknown workspace: " + show_path(path) for path in done.kept
    ]
    return Reply(
        data={
            **_collected_data(done.collected),
            "cache_layers": evicted.layers,
            "cache_bytes": evicted.freed_bytes,
            "leftovers": done.leftovers,
            "leftover_bytes": done.freed_bytes,
            "kept": path_data(done.kept),
        },
        text=b"".join(line + b"\n" for line in lines),
    )


def present_purged(done: Purged) -> Reply:
    """Answer ``purge``: old and new ids, and whether the content is still somewhere else."""
    lines = [f"commit {to_hex(old)} {to_hex(new)}" for old, new in done.commits]
    lines += [f"layer {to_hex(old)} {to_hex(new)}" for old, new in done.layers]
    lines.append(_collected_line(done.collected))
    notes = []
    if done.remaining:
        notes.append(
            f"layerfs: {counted(done.remaining, 'content')} of {done.contents:,} kept: other paths hold the same"
        )
    if done.quarantined:
        notes.append(
            f"layerfs: {counted(len(done.quarantined), 'damaged pack')} in quarantine may hold what was purged: "
            f"delete {quote(done.quarantined[0].rpartition(b'/')[0])}"
        )
    return Reply(
        data={
            "commits": [{"old": to_hex(old), "new": to_hex(new)} for old, new in done.commits],
            "layers": [{"old": to_hex(old), "new": to_hex(new)} for old, new in done.layers],
            "contents": done.contents,
            "remaining": done.remaining,
            **_collected_data(done.collected),
        },
        text=encode_text("".join(f"{line}\n" for line in lines)),
        notes=tuple(notes),
    )


def _collected_line(done: Collected) -> str:
    if not done.dropped_packs and not done.reflog_lines:
        return f"nothing to collect: {counted(done.kept_objects, 'object')} kept"
    went = counted(done.dropped_objects, "object")
    expired = f", {counted(done.reflog_lines, 'reflog line')} expired" if done.reflog_lines else ""
    would = "would drop" if done.dry_run else "dropped"
    return f"{would} {went}, {readable_size(max(0, done.freed_bytes))}{expired}; {done.kept_objects:,} kept"


def _collected_data(done: Collected) -> dict[str, object]:
    return {
        "dry_run": done.dry_run,
        "dropped_objects": done.dropped_objects,
        "kept_objects": done.kept_objects,
        "dropped_packs": done.dropped_packs,
        "new_packs": done.new_packs,
        "freed_bytes": done.freed_bytes,
        "reflog_lines": done.reflog_lines,
    }
