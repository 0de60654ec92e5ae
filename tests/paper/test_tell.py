"""Pages from records: outcomes, cost, what is missing, markers; texts of our own."""

import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from paper import cli, outcome, plan, store, tell
from paper.differences import DIFFERENCES
from paper.errors import PaperError
from paper.plan import ITEMS, runs, runs_of, sources
from tests.paper.test_claims import PAPER, runs_of_eight
from tests.paper.trained_tables import cell

ROOT = Path(__file__).parents[2]
RECORDED = "results/paper/train/classify/cifar_nv/*.csv"
GPU = {"hardware": "A GPU", "seconds": 30.0, "precision": "float32", "parameters": 1_000_000}
STEPS = {"graph": 1.0, "diag_g": 1.0, "solve": 2.0, "apply": 1.0, "total": 5.0, "epoch": 7.0}


def write(folder, key, spec):
    """A made-up run of the paper's scale."""
    if spec["stage"] == "train":
        table, _ = cell((spec["network"], spec["model"]), spec["method"], spec["lr"], 3, seeds=spec["seeds"])
    else:
        places = [{"hidden_layers": n, "parameters": n} for n in spec["settings"].get("hidden_layers", ())]
        nets = [{"network": spec["part"], "pooling": p, "units": 9, "parameters": 9} for p in ("plain", "exact")]
        facts = {"batches": 391, "epoch_batches": 391, "hardware": "A GPU"}
        table = pd.DataFrame(
            {**place, **facts, "repeat": repeat, "step": step, "seconds": seconds}
            for place in places or nets for repeat in range(10) for step, seconds in STEPS.items()
        )  # fmt: skip
    store.write_result(folder / f"{key}.csv", table, spec, GPU)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository with runs of some items: the autoencoders, the times, and one cell of CIFAR-NV."""
    root = tmp_path_factory.mktemp("repository")
    for name in ("config.yaml", "README.md", "docs", "workflow/schemas", "benchmarks/records"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        copy(ROOT / name, root / name)
    config = tell.Teller(root).config
    keys = [key for item in ("autoencoder", "timing_depth") for key in sources(config, item)]
    for key, spec in runs(config).items():
        if key in [*keys, sources(config, "cifar_nv")[0]]:
            write(root / "results/paper", key, spec)
    return root


@pytest.fixture(scope="module")
def teller(made):
    return tell.Teller(made)


def test_outcomes(teller):
    found = teller.found
    assert {item for item, o in found.items() if not o.lacking} == {"autoencoder", "timing", "timing_depth"}
    assert all((o.table is None) == bool(o.lacking) for o in found.values())
    assert {claim["verdict"] for claim in found["toy"].claims} == {outcome.NOT_YET}
    assert {claim["verdict"] for claim in found["autoencoder"].claims} <= {"reproduced", "partly", "not reproduced"}
    assert (len(found["cifar_nv"].records), len(found["cifar_nv"].lacking)) == (1, 2)


def test_an_item_without_some_learning_rates(teller, tmp_path):
    root = shutil.copytree(teller.root, tmp_path / "repository")
    asked = [spec for spec in runs_of(teller.config, "autoencoder_lrs") if spec["lr"] == 0.1]
    for spec in asked:
        write(root / "results/paper", plan.key(spec), spec)
    found = tell.Teller(root).found["autoencoder_lrs"]
    assert (found.without, len(found.records), len(found.lacking)) == ("without lr 0.01", 24, 12)
    assert found.stamp.endswith("without lr 0.01")
    assert found.table is not None
    assert set(found.table["lr"].dropna()) == {0.1, 0.001}
    assert outcome.NOT_YET not in {claim["verdict"] for claim in found.claims}
    assert all(claim["ours"].startswith("without lr 0.01: ") for claim in found.claims)
    text = tell.fill(tell.Teller(root), "docs/reproduction.md")
    assert "**What we see**, without lr 0.01, which is not run yet: 24 of 36 runs are recorded" in text
    assert "](figures/autoencoder_lrs.png)" in text


def test_cost_is_the_sum_of_the_records(teller):
    assert outcome.cost(teller.records).to_dict("records") == [
        {"hardware": "A GPU", "stage": "measure", "runs": 4, "seconds": 120.0},
        {"hardware": "A GPU", "stage": "train", "runs": 13, "seconds": 390.0},
    ]
    said = teller.cost()
    assert "Together: 8.5 minutes on A GPU." in said
    assert f"{len(plan.runs(teller.config)) - 17} runs are not run yet" in said
    # One cell of CIFAR-NV: 128 epochs of 40,000 of the 391 * 128 images that were timed, three seeds, 7 s each.
    compared = outcome.plain_loop(teller.found, teller.records)
    assert compared == pytest.approx((7.0 * 128 * 3 * 40_000 / (391 * 128), 30.0))


def test_no_comparison_without_times_on_the_same_hardware(teller):
    other = {key: {**record, "hardware": "Another"} for key, record in teller.records.items()}
    assert outcome.plain_loop(teller.found, other) is None
    assert outcome.plain_loop({**teller.found, "timing_depth": teller.found["toy"]}, teller.records) is None


def test_what_is_missing_is_said(teller):
    page = teller.reproduced()
    assert page.count("### ") == len(ITEMS)
    assert "**What we see**: not run yet; 1 of 3 runs are recorded." in page
    assert "12 runs in 6.0 min on A GPU (float32)." in page
    assert "figures/autoencoder.png" in page
    assert "figures/cifar_nv.png" not in page
    assert "docs/figures/autoencoder.png" in teller.figures()
    assert "3 of 17 items are recorded. Not yet, or not all of it: `toy`, `mlp_depth`, `cifar_nv`" in teller.summary()
    assert teller.claims().count("| not run yet |") > 40
    assert teller.main().count("| not run yet |") > 4
    assert [line for line in teller.main().splitlines() if "Autoencoders end with" in line and "run yet" not in line]


def test_a_figure_knows_what_it_was_drawn_from(teller, made):
    before = teller.found["timing"].digest
    key = sources(teller.config, "timing")[0]
    table, record = store.read_result(made / "results/paper" / f"{key}.csv")
    other = {**teller.found["timing"].records, key: {**record, "sha256": "0"}}
    assert tell.Teller(made).found["timing"].digest == before
    changed = outcome.Outcome("timing", teller.found["timing"].stamp, other, [], "", table, [])
    assert changed.digest != before


def test_the_program_fills_pages_and_draws(made, tmp_path, monkeypatch, capsys):
    root = shutil.copytree(made, tmp_path / "root")
    (root / "docs/figures").mkdir(exist_ok=True)
    (root / "docs/figures/toy.png").write_bytes(b"old")
    monkeypatch.setattr(sys, "argv", ["tell", "--root", str(root)])
    pages = ("README.md", "docs/library.md", "docs/reproduction.md")
    monkeypatch.setattr(tell, "PAGES", {page: tell.PAGES[page] for page in pages})
    cli.run(tell.main)
    assert "Together: 8.5 minutes on A GPU." in capsys.readouterr().err
    drawn = {path.stem: tell.source(path) for path in (root / "docs/figures").glob("*.png")}
    assert set(drawn) == {"autoencoder", "timing", "timing_depth"}
    teller = tell.Teller(root)
    assert drawn == {item: teller.found[item].digest for item in drawn}
    for page in tell.PAGES:
        assert tell.fill(teller, page) == (root / page).read_text()
    readme = root / "README.md"
    readme.write_text(readme.read_text().replace("<!-- claims -->", ""))
    with pytest.raises(PaperError, match="README.md: expected one pair of markers <!-- claims -->"):
        tell.fill(teller, "README.md")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("3 of 3 starts; steps: 1 -> 2", "3 of 3 starts; steps: 1 -> 2"),
        ("a 63% (37% left), b 92% (8% left)", "a 63%, b 92%"),
        (f"first; {'x' * tell.LONG}; last", "first"),
    ],
)
def test_short(text, short):
    assert tell.short(text) == short


def test_every_item_has_its_differences():
    assert set(DIFFERENCES) == set(ITEMS)


def test_what_is_said_of_the_lost_class_is_in_the_records():
    """Best train accuracy of the third seed at lr 0.01, and which mean test accuracies are near the paper's."""
    runs = {path.stem.rsplit("-", 1)[0]: store.read_result(path)[0] for path in ROOT.glob(RECORDED)}
    best = {name: rows.groupby("seed").max() for name, rows in runs.items()}
    most = {m: best[f"{m}-lr0.01"].loc[2, "train_accuracy"] for m in ("baseline", "pathcond", "enorm")}
    assert most["baseline"] > 0.99
    assert max(most["pathcond"], most["enorm"]) < 0.901
    for method, paper in {"pathcond": 0.80, "baseline": 0.77}.items():
        test = best[f"{method}-lr0.001"]["test_accuracy"]
        assert paper - test.drop(2).mean() < (paper - test.mean()) / 2


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_texts_are_our_own():
    printed = runs_of_eight(PAPER.read_text())
    page = (ROOT / "docs/reproduction.md").read_text()
    for text in (*DIFFERENCES.values(), page[: page.index("## Item by item")]):
        assert not runs_of_eight(text) & printed
