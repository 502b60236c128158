"""``layerfs mount``: attach a workspace."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.authorship import author_now
from layerfs.history.revision import resolve
from layerfs.present.workspaces import present_attached
from layerfs.store.settings import Settings
from layerfs.workspace.attach import MountRequest, attach

if TYPE_CHECKING:
    import typer


class EngineChoice(Enum):
    """How a workspace is attached."""

    AUTO = "auto"
    OVERLAY = "overlay"
    COPY = "copy"


def command(
    inv: Invocation,
    revision: Annotated[
        str, typer.Argument(metavar="REV", help="The state to attach; a branch to work on it.")
    ],
    directory: Annotated[
        str | None, typer.Argument(metavar="DIR", help="Where: a new or an empty directory.")
    ] = None,
    engine: Annotated[
        EngineChoice | None, typer.Option("--engine", metavar="ENGINE", help="How to attach it.")
    ] = None,
) -> Reply:
    """Attach a state as a private, writable directory.

    A branch gives a workspace on that branch; any other revision, main included, one that is detached: its work is saved
    with "layerfs commit --as NAME". Engine overlay stacks a private upper on layers that all workspaces share, in
    milliseconds once the state is in the layer cache; engine copy writes everything out. By default the first that works
    is used.

    A workspace of that name that is not attached, because the machine was restarted or its work was kept at unmounting,
    is attached again with all its uncommitted work.

    Anywhere but at the captured path, files that name this path (scripts of a virtualenv, caches of build tools) lead to
    the original; if the state has such files, the first is named. "layerfs doctor" lists them, "layerfs run" avoids it.
    """
    settings = Settings(inv.store.path)
    path = None if directory is None else os.path.realpath(inv.context.absolute(directory))
    request = MountRequest(
        resolve(inv.store, revision, inv.at),
        author_now(inv.context),
        path,
        engine.value if engine is not None else str(settings.get("workspace.engine")),
        settings.flag("workspace.volatile"),
    )
    with inv.progress() as progress:
        return present_attached(attach(inv.store, request, progress))
