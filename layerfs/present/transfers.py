"""How a transfer between stores is shown."""

from __future__ import annotations

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import counted, readable_size
from layerfs.errors import EXIT_NO, EXIT_OK, quote
from layerfs.exchange.copying import Cloned
from layerfs.exchange.transfer import RefMove, Transferred
from layerfs.ids import short, to_hex


def present_transferred(done: Transferred) -> Reply:
    """Answer ``fetch`` and ``push``: a line per name that moved or could not, and what was copied."""
    lines = [_line(move) for move in done.moves if move.how != "same"]
    if all(move.how == "same" for move in done.moves):
        lines.append("everything is up to date")
    lines.append(_copied(done))
    nothing = all(move.how == "same" for move in done.moves)
    return Reply(
        data=_data(done),
        text=encode_text("".join(f"{line}\n" for line in lines)),
        status="refused" if done.refused else "up-to-date" if nothing else "ok",
        exit_code=EXIT_NO if done.refused else EXIT_OK,
        errors=tuple({"code": "refused", "message": _line(move), "hint": ""} for move in done.refused),
    )


def present_cloned(cloned: Cloned) -> Reply:
    """Answer ``clone``."""
    done = cloned.transferred
    names = counted(len(done.moves) - bool(done.layers), "branch or tag", "branches and tags")
    text = f"cloned into {quote(cloned.store)}: {names}, {counted(done.layers, 'layer')}\n{_copied(done)}\n"
    return Reply(data={"store": cloned.store, **_data(done)}, text=encode_text(text))


def _copied(done: Transferred) -> str:
    return f"copied {counted(done.objects, 'object')}, {readable_size(done.stored_bytes)}"


def _line(move: RefMove) -> str:
    name = move.short_name
    new = short(move.new) if move.new is not None else "nothing"
    old = short(move.old) if move.old is not None else "nothing"
    if move.how == "refused":
        return f"refused: {name} is at {old}, not moved to {new}: {move.why}"
    return f"{move.how}: {name} {new}" if move.old is None else f"{move.how}: {name} {old}..{new}"


def _data(done: Transferred) -> dict[str, object]:
    return {
        "refs": [
            {
                "name": move.name,
                "old": None if move.old is None else to_hex(move.old),
                "new": None if move.new is None else to_hex(move.new),
                "how": move.how,
                "why": move.why,
            }
            for move in done.moves
        ],
        "layers": done.layers,
        "objects": done.objects,
        "stored_bytes": done.stored_bytes,
    }
