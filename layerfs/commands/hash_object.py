"""``layerfs hash-object``: the id of a file's content, or of one object."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.stdin import iter_blocks, iter_records
from layerfs.errors import UsageError
from layerfs.objects.kinds import Kind
from layerfs.plumbing.objectwriting import file_sources, hash_files
from layerfs.plumbing.splicing import hash_ranges, parse_ranges
from layerfs.present.objects import present_hashes

if TYPE_CHECKING:
    import typer


class HashKind(Enum):
    """What the bytes are."""

    CONTENT = "content"
    CHUNK = "chunk"
    EXTENT = "extent"
    TREE = "tree"
    ROOT = "root"
    COMMIT = "commit"
    LAYER = "layer"


def command(
    inv: Invocation,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="The files to read.")] = None,
    write: Annotated[bool, typer.Option("-w", help="Write the objects into the store as well.")] = False,
    kind: Annotated[
        HashKind, typer.Option("-t", metavar="KIND", help="What the bytes are.")
    ] = HashKind.CONTENT,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the bytes from standard input.")] = False,
    stdin_paths: Annotated[
        bool, typer.Option("--stdin-paths", help="Read file names from standard input, one per record.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="FILE", help="REV:PATH or an id: the stored file it was before."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="OFFSET:LENGTH", help="Of a file with --base, bytes that changed."),
    ] = None,
) -> Reply:
    """Print the id that a file's content has, one line per file.

    By default the bytes are file content: below 128 KiB they are one chunk, from there on an extent tree of chunks and
    holes; an empty file has no object and prints a dash. With -t they are one object of that kind, given by its canonical
    bytes, which are checked.

    With --base only the bytes of each --range are read from the one file given, and what it has grown by; all others are
    taken to be those of the stored file, unread. Who names too little gets the id of bytes that are not on the disk.
    """
    paths = [inv.context.absolute(name) for name in files or ()]
    if bool(paths) + stdin + stdin_paths != 1:
        raise UsageError("give files, or --stdin, or --stdin-paths")
    if base is not None:
        if len(paths) != 1 or kind is not HashKind.CONTENT:
            raise UsageError("--base takes one file, and its content")
        found = hash_ranges(
            inv.store, paths[0], base, parse_ranges(ranges or ()), write, inv.context.author(), inv.at
        )
        return present_hashes([(paths[0], *found)])
    if ranges:
        raise UsageError("--range goes with --base")
    sources = (
        iter([(None, iter_blocks())])
        if stdin
        else file_sources(map(inv.context.absolute, iter_records(inv.nul)) if stdin_paths else paths)
    )
    store = inv.store if write else None
    wanted = None if kind is HashKind.CONTENT else Kind[kind.name]
    return present_hashes(hash_files(store, sources, wanted, inv.context.author()))
