"""Layering, read from the source: who may import whom, and which module may import which library."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from world import ROOT

PACKAGE = ROOT / "layerfs"
MODULES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES = 700
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
ROOMS = {
    "kernels": 0,
    "durable": 1,
    "objects": 2,
    "merge": 3,
    "store": 3,
    "history": 4,
    "capture": 5,
    "checkout": 6,
    "workspace": 7,
    "exchange": 8,
    "upkeep": 8,
    "plumbing": 8,
    "cli": 9,
    "present": 10,
    "commands": 12,
}
"""How high each room stands: what is in one imports its own room and rooms that stand lower."""
HIGHER = {"frame": 11, "parsing": 11, "plainline": 11, "render": 11, "main": 13}
"""What stands higher in ``cli``: answers are values, and the frame around a command knows how they are shown."""
STORES = ("objects.database", "objects.decodedframe", "objects.pack", "objects.batch", "objects.bulk")
"""What of ``objects`` is files on a disk; the rest is pure."""

LIBRARIES = {
    "typer": lambda name: name == "cli.parsing" or name.startswith("commands."),
    "click": lambda name: False,
    "rich": lambda name: name == "cli.render",
    "pyfuse3": lambda name: name.startswith("workspace.fuse"),
    "trio": lambda name: name.startswith("workspace.fuse"),
    "sqlite3": lambda name: name == "durable.metadb",
    "zstandard": lambda name: name.startswith("objects."),
    "fastcdc": lambda name: name.startswith("kernels."),
}

AT_TOP = {"__init__", "__main__", "context", "errors", "ids", "progress", "refusals"}
STARTUP = {*AT_TOP, "cli", "cli.main", "cli.registry", "cli.output", "cli.usage"} - {"ids", "progress"}
HEAVY = {"typer", "rich", "subprocess", "concurrent", "asyncio", "json", "inspect", "dataclasses", "pathlib", "logging"}


def module_name(path: Path) -> str:
    """Return ``objects.trees`` for ``layerfs/objects/trees.py``; a package is named by its directory."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) if len(parts) > 1 and parts[-1] == "__init__" else ".".join(parts)


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Return the dotted names a module imports; with ``everywhere`` also those inside functions.

    Imports under ``if TYPE_CHECKING`` are for the type checker and do not count.
    """
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
        elif everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += ast.iter_child_nodes(node)
    return found


def ours(names: set[str]) -> set[str]:
    """Return the modules of this package among the imported names, without the prefix."""
    known = {module_name(path) for path in MODULES}
    result = set()
    for name in names:
        if name.startswith("layerfs."):
            inner = name.removeprefix("layerfs.")
            while inner and inner not in known:
                inner = inner.rpartition(".")[0]
            if inner:
                result.add(inner)
    return result


def layer(name: str) -> int:
    """Return the height of a module: it may import its own height and below."""
    room, _, noun = name.partition(".")
    if room == "objects":
        return ROOMS[room] if name.startswith(STORES) else 0
    if room == "cli":
        return HIGHER.get(noun, ROOMS[room])
    return max(HIGHER.values()) if name == "__main__" else ROOMS.get(room, 0)


def test_every_room_has_a_height() -> None:
    """At the top lie only the values that all share; everything else has a room."""
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(ROOMS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == AT_TOP


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    name = module_name(path)
    above = {other for other in ours(imports(path)) if layer(other) > layer(name)}
    assert not above, f"{name} (height {layer(name)}) imports {sorted(above)}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_libraries_have_one_door(path: Path) -> None:
    name = module_name(path)
    for imported in imports(path):
        library = imported.partition(".")[0]
        if library in LIBRARIES:
            assert LIBRARIES[library](name), f"{name} imports {library}"


def test_only_commands_and_the_entry_point_use_the_frame() -> None:
    users = {module_name(path) for path in MODULES if "cli.frame" in ours(imports(path))}
    assert all(name == "cli.main" or name.startswith("commands.") for name in users), users


def test_results_are_shown_by_values_only() -> None:
    """Presentation takes values: it opens no store and reads no surroundings."""
    for path in MODULES:
        name = module_name(path)
        if name.startswith("present."):
            used = ours(imports(path))
            assert not used & {"context", "cli.frame", "cli.render", "kernels.native", "store.store"}, f"{name}: {used}"
            files = ("durable.", "objects.database", "objects.batch")
            assert not [other for other in used if other.startswith(files)], f"{name}: {used}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_environment_and_clock_come_through_context(path: Path) -> None:
    name = module_name(path)
    if name == "context":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    # A clock as the default of a parameter is a parameter: the command line passes its own.
    defaults = {value for function in functions for value in (*function.args.defaults, *function.args.kw_defaults)}
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node not in defaults
    }
    doors = {"os.environ", "os.getenv", "time.time", "time.time_ns", "os.getcwd", "os.getcwdb", "datetime.now"}
    assert not used & doors, f"{name} uses {sorted(used & doors)}; that is for context"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_have_a_noun_and_a_docstring(path: Path) -> None:
    assert path.stem not in FORBIDDEN_NAMES
    source = path.read_text(encoding="utf-8")
    assert not source or ast.get_docstring(ast.parse(source)), f"{path} says nothing about itself"


def test_start_is_light() -> None:
    """What every start imports at module level pulls in nothing that takes milliseconds."""
    for path in MODULES:
        if module_name(path) in STARTUP:
            heavy = {name.partition(".")[0] for name in imports(path, everywhere=False)} & HEAVY
            assert not heavy, f"{path.name} imports {sorted(heavy)} at module level"


@pytest.mark.parametrize("path", sorted((PACKAGE / "commands").glob("*.py")), ids=lambda path: path.stem)
def test_commands_are_small(path: Path) -> None:
    """A command is options, one library call and one presentation: no loops, no SQL, no formatting."""
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 160, "a command module this long has work in it that belongs in a library module"
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name.startswith("command"):
            loops = [node for node in ast.walk(function) if isinstance(node, (ast.For, ast.While, ast.AsyncFor))]
            assert not loops, f"{path.name}:{loops[0].lineno}: a loop in a command"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_fit_in_the_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
