"""How the health of a store and of a machine is shown: statistics, checks, capabilities."""

from __future__ import annotations

from collections.abc import Sequence

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import counted, readable_ratio, readable_size
from layerfs.errors import EXIT_NO, EXIT_OK, quote
from layerfs.ids import short, to_hex
from layerfs.present.names import show_path
from layerfs.upkeep.doctor import Departures, Finding
from layerfs.upkeep.stats import Statistics
from layerfs.upkeep.verify import Problem, Report
from layerfs.workspace.references import Reference


def present_statistics(found: Statistics) -> Reply:
    """Answer ``stats``."""
    counts, state = found.counts, found.state
    size, packed = found.compression
    lines = []
    if state is not None:
        names = [counted(state.files, "file"), counted(state.directories, "directory", "directories")]
        names += [counted(state.others, "other")] if state.others else []
        lines.append(f"state {short(state.commit)}: {', '.join(names)}, {readable_size(state.size)}")
    lines.append(
        f"history: {counted(found.commits, 'commit')}, {counted(found.layers, 'layer')}, "
        f"{counted(found.branches, 'branch', 'branches')}, {counted(found.tags, 'tag')}"
    )
    lines.append(f"objects: {counts.objects:,}, {readable_size(size)}")
    lines += [
        f"  {row.kind.label.ljust(7)} {row.objects:>12,}  {readable_size(row.size)}" for row in counts.kinds
    ]
    lines.append(
        f"packs: {counts.packs:,}, {readable_size(packed)}; compression {readable_ratio(size, packed)}"
    )
    if state is not None and packed:
        lines.append(f"the whole history takes {packed / state.size:.2f} of one copy" if state.size else "")
    copies, objects = found.dedup
    if copies:
        ratio = readable_ratio(copies, objects)
        lines.append(f"all states as copies: about {readable_size(copies)}; deduplication {ratio}")
    per_commit = found.log_bytes // max(1, found.log_commits)
    lines.append(f"commits one by one: {readable_size(found.log_bytes)}, {readable_size(per_commit)} each")
    return Reply(
        data={
            "state": None
            if state is None
            else {
                "commit": to_hex(state.commit),
                "files": state.files,
                "directories": state.directories,
                "others": state.others,
                "bytes": state.size,
            },
            "commits": found.commits,
            "layers": found.layers,
            "branches": found.branches,
            "tags": found.tags,
            "kinds": {row.kind.label: {"objects": row.objects, "bytes": row.size} for row in counts.kinds},
            "object_bytes": size,
            "packs": counts.packs,
            "packed_bytes": packed,
            "log_bytes": found.log_bytes,
            "copies_bytes": copies,
            "deduplication": copies / objects if objects else 1.0,
            "compression": size / packed if packed else 1.0,
            "per_commit_bytes": per_commit,
        },
        text=encode_text("".join(f"{line}\n" for line in lines if line)),
    )


def present_report(report: Report, repaired: Sequence[str]) -> Reply:
    """Answer ``fsck``: problems first, then what was checked; exit 1 if there is a problem."""
    lines = [encode_text(f"repaired: {what}") for what in repaired]
    lines += [_problem(problem) for problem in report.problems]
    checked = ", ".join(
        (
            counted(report.packs, "pack"),
            counted(report.frames, "frame"),
            counted(report.objects, "object"),
            counted(report.commits, "commit"),
        )
    )
    verdict = "clean" if report.clean else counted(len(report.problems), "problem")
    lines.append(encode_text(f"{verdict}: checked {checked}; {report.reached:,} objects are reachable"))
    return Reply(
        data={
            "clean": report.clean,
            "problems": [
                {
                    "why": problem.what,
                    "id": None if problem.oid is None else to_hex(problem.oid),
                    "kind": None if problem.kind is None else problem.kind.label,
                    "commit": None if problem.commit is None else to_hex(problem.commit),
                    "path": problem.path,
                    "pack": problem.pack,
                }
                for problem in report.problems
            ],
            "repaired": list(repaired),
            "packs": report.packs,
            "frames": report.frames,
            "objects": report.objects,
            "commits": report.commits,
            "reached": report.reached,
        },
        text=b"".join(line + b"\n" for line in lines),
        exit_code=EXIT_OK if report.clean else EXIT_NO,
    )


def _problem(problem: Problem) -> bytes:
    line = b"damaged: "
    if problem.pack is not None:
        line += f"pack {problem.pack}: ".encode()
    if problem.oid is not None:
        kind = f"{problem.kind.label} " if problem.kind is not None else ""
        line += f"{kind}{short(problem.oid)}: ".encode()
    line += encode_text(problem.what)
    if problem.commit is not None:
        line += f", needed by commit {short(problem.commit)}".encode()
    if problem.path is not None:
        line += b" for " + show_path(problem.path or b".")
    return line


SHOWN = 20


def present_findings(
    findings: Sequence[Finding], departures: Departures | None = None, source: bytes | None = None
) -> Reply:
    """Answer ``doctor``: a line per capability and what it means where it is missing; then the absolute paths."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{'ok  ' if finding.works else 'no  '} {finding.name.ljust(width)}  {finding.found}")
        if not finding.works and finding.meaning:
            lines.append(f"     {''.ljust(width)}  {finding.meaning}")
    if departures is not None:
        lines += _departure_lines(departures, source or b"")
    return Reply(
        data={
            "findings": [
                {"name": row.name, "works": row.works, "found": row.found, "meaning": row.meaning}
                for row in findings
            ],
            "references": None
            if departures is None
            else {
                "into": [_reference_data(one) for one in departures.into],
                "missing": [_reference_data(one) for one in departures.missing],
                "foreign": [_reference_data(one) for one in departures.foreign],
                "system": departures.system,
            },
        },
        text=encode_text("".join(f"{line}\n" for line in lines)),
    )


def _reference_data(reference: Reference) -> dict[str, object]:
    return {"path": reference.path, "kind": reference.kind, "target": reference.target}


def _departure_lines(departures: Departures, source: bytes) -> list[str]:
    """List what leads into the captured path, and what leads out of the tree to nowhere or to other users' files."""
    lines: list[str] = []
    for title, found in (
        (
            f"with the captured path {quote(source)} inside, so that a workspace elsewhere uses the original",
            departures.into,
        ),
        ("leading out of the tree, to where nothing is on this machine", departures.missing),
        ("leading out of the tree, to what is no part of the operating system", departures.foreign),
    ):
        if not found:
            continue
        lines.append(f"{counted(len(found), 'file')} {title}:")
        lines += [f"     {quote(one.path)} ({one.kind}) -> {quote(one.target)}" for one in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"     and {len(found) - SHOWN} more; --json lists all")
    return lines
