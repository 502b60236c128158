"""How settings are shown."""

from __future__ import annotations

from collections.abc import Sequence

from layerfs.cli.output import Reply, encode_text
from layerfs.store.settings import Setting, Value, find_setting


def _words(value: Value) -> list[str]:
    if isinstance(value, tuple):
        return list(value)
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def _plain(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value


def present_settings(rows: Sequence[tuple[str, Value, bool]]) -> Reply:
    """Answer ``config list``."""
    lines = []
    for name, value, given in rows:
        lines.append(f"{name} = {' '.join(_words(value))}".rstrip() + ("" if given else "  (default)"))
        lines.append(f"    {find_setting(name).meaning}")
    return Reply(
        data={
            "settings": [
                {"name": name, "value": _plain(value), "given": given, "meaning": find_setting(name).meaning}
                for name, value, given in rows
            ]
        },
        text=encode_text("".join(f"{line}\n" for line in lines)),
    )


def present_setting(setting: Setting, value: Value, quiet: bool = False) -> Reply:
    """Answer ``config get``; the others print nothing for people."""
    text = encode_text("".join(f"{word}\n" for word in _words(value)))
    return Reply({"name": setting.name, "value": _plain(value)}, b"" if quiet else text)
