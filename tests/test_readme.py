"""README and the pages under docs: the example runs, links and names exist. `make docs-check` compares the numbers."""

import re
from pathlib import Path

import pandas as pd
import pytest

from paper import docs, results
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


@pytest.mark.parametrize("page", ["reproduction", "gallery"])
def test_claims_that_are_named_exist(page):
    text = (ROOT / f"docs/{page}.md").read_text()
    named = re.findall(r"`((?:bcd|regimes|theory|criteria|table1|batchnorm)_[a-z0-9_]+)`", text)
    assert len(named) > 2
    assert set(named) <= CLAIMS


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_gallery_shows_every_experiment(name):
    """A section with the paper's figure in words, every claim, and our figure as PNG and PDF with its table."""
    experiment = EXPERIMENTS[name]
    sections = re.split(r"^## ", (ROOT / "docs/gallery.md").read_text(), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(f"{experiment.title}\n")]
    ours = ["**The paper** does not study this", "**We see**:"]
    papers = ["**The paper shows**: ", "**We see**:", "**What differs, and why**: "]
    assert [text for text in (ours if experiment.where == "ours" else papers) if text not in section] == []
    assert [claim.id for claim in experiment.claims if f"(claims.md#{claim.id})" not in section] == []
    files = {suffix: ROOT / f"docs/figures/{name}.{suffix}" for suffix in ("png", "pdf", "csv")}
    assert all(f"(figures/{path.name})" in section for path in files.values())
    assert name in results.read_json(ROOT / docs.SOURCES)
    assert files["pdf"].read_bytes().startswith(b"%PDF")
    assert len(pd.read_csv(files["csv"])) > 1


def test_the_cost_of_the_protocol_leaves_added_seeds_out():
    facts = docs.Facts(ROOT)
    added = facts.config.plain["cifar_nv"]["more_seeds"]["seeds"]
    before = [facts.gpu_minutes(paper=paper, shared=False) for paper in (True, False)]
    found = [run for key in facts.plan.asked["cifar_nv"] if (run := facts.provenance[key])["spec"]["seed"] in added]
    assert found
    for run in found:
        run.update(seconds=run["seconds"] + 60, shared_gpu=False)
    after = [facts.gpu_minutes(paper=paper, shared=False) for paper in (True, False)]
    assert after[0] == before[0]
    assert after[1] >= before[1] + len(found)
