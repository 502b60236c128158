"""Settings of a store: a few named values in the file ``config``, each with a type, a default and a meaning.

The file is JSON, written whole (``atomicfile``). A value that is not known or has the wrong type is refused by name, when
set and when read, so that a misspelt setting is never silently without effect. Nothing here is ever executed.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from layerfs.durable.atomicfile import Files
from layerfs.errors import NotFound, UsageError, quote

if TYPE_CHECKING:
    from layerfs.store.pointers import Retention

CONFIG_FILE = b"config"
Value = bool | int | str | tuple[str, ...]


class Setting(NamedTuple):
    """One setting: its type is that of its default."""

    name: str
    default: Value
    meaning: str
    choices: tuple[str, ...] = ()


SETTINGS = (
    Setting("capture.exclude", (), "patterns of paths that no capture includes"),
    Setting(
        "capture.cross-filesystems", False, "captures follow into other file systems mounted below the root"
    ),
    Setting(
        "workspace.volatile",
        False,
        "mounted workspaces skip syncing to disk (a crash of the machine loses them)",
    ),
    Setting(
        "workspace.engine",
        "auto",
        "engine of new workspaces: auto, overlay or copy",
        ("auto", "overlay", "copy"),
    ),
    Setting("cache.max-size", 0, "bytes the layer cache may take before unused layers go; 0 means no bound"),
    Setting(
        "gc.reflog-expire", 90, "days for which 'gc' keeps lines of the reflog, and what only they reach"
    ),
    Setting("gc.dropped-expire", 14, "days for which 'gc' keeps what only a deleted branch or tag reached"),
    Setting("lane.timeout", 60, "seconds to wait for other writers of the store"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting:
    """Return a setting by name; raise NotFound."""
    setting = _BY_NAME.get(name)
    if setting is None:
        known = ", ".join(_BY_NAME)
        raise NotFound(f"no such setting: {quote(name)}", f"the settings are {known}")
    return setting


def parse_value(setting: Setting, texts: list[str]) -> Value:
    """Return the value that the words of a command line give a setting; raise UsageError."""
    if isinstance(setting.default, tuple):
        return tuple(texts)
    if len(texts) != 1:
        raise UsageError(f"{quote(setting.name)} takes one value")
    text = texts[0]
    if isinstance(setting.default, bool):
        if text not in ("true", "false"):
            raise UsageError(f"{quote(setting.name)} is true or false, not {quote(text)}")
        return text == "true"
    if isinstance(setting.default, int):
        if not text.isdecimal() or len(text) > 18:
            raise UsageError(f"{quote(setting.name)} is a number, not {quote(text)}")
        return int(text)
    if setting.choices and text not in setting.choices:
        raise UsageError(f"{quote(setting.name)} is one of {', '.join(setting.choices)}, not {quote(text)}")
    return text


class Settings:
    """The settings of one store."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._given = self._read()

    def get(self, name: str) -> Value:
        """Return a setting's value, given or default."""
        return self._given.get(name, find_setting(name).default)

    def flag(self, name: str) -> bool:
        """Return a setting that is true or false."""
        return bool(self.get(name))

    def number(self, name: str) -> int:
        """Return a setting that is a number."""
        value = self.get(name)
        return value if isinstance(value, int) else 0

    def patterns(self, name: str) -> tuple[bytes, ...]:
        """Return a list of patterns as bytes."""
        value = self.get(name)
        return tuple(os.fsencode(text) for text in value) if isinstance(value, tuple) else ()

    def items(self) -> list[tuple[str, Value, bool]]:
        """Return (name, value, whether it was given) of every setting."""
        return [(setting.name, self.get(setting.name), setting.name in self._given) for setting in SETTINGS]

    def change(self, files: Files, name: str, value: Value | None) -> None:
        """Set a value, or take a given one back (None), and write the file."""
        find_setting(name)
        given = {key: item for key, item in self._given.items() if key != name}
        if value is not None:
            given[name] = value
        directory = files.open_directory(self._path)
        try:
            text = json.dumps(given, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
            files.replace(directory, CONFIG_FILE, text.encode("ascii"))
        finally:
            os.close(directory)
        self._given = given

    def _read(self) -> dict[str, Value]:
        try:
            with open(os.path.join(self._path, CONFIG_FILE), "rb") as file:
                document: Any = json.loads(file.read())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise UsageError(
                f"the settings in {quote(self._path)} are not valid JSON", "mend or delete 'config'"
            ) from None
        if not isinstance(document, dict):
            raise UsageError(
                f"the settings in {quote(self._path)} are not an object", "mend or delete 'config'"
            )
        return {name: _checked(name, value) for name, value in document.items()}


def _checked(name: str, value: Any) -> Value:
    default = find_setting(name).default
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif type(value) is type(default):
        known: Value = value
        return known
    raise UsageError(f"the setting {quote(name)} has a value of the wrong type")


def retention(
    settings: Settings, now_ns: int, reflog_days: int | None, dropped_days: int | None
) -> Retention:
    """Return how long the reflog is kept: as the settings say, or as a command line overrides them."""
    from layerfs.store.pointers import Retention

    kept = settings.number("gc.reflog-expire") if reflog_days is None else reflog_days
    dropped = settings.number("gc.dropped-expire") if dropped_days is None else dropped_days
    return Retention(now_ns, kept, dropped)


def cache_bound(settings: Settings) -> int | None:
    """Return the bytes that the layer cache may take; None for no bound."""
    return settings.number("cache.max-size") or None
