"""layerfs-durability(7) and the tests say the same: each step of the page names tests, and these exist."""

from __future__ import annotations

import re

import pytest
from world import ROOT

PAGE = (ROOT / "man/layerfs-durability.7").read_text(encoding="utf-8")
STEP = re.compile(r'((?:^\.\\" TEST \S+\n)*)^\.TP\n(\d+\. .*)\n(.*)', re.MULTILINE)
STEPS = [(match[2], re.findall(r"TEST (\S+)", match[1]), match[3]) for match in STEP.finditer(PAGE)]


def test_the_page_has_steps() -> None:
    assert len(STEPS) >= 17
    assert PAGE.count("\n.TP\n") == len(STEPS), "a step that is not numbered"


@pytest.mark.parametrize("step", STEPS, ids=[step[0][:60] for step in STEPS])
def test_each_step_says_what_a_crash_leaves_and_names_its_tests(step: tuple[str, list[str], str]) -> None:
    title, tests, outcome = step
    assert tests, f"no test of: {title}"
    assert outcome.strip() and not outcome.startswith("."), f"no outcome of: {title}"
    for test in tests:
        module, _, function = test.partition("::")
        source = (ROOT / "tests" / module).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", source, re.MULTILINE), f"{test} does not exist"
