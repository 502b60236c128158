"""The table of error codes: every class has a code of its own, and an exit code that is documented."""

from __future__ import annotations

from importlib import util
from types import ModuleType

import pytest
from world import ROOT

from layerfs.errors import LayerfsError


def load_generator(path: str) -> ModuleType:
    """Import a generator that is a script, not part of the package."""
    spec = util.spec_from_file_location("generator_" + path.partition("/")[0], ROOT / path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator("man/generate.py")
CLASSES: list[type[LayerfsError]] = GENERATOR.error_classes()


def test_codes_are_unique() -> None:
    slugs = [error.slug for error in CLASSES]
    assert len(slugs) == len(set(slugs))


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_a_code_is_a_word_and_its_exit_code_is_documented(error: type[LayerfsError]) -> None:
    assert error.slug == error.slug.lower() and " " not in error.slug
    assert error.exit_code in GENERATOR.exit_codes()
    assert error.__doc__


def test_the_scripting_page_lists_every_code() -> None:
    page = (ROOT / "man/layerfs-scripting.7").read_text(encoding="utf-8").replace("\\-", "-")
    for error in CLASSES:
        assert f"\\fB{error.slug}\\fR ({error.exit_code})" in page
    for code in GENERATOR.exit_codes():
        assert f"\\fB{code}\\fR" in page
