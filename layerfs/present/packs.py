"""How packs and counts of objects are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import counted, readable_size
from layerfs.errors import EXIT_NO, EXIT_OK
from layerfs.ids import to_hex
from layerfs.objects.packcheck import PackReport
from layerfs.objects.packs import pack_name
from layerfs.store.packlist import Counts, PackedObject, PackSummary
from layerfs.upkeep.repack import Repacked


def present_packs(rows: Iterable[PackSummary]) -> Reply:
    """Answer ``ls-pack``: name, role, state, objects, bytes."""
    found = list(rows)
    return Reply(
        data={
            "packs": [
                {
                    "name": row.name,
                    "role": row.role,
                    "state": row.state,
                    "objects": row.objects,
                    "size": row.length,
                }
                for row in found
            ]
        },
        text="".join(
            f"{row.name} {row.role} {row.state} {row.objects} {row.length}\n" for row in found
        ).encode(),
    )


def present_pack(rows: Iterable[PackedObject]) -> Reply:
    """Answer ``ls-pack PACK``: id, kind, length, offset of the frame, offset in the frame's payload."""
    found = iter(rows)
    return Reply(
        data={
            "objects": (
                {
                    "id": to_hex(row.oid),
                    "kind": row.kind.label,
                    "size": row.length,
                    "frame": row.frame,
                    "start": row.start,
                }
                for row in found
            )
        },
        text=(
            f"{to_hex(row.oid)} {row.kind.label} {row.length} {row.frame} {row.start}\n".encode()
            for row in found
        ),
    )


def present_checks(reports: Sequence[PackReport]) -> Reply:
    """Answer ``verify-pack``: a line per pack, then one per problem; exit 1 if there is one."""
    lines: list[str] = []
    data: list[Mapping[str, Any]] = []
    for report in reports:
        name = pack_name(report.number)
        verdict = "damaged" if report.problems else "ok"
        lines.append(f"{name} {verdict} {len(report.frames)} {report.objects} {report.length}")
        lines += [f"{name} problem {problem}" for problem in report.problems]
        data.append(
            {
                "name": name,
                "ok": not report.problems,
                "frames": len(report.frames),
                "objects": report.objects,
                "size": report.length,
                "problems": list(report.problems),
            }
        )
    damaged = any(report.problems for report in reports)
    return Reply(
        data={"packs": data},
        text=encode_text("".join(f"{line}\n" for line in lines)),
        exit_code=EXIT_NO if damaged else EXIT_OK,
    )


def present_counts(counts: Counts) -> Reply:
    """Answer ``count-objects``: kind, objects, bytes; then the packs and their bytes."""
    rows = [f"{kind.label} {objects} {size}" for kind, objects, size in counts.kinds]
    rows.append(f"packs {counts.packs} {counts.packed_bytes}")
    return Reply(
        data={
            "kinds": {
                kind.label: {"objects": objects, "bytes": size} for kind, objects, size in counts.kinds
            },
            "packs": counts.packs,
            "packed_bytes": counts.packed_bytes,
        },
        text="".join(f"{row}\n" for row in rows).encode(),
    )


def present_repacked(done: Repacked) -> Reply:
    """Answer ``repack``: what was made of what."""
    text = "nothing to repack\n"
    if done.old_packs:
        text = (
            f"repacked {counted(done.objects, 'object')}: {counted(done.old_packs, 'pack')}, "
            f"{readable_size(done.before_bytes)}, became {counted(done.new_packs, 'pack')}, "
            f"{readable_size(done.after_bytes)}\n"
        )
    return Reply(
        data={
            "old_packs": done.old_packs,
            "new_packs": done.new_packs,
            "objects": done.objects,
            "before_bytes": done.before_bytes,
            "after_bytes": done.after_bytes,
        },
        text=encode_text(text),
    )
