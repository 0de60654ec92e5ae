"""README and library page: the example runs, tables are what they say they are, links and commands exist."""

import re
from pathlib import Path

import pytest

from benchmarks.readme import PAGES, fill

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own text


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_what_they_say(page):
    text = (ROOT / page).read_text()
    assert fill(page, text) == text


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?<![a-z])make ([a-z][a-z-]*)", README):
        assert target in targets, target


def test_files_that_are_named_exist():
    for name in re.findall(r"`((?:src|tests|workflow|benchmarks|docs)/[\w/.]*)`", README):
        assert (ROOT / name).exists(), name
