"""``layerfs init``: capture a directory as the first layer of a new store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from layerfs.capture.initialise import InitOptions, check_directory, check_places, initialise, only_init
from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.authorship import author_now
from layerfs.present.captures import present_init
from layerfs.store.layout import default_store_path, find_store_of
from layerfs.workspace.warming import warm_up

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory to capture.")] = ".",
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="PATTERN", help="Leave out what matches, now and in every later capture."
        ),
    ] = None,
    empty: Annotated[
        bool, typer.Option("--empty", help="Make the store, capture nothing: to fetch or push into.")
    ] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Put the state into the layer cache as well, for the first mount.")
    ] = False,
    cross: Annotated[
        bool, typer.Option("--cross-filesystems", help="Capture what is mounted below the directory as well.")
    ] = False,
    torn: Annotated[
        bool, typer.Option("--allow-torn", help="Record files that keep changing as they were read.")
    ] = False,
    remote: Annotated[
        bool, typer.Option("--allow-network-store", help="Accept a store on a network or FUSE file system.")
    ] = False,
    disposable: Annotated[
        bool,
        typer.Option("--disposable", help="Never sync to disk: fast, and lost when the machine crashes."),
    ] = False,
) -> Reply:
    """Capture a directory, completely, as layer L1 of a new store.

    Everything below the directory is recorded: sources, .git, dependencies, caches, ignored files, links, permissions,
    times and extended attributes. The store lies outside of it, by default below $XDG_DATA_HOME/layerfs; a pointer file
    .layerfs in the directory names it. The directory becomes the workspace "source" on branch "work", so that status,
    diff, commit and publish work right there.

    What could not be captured is listed, and the exit code is 3. Other file systems mounted below the directory are left
    out and listed unless --cross-filesystems.
    """
    source = os.path.realpath(inv.context.absolute(directory))
    store = (
        inv.context.absolute(inv.store_option)
        if inv.store_option
        else default_store_path(inv.context, source)
    )
    check_directory(source)
    with only_init(source), inv.progress() as progress:
        known = find_store_of(inv.context, source)
        check_places(source, os.path.realpath(store), [known] if known is not None else [])
        options = InitOptions(
            tuple(exclude or ()), cross, torn, remote, "disposable" if disposable else "durable", empty
        )
        made = initialise(
            source,
            os.path.realpath(store),
            author_now(inv.context),
            options,
            clock=inv.context.clock,
            progress=progress,
        )
        if warm and made.commit is not None:
            warm_up(inv.context, made.store, made.commit, progress)
    return present_init(made)
