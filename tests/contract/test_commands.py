"""The command table: every row has a module, a manual page, completions, a schema; the generated text is in step."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from enum import Enum
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from world import ROOT, World

from layerfs.cli import parsing
from layerfs.cli.manual import MACROS, lay_out, parse
from layerfs.cli.output import Reply
from layerfs.cli.parsing import load, parser_of
from layerfs.cli.plainline import parameters_of, plain_call
from layerfs.cli.registry import COMMANDS, GROUPS, Command, first_words
from layerfs.cli.usage import describe

PAGES = sorted((ROOT / "man").glob("*.[157]"))
SECTIONS_OF_A_COMMAND = ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "JSON", "EXAMPLES", "SEE ALSO")
by_name = pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)


def load_generator(path: str) -> ModuleType:
    """Import a generator that is a script, not part of the package."""
    spec = util.spec_from_file_location("generator_" + path.partition("/")[0], ROOT / path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_are_unique_and_groups_known() -> None:
    assert not [name for name, times in Counter(row.name for row in COMMANDS).items() if times > 1]
    assert {row.group for row in COMMANDS} <= set(GROUPS)


def test_every_command_module_is_in_the_table() -> None:
    modules = {path.stem for path in (ROOT / "layerfs/commands").glob("*.py")} - {"__init__"}
    assert modules == {row.module for row in COMMANDS}


@by_name
def test_a_row_has_a_function_with_the_agreed_signature(row: Command) -> None:
    body = load(row)
    parameters = list(inspect.signature(body).parameters.values())
    assert parameters and parameters[0].name == "inv"
    assert inspect.signature(body).return_annotation in ("Reply", Reply)
    assert inspect.getdoc(body), "the docstring is the description in --help and in the manual page"
    assert row.summary[:1].islower() and not row.summary.endswith(".")


@by_name
def test_parameters_are_described(row: Command) -> None:
    for parameter in describe(parser_of(row)):
        assert parameter.help, f"{row.name}: {parameter.label} has no help"
        assert parameter.help.endswith("."), f"{row.name}: {parameter.label}: the help is a sentence"
        assert not any(flag.startswith("--no-") and len(parameter.flags) > 1 for flag in parameter.flags), (
            f"{row.name}: {parameter.label}: give a flag its name, or the parser invents a --no- twin"
        )


@by_name
def test_a_usual_line_needs_no_parser_and_means_the_same(row: Command) -> None:
    """Every option of every command, and a word for each argument: read the plain way and by Typer."""
    parameters = parameters_of(load(row))
    assert parameters is not None
    line = ["--json", "--store", "s"]
    for _, declared, leaf, *_ in parameters:
        word = str(next(iter(leaf)).value) if issubclass(leaf, Enum) else "1"
        flag = max(declared.names, key=len, default=None)
        line += [word] if flag is None else [flag] if leaf is bool else [flag, word]
    plain = plain_call(row, load(row), line)
    assert plain is not None
    assert plain == parsing.parse(row, line)


@by_name
def test_a_row_has_a_page_with_every_section(row: Command) -> None:
    path = ROOT / "man" / f"{row.page}.1"
    assert path.exists(), "run python man/generate.py, then write EXAMPLES"
    headings = [line.text for line in parse(path.read_text(encoding="utf-8")) if line.macro == "SH"]
    assert tuple(
        heading.strip('"') for heading in headings if heading.strip('"') in SECTIONS_OF_A_COMMAND
    ) == (SECTIONS_OF_A_COMMAND)


def test_manual_pages_are_in_step() -> None:
    stale = [path.name for path, _ in load_generator("man/generate.py").out_of_step()]
    assert not stale, f"run python man/generate.py: {stale}"


def test_every_page_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files = project["tool"]["setuptools"]["data-files"]
    installed = [
        (section, path.name)
        for section, patterns in files.items()
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if section.startswith("share/man/")
    ]
    assert sorted(installed) == sorted((f"share/man/man{path.suffix[1:]}", path.name) for path in PAGES)


def test_no_page_is_left_of_a_command_that_is_gone() -> None:
    pages = {path.stem for path in PAGES if path.suffix == ".1"} - {"layerfs"}
    assert pages == {f"layerfs-{word}" for word in first_words()}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_use_only_what_we_can_lay_out(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert {line.macro for line in parse(source)} - {""} <= MACROS
    text = lay_out(source, 80)
    assert "\\f" not in text and "\\-" not in text
    assert not any(line.startswith(" .") for line in text.splitlines()[:1])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_please_groff(path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_refer_only_to_pages_that_exist(path: Path) -> None:
    known = {f"{page.stem}({page.suffix[1:]})" for page in PAGES}
    text = path.read_text(encoding="utf-8").replace("\\-", "-")
    for line in parse(text):
        if line.macro == "BR" and line.text.startswith("layerfs"):
            name, section = line.text.split()[:2]
            assert name + section.rstrip(",.;:") in known, f"{path.name} refers to {line.text}"


def test_completions_are_in_step() -> None:
    stale = [path.name for path, _ in load_generator("completions/generate.py").out_of_step()]
    assert not stale, f"run python completions/generate.py: {stale}"


@by_name
def test_every_command_is_completed(row: Command) -> None:
    for name in ("layerfs.bash", "_layerfs", "layerfs.fish"):
        text = (ROOT / "completions" / name).read_text(encoding="utf-8")
        assert row.name.split()[-1] in text
        for parameter in describe(parser_of(row)):
            for flag in parameter.flags:
                assert flag.lstrip("-") in text


def test_bash_completes_commands_and_options(world: World) -> None:
    script = (
        'source "$1"; complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _layerfs; echo "${COMPREPLY[*]}"; };'
        "complete_words layerfs hel; complete_words layerfs help --js; complete_words layerfs -C /tmp help --sto"
    )
    done = world.execute(["bash", "-c", script, "bash", str(ROOT / "completions/layerfs.bash")])
    assert (done.text.split("\n")[:3], done.err) == (["help", "--json", "--store"], b"")


def test_bash_completes_names_of_branches_tags_and_workspaces(world: World) -> None:
    (world.work / "file").write_text("x")
    world.ok("init")
    world.ok("fork", "fix-a", "other")
    world.ok("tag", "fine")
    script = (
        f'layerfs() {{ "{sys.executable}" -m layerfs "$@"; }}; '
        'source "$1"; complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _layerfs; echo "${COMPREPLY[*]}"; };'
        'complete_words layerfs publish f; complete_words layerfs -C / publish ""; complete_words layerfs fork --from o;'
        'complete_words layerfs diff fi; complete_words layerfs unmount ""; complete_words layerfs fork ""'
    )
    done = world.execute(["bash", "-c", script, "bash", str(ROOT / "completions/layerfs.bash")])
    assert done.text.split("\n") == ["fix-a fine", "", "other", "fix-a fine file", "source", "", ""]
    assert not done.err


@by_name
def test_help_of_every_command(row: Command, world: World) -> None:
    outcome = world.ok(*row.name.split(), "--help")
    assert outcome.text.startswith(f"usage: layerfs {row.name} ")
    assert not outcome.err
    assert max(len(line) for line in outcome.text.splitlines()) <= 100
