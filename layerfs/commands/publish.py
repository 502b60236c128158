"""``layerfs publish``: add a branch's work to main as the next layer."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.authorship import author_now
from layerfs.history.publish import PublishRequest, parse_layer, publish_branch
from layerfs.present.meeting import present_publish
from layerfs.workspace.commit import check_message

if TYPE_CHECKING:
    import typer


class Mode(Enum):
    """How the branch becomes a layer."""

    MERGE = "merge"
    OVERWRITE = "overwrite"
    FF = "ff"


def command(
    inv: Invocation,
    branch: Annotated[
        str | None, typer.Argument(metavar="BRANCH", help="The branch to publish; the workspace's own.")
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option("--mode", metavar="MODE", help="How the branch becomes a layer."),
    ] = Mode.MERGE,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect", metavar="LAYER", help="Publish only if main is at this layer (else exit 12)."
        ),
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = None,
) -> Reply:
    """Make the work of a branch the next layer of main.

    By default it is merged with what main holds: no layer published meanwhile is lost, and on conflict nothing is
    published (exit 1). With --mode overwrite the branch's state becomes the layer as it is, and every layer and path that
    this covers is reported and recorded. With --mode ff publishing is refused (13) if main moved.
    """
    found = inv.find_workspace()
    name = branch if branch is not None else (found.branch if found is not None else "")
    if not name:
        raise UsageError("publish which branch?", "name it: 'layerfs publish BRANCH'")
    request = PublishRequest(
        name,
        author_now(inv.context),
        mode.value,
        check_message(message),
        None if expect is None else parse_layer(expect),
    )
    return present_publish(publish_branch(inv.store, request))
