"""README and the pages under docs: the example runs, what is made from records is up to date, links and names exist."""

import re
from pathlib import Path

import pytest

from paper.tell import PAGES, Teller, fill, source
from tests.paper.test_claims import CLAIMS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def teller():
    return Teller(ROOT)


def test_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own text


@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("page", PAGES)
def test_pages_say_what_is_recorded(teller, page):
    assert fill(teller, page) == (ROOT / page).read_text(), "run `make docs`"


@pytest.mark.xdist_group("pages")
def test_figures_are_drawn_from_what_is_recorded(teller):
    drawn = {path.stem: source(path) for path in (ROOT / "docs/figures").glob("*.png")}
    assert drawn == {item: o.digest for item, o in teller.found.items() if o.table is not None}, "run `make docs`"
    assert all(path.stat().st_size < 150_000 for path in (ROOT / "docs").rglob("*.png"))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", (ROOT / page).read_text(), re.MULTILINE):
        assert target in targets, target


def test_files_that_are_named_exist():
    for name in re.findall(r"`((?:src|tests|workflow|benchmarks|docs)/[\w/.]*)`", README):
        assert (ROOT / name).exists(), name


def test_claims_that_are_named_exist():
    text = (ROOT / "docs/reproduction.md").read_text()
    named = re.findall(r"`((?:bcd|regimes|theory|criteria|table1|batchnorm)_[a-z0-9_]+)`", text)
    assert len(named) > 10
    assert set(named) <= set(CLAIMS)
