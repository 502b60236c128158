"""How single objects and the pieces of files are shown: ids, raw payloads, and payloads made readable.

Owns the answers of ``hash-object``, ``cat-file``, ``chunk-file``, ``ls-extents``, ``read-extent`` and ``splice-extent``.
Decoding is done by the caller's ``decode_*`` functions here because a decoded object is a value like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from layerfs.cli.output import Reply, encode_text
from layerfs.history.states import Found, zeros
from layerfs.ids import ObjectId, to_hex
from layerfs.objects.commits import Commit, decode_commit
from layerfs.objects.entry import decode_root
from layerfs.objects.extents import decode_extent_node
from layerfs.objects.kinds import Kind
from layerfs.objects.layers import Layer, decode_layer
from layerfs.objects.trees import decode_node
from layerfs.plumbing.splicing import Spliced, StoredRange
from layerfs.present.entries import NO_ID, entry_data, id_text, kind_word, mode_text, time_text
from layerfs.present.names import show_path

HOLE = "hole"


def present_hashes(rows: Iterable[tuple[bytes | None, bytes, int]]) -> Reply:
    """Answer ``hash-object``: one id per line; a dash for an empty file, which has no object."""
    found = [(path, to_hex(oid) if oid else NO_ID, size) for path, oid, size in rows]
    data = [{"path": path, "id": None if oid == NO_ID else oid, "size": size} for path, oid, size in found]
    return Reply(
        data={"objects": data},
        text=b"".join(oid.encode() + b"\n" for _, oid, _ in found),
        z=b"".join(oid.encode() + b"\0" for _, oid, _ in found),
    )


def present_pieces(pieces: Iterable[tuple[int, int, ObjectId | None]]) -> Reply:
    """Answer ``chunk-file`` and ``ls-extents``: offset, length, chunk id or the word hole."""
    rows = iter(pieces)
    return Reply(
        data={
            "extents": (
                {"offset": offset, "length": length, "chunk": None if chunk is None else to_hex(chunk)}
                for offset, length, chunk in rows
            )
        },
        text=(
            f"{offset} {length} {HOLE if chunk is None else to_hex(chunk)}\n".encode()
            for offset, length, chunk in rows
        ),
    )


def present_range(found: StoredRange) -> Reply:
    """Answer ``read-extent``: the bytes; in JSON piece by piece, a hole without a payload."""
    parts = found.parts
    return Reply(
        data={
            "offset": found.offset,
            "size": found.file_size,
            "pieces": (
                {"length": part, "payload": None}
                if isinstance(part, int)
                else {"length": len(part), "payload": part}
                for part in parts
            ),
        },
        text=(piece for part in parts for piece in (zeros(part) if isinstance(part, int) else (part,))),
    )


def present_spliced(spliced: Spliced) -> Reply:
    """Answer ``splice-extent``: the id of the content (a dash for none), or of the root that was asked for."""
    (ref, size), root = spliced
    text = to_hex(root or ref) if root or ref else NO_ID
    data = {"id": to_hex(ref) if ref else None, "size": size, "root": None if root is None else to_hex(root)}
    return Reply(data, text.encode() + b"\n")


def present_payload(found: Found) -> Reply:
    """Answer ``cat-file KIND ID``: the object's bytes and nothing else."""
    return Reply({**_head(found), "payload": found.payload}, found.payload)


def present_kind(found: Found) -> Reply:
    """Answer ``cat-file -t``."""
    return Reply(_head(found), found.kind.label.encode() + b"\n")


def present_size(found: Found) -> Reply:
    """Answer ``cat-file -s``."""
    return Reply(_head(found), b"%d\n" % len(found.payload))


def present_existence(found: Found) -> Reply:
    """Answer ``cat-file -e``: nothing, when the object is there."""
    return Reply(_head(found))


def present_readable(found: Found) -> Reply:
    """Answer ``cat-file -p``: the object made readable."""
    data, text = _READABLE[found.kind](found.payload)
    return Reply({**_head(found), **data}, text)


def present_batch(rows: Iterable[Found | str], nul: bool) -> Reply:
    """Answer ``cat-file --batch``: per word a line ``ID KIND SIZE``, the payload, a newline; or ``WORD missing``."""
    items = iter(rows)
    end = b"\0" if nul else b"\n"
    text = (_batch_record(item, end) for item in items)
    return Reply(
        data={
            "objects": (
                {"word": item, "id": None}
                if isinstance(item, str)
                else {**_head(item), "payload": item.payload}
                for item in items
            )
        },
        text=text,
        z=text,
        prompt=True,
    )


def _batch_record(item: Found | str, end: bytes) -> bytes:
    if isinstance(item, str):
        return encode_text(item) + b" missing" + end
    return f"{to_hex(item.oid)} {item.kind.label} {len(item.payload)}".encode() + end + item.payload + end


def _head(found: Found) -> dict[str, Any]:
    return {"word": found.word, "id": to_hex(found.oid), "kind": found.kind.label, "size": len(found.payload)}


Readable = tuple[Mapping[str, Any], bytes]


def _chunk(payload: bytes) -> Readable:
    return {"payload": payload}, payload


def _extent(payload: bytes) -> Readable:
    node = decode_extent_node(payload)
    rows = [
        (extent.length, HOLE if extent.chunk is None else to_hex(extent.chunk)) for extent in node.extents
    ]
    rows += [(child.weight, to_hex(child.oid)) for child in node.children]
    what = "chunk" if node.level == 0 else "extent"
    text = "".join(f"{length} {HOLE if oid == HOLE else f'{what} {oid}'}\n" for length, oid in rows)
    data = [{"length": length, what: None if oid == HOLE else oid} for length, oid in rows]
    return {"level": node.level, "items": data}, text.encode()


def _tree(payload: bytes) -> Readable:
    node = decode_node(payload)
    lines = [
        f"{mode_text(entry)} {kind_word(entry)} {id_text(entry)}\t".encode() + show_path(name)
        for name, entry in node.entries
    ]
    lines += [
        f"node {child.weight} {to_hex(child.oid)}\t".encode() + show_path(child.key)
        for child in node.children
    ]
    items: list[Mapping[str, Any]] = [
        {"name": name, **(entry_data(entry) or {})} for name, entry in node.entries
    ]
    items += [
        {"last_name": child.key, "entries": child.weight, "node": to_hex(child.oid)}
        for child in node.children
    ]
    return {"level": node.level, "items": items}, b"".join(line + b"\n" for line in lines)


def _root(payload: bytes) -> Readable:
    entry = decode_root(payload)
    lines = [
        f"tree {to_hex(entry.ref)}",
        f"mode {mode_text(entry)}",
        f"owner {entry.uid}:{entry.gid}",
        f"mtime {time_text(entry.mtime_ns)}",
    ]
    text = "".join(f"{line}\n" for line in lines).encode()
    text += b"".join(
        b"xattr " + show_path(name) + b" " + value.hex().encode() + b"\n" for name, value in entry.xattrs
    )
    return {"entry": entry_data(entry)}, text


def commit_data(commit: Commit) -> dict[str, Any]:
    """Return a commit's fields for a document."""
    return {
        "root": to_hex(commit.root),
        "parents": [to_hex(parent) for parent in commit.parents],
        "author": commit.author,
        "time_ns": commit.time_ns,
        "tz_minutes": commit.tz_minutes,
        "message": commit.message,
        "provenance": dict(commit.provenance),
        "reads": [{"path": read.path, "seen": to_hex(read.seen) or None} for read in commit.reads],
        "renames": [{"old": old, "new": new} for old, new in commit.renames],
        "notes": [{"path": path, "text": text} for path, text in commit.notes],
    }


def layer_data(layer: Layer) -> dict[str, Any]:
    """Return a layer's fields for a document."""
    return {
        "number": layer.number,
        "commit": to_hex(layer.commit),
        "previous": to_hex(layer.previous) if layer.previous else None,
        "how": layer.how,
        "time_ns": layer.time_ns,
        "author": layer.author,
        "branch": layer.branch,
        "message": layer.message,
        "checks": [{"command": check.command, "exit_code": check.exit_code} for check in layer.checks],
        "covered_ids": [to_hex(covered) for covered in layer.covered],
    }


def _commit(payload: bytes) -> Readable:
    commit = decode_commit(payload)
    lines = [f"root {to_hex(commit.root)}".encode()]
    lines += [f"parent {to_hex(parent)}".encode() for parent in commit.parents]
    lines.append(encode_text(f"author {_one_line(commit.author)}"))
    lines.append(f"time {time_text(commit.time_ns)} {commit.tz_minutes}".encode())
    lines += [encode_text(f"about {key} {_one_line(value)}") for key, value in commit.provenance]
    lines += [
        b"read %s " % (read.seen.hex().encode() or NO_ID.encode()) + show_path(read.path)
        for read in commit.reads
    ]
    lines += [b"rename " + show_path(old) + b" " + show_path(new) for old, new in commit.renames]
    lines += [b"note " + show_path(path) + b" " + encode_text(_one_line(note)) for path, note in commit.notes]
    return commit_data(commit), b"\n".join(lines) + b"\n\n" + _message(commit.message)


def _layer(payload: bytes) -> Readable:
    layer = decode_layer(payload)
    lines = [f"layer {layer.number}", f"commit {to_hex(layer.commit)}"]
    lines += [f"previous {to_hex(layer.previous)}"] if layer.previous else []
    lines += [f"how {layer.how}"]
    lines += [f"branch {layer.branch}"] if layer.branch else []
    lines += [f"author {_one_line(layer.author)}", f"time {time_text(layer.time_ns)}"]
    lines += [f"check {check.exit_code} {_one_line(check.command)}" for check in layer.checks]
    lines += [f"covers {to_hex(covered)}" for covered in layer.covered]
    return layer_data(layer), encode_text("\n".join(lines)) + b"\n\n" + _message(layer.message)


def _message(message: str) -> bytes:
    text = encode_text(message)
    return text if not text or text.endswith(b"\n") else text + b"\n"


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


_READABLE: dict[Kind, Callable[[bytes], Readable]] = {
    Kind.CHUNK: _chunk,
    Kind.EXTENT: _extent,
    Kind.TREE: _tree,
    Kind.ROOT: _root,
    Kind.COMMIT: _commit,
    Kind.LAYER: _layer,
}


def present_ids(rows: Iterator[tuple[str, ObjectId | None]], digits: int) -> Reply:
    """Answer ``rev-parse``: an id per word, or ``WORD missing``."""
    lines = (
        (word, encode_text(word) + b" missing" if oid is None else to_hex(oid)[:digits].encode())
        for word, oid in rows
    )
    return Reply(
        data={
            "revisions": ({"word": word, "id": None if oid is None else to_hex(oid)} for word, oid in rows)
        },
        text=(line + b"\n" for _, line in lines),
        z=(line + b"\0" for _, line in lines),
        prompt=True,
    )


def present_id(name: str, oid: bytes) -> Reply:
    """Answer with one id."""
    return Reply({name: to_hex(oid)}, to_hex(oid).encode() + b"\n")
