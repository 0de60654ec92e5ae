"""README and the pages under docs: the example runs, links and names exist. `make docs-check` compares the numbers."""

import re
from pathlib import Path

import pytest

from paper.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))),
]
CLAIMS = {claim.id for experiment in EXPERIMENTS.values() for claim in experiment.claims}


@pytest.mark.filterwarnings("ignore")  # of the packages that examples use
@pytest.mark.parametrize("page", ["README.md", "docs/library.md", "docs/how-it-works.md"])
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    """Blocks of Python run one after the other; a block of text is what they printed, up to 5% in numbers."""
    if page == "docs/library.md":
        pytest.importorskip("lightning")
        pytest.importorskip("transformers")
    blocks = re.findall(r"```(python|text)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, page, "exec"), names)  # noqa: S102 - our own text
            continue
        for said, stated in zip(capsys.readouterr().out.split(), block.split(), strict=True):
            assert said == stated or float(said) == pytest.approx(float(stated), rel=0.05)
    assert blocks


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[#)]", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / page).read_text()
    code = "\n".join(re.findall(r"```.*?```", text, re.DOTALL))
    named = re.findall(r"^make ([a-z-]+)", code, re.MULTILINE) + re.findall(r"`make ([a-z-]+)", text)
    for target in named:
        assert target in targets, target


def test_files_that_are_named_exist():
    for name in re.findall(r"`((?:src|tests|workflow|benchmarks|docs)/[\w/.]*)`", README):
        assert (ROOT / name).exists(), name


def test_claims_that_are_named_exist():
    text = (ROOT / "docs/reproduction.md").read_text()
    named = re.findall(r"`((?:bcd|regimes|theory|criteria|table1|batchnorm)_[a-z0-9_]+)`", text)
    assert len(named) > 5
    assert set(named) <= CLAIMS
