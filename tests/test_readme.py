"""README and the pages under docs: the example runs, links and names exist. `make docs-check` compares the numbers."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import pathcond
from paper import verdicts
from paper.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").rglob("*.md"))),
]
API = [page for page in PAGES if page.startswith("docs/api/")]
CLAIMS = {claim.id for experiment in EXPERIMENTS.values() for claim in experiment.claims}


@pytest.mark.filterwarnings("ignore")  # of the packages that examples use
@pytest.mark.parametrize("page", ["README.md", "docs/library.md", "docs/how-it-works.md", *API])
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    """Blocks of Python run one after the other; a block of text is what they printed, up to 5% in numbers.

    Times and rounding errors differ by machine.
    """
    if page in ("docs/library.md", "docs/api/training.md"):
        pytest.importorskip("lightning")
        pytest.importorskip("transformers")
    blocks = re.findall(r"```(python|text)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, page, "exec"), names)  # noqa: S102 - our own text
            continue
        lines = [zip(said.split(), stated.split(), strict=True) for said, stated in
                 zip(capsys.readouterr().out.splitlines(), block.splitlines(), strict=True)
                 if not stated.startswith(("time ", "largest change"))]  # fmt: skip
        for said, stated in (pair for line in lines for pair in line):
            assert said == stated or float(re.sub("[^0-9.e+-]", "", said)) == pytest.approx(
                float(re.sub("[^0-9.e+-]", "", stated)), rel=0.05
            )
    assert blocks


def test_readme_is_short_and_has_the_versions_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(README.splitlines()) <= 110
    assert f"python-%3E%3D{project['requires-python'].removeprefix('>=')}" in README
    assert f"torch-%3E%3D{project['dependencies'][0].removeprefix('torch>=')}" in README
    assert all("arxiv.org/abs/2602.19799" in text for text in (README, (ROOT / "CITATION.cff").read_text()))


def test_every_public_name_is_used_in_an_example_of_the_reference():
    code = "\n".join(
        block for page in API for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    )
    assert [name for name in pathcond.__all__ if not re.search(rf"pathcond\.{name}\b", code)] == []


def test_claims_have_the_fields_that_are_documented():
    (claim,) = [claim for claim in EXPERIMENTS["toy"].claims if claim.id == "toy_faster"]
    found = verdicts.judged(claim, "toy", pd.read_csv(ROOT / "docs/figures/toy.csv"), True, "toy.csv")
    text = (ROOT / "docs/artifact.md").read_text().partition("## claims.json")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(found)


def test_the_page_of_a_package_index_has_absolute_links():
    spec = importlib.util.spec_from_file_location("package_readme", ROOT / "tools/package_readme.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = tool.absolute(README, "https://example.org/o/n", "v1")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []
    assert "](https://example.org/o/n/raw/v1/docs/method.png)" in text
    assert "](https://example.org/o/n/blob/v1/LICENSE)" in text
    assert "(https://example.org/o/n/actions/workflows/tests.yml)" in text


@pytest.mark.parametrize("page", PAGES)
def test_links_and_targets_of_make_exist(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!https?:|\.\./\.\./actions)([^)#]+)[#)]", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(re.findall(r"```.*?```", text, re.DOTALL))
    named = re.findall(r"^make ([a-z-]+)", code, re.MULTILINE) + re.findall(r"`make ([a-z-]+)", text)
    assert set(named) <= targets


@pytest.mark.parametrize("page", ["reproduction", "gallery"])
def test_claims_that_are_named_exist(page):
    text = (ROOT / f"docs/{page}.md").read_text()
    begins = "|".join({claim.partition("_")[0] for claim in CLAIMS})
    named = set(re.findall(rf"`((?:{begins})_[a-z0-9_]+)`", text)) - set(EXPERIMENTS)
    assert len(named) > 2
    assert named <= CLAIMS
