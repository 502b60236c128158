"""``layerfs config``: the settings of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.settings import present_setting, present_settings
from layerfs.store.settings import Settings, find_setting, parse_value

if TYPE_CHECKING:
    import typer


def command_list(inv: Invocation) -> Reply:
    """List all settings: name, value, and whether it was set or is the default."""
    return present_settings(Settings(inv.store.path).items())


def command_get(
    inv: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting.")],
) -> Reply:
    """Print the value of a setting; a list is printed one item per line."""
    return present_setting(find_setting(name), Settings(inv.store.path).get(name))


def command_set(
    inv: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting.")],
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE", help="The value; several for a setting that is a list.")
    ],
) -> Reply:
    """Set a setting of the store."""
    setting = find_setting(name)
    value = parse_value(setting, list(values))
    Settings(inv.store.path).change(inv.store.files, name, value)
    return present_setting(setting, value, quiet=True)


def command_unset(
    inv: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting.")],
) -> Reply:
    """Take a setting back to its default."""
    setting = find_setting(name)
    Settings(inv.store.path).change(inv.store.files, name, None)
    return present_setting(setting, setting.default, quiet=True)
