"""What a change makes Snakemake redo: exactly what it touches. Snakemake itself is asked."""

import os
import random
import shutil
import time
from collections import Counter

import pytest

from paper.plan import ITEMS
from tests.workflow.tree import Tree


def after_measuring(*items: str) -> set[str]:
    """Jobs that follow when these items' results are new."""
    parts = ("aggregate", "figure", "claim")
    items = tuple(name for name in ITEMS if name in items or set(ITEMS[name].also) & set(items))
    each = {f"{part} {item}" for part in parts for item in items}
    return {*each, "claims", "pages", "all"}


def names(jobs: Counter[str]) -> set[str]:
    assert not jobs or max(jobs.values()) == 1, jobs
    return set(jobs)


def test_everything_is_made(finished: Tree):
    made = {path.name for path in finished.files("figures/tiny/*")}
    assert made == {f"{item}.{suffix}" for item in ITEMS for suffix in ("pdf", "png")}
    assert all(path.stat().st_size > 5000 for path in finished.files("figures/tiny/*"))
    assert {path.stem for path in finished.files("results/tiny/claims/*.json")} == set(ITEMS)
    assert {path.stem for path in finished.files("results/tiny/pages/*.html")} == {
        *ITEMS, "claims", "configuration", "runtimes",
    }  # fmt: skip
    assert finished.files("checkpoints/**/*.pt") == []


def test_nothing_changed_nothing_due(tree: Tree):
    assert "Nothing to be done" in tree.snakemake("-n").stdout


def test_learning_rate(tree: Tree):
    tree.set("tiny", "toy", "lr", "1e-2")
    assert names(tree.due()) == {"measure toy/all", *after_measuring("toy")}


def cells(*names: str, methods: tuple[str, ...] = ("baseline", "enorm", "pathcond")) -> set[str]:
    return {f"train {name.replace('METHOD', method)}" for name in names for method in methods}


def test_learning_rate_of_training(tree: Tree):
    tree.set("tiny", "mlp_depth", "lrs", "[2e-3]")
    due = cells("classify/mlp_1x16/METHOD-lr0.002", "classify/mlp_2x16/METHOD-lr0.002")
    assert names(tree.due()) == {*due, *after_measuring("mlp_depth")}


def test_one_more_learning_rate(tree: Tree):
    """Only the new cells are trained, and no item but the one that asks for them is redone."""
    tree.set("tiny", "cifar_nv_lrs", "lrs", "[1e-2, 1e-3, 5e-4]")
    due = cells("classify/cifar_nv/METHOD-lr0.0005")
    assert names(tree.due()) == {*due, *after_measuring("cifar_nv_lrs")}


def test_epochs(tree: Tree):
    tree.set("tiny", "autoencoder", "epochs", "4")
    due = cells("rebuild/autoencoder_c1/METHOD-lr0.001", "rebuild/autoencoder_c2/METHOD-lr0.001")
    assert names(tree.due()) == {*due, *after_measuring("autoencoder")}


def test_one_more_method(tree: Tree):
    tree.set("tiny", "mlp_depth_gelu", "methods", "[baseline, enorm, pathcond, teleport]")
    due = cells("classify/mlp_2x16_gelu/METHOD-lr0.001", methods=("teleport",))
    assert names(tree.due()) == {*due, *after_measuring("mlp_depth_gelu")}


def test_seeds_of_training(tree: Tree):
    tree.set("tiny", "cifar_nv", "seeds", "[0, 1, 2]")
    due = cells("classify/cifar_nv/METHOD-lr0.001")
    assert names(tree.due()) == {*due, *after_measuring("cifar_nv")}


def test_seed_list(tree: Tree):
    tree.set("tiny", "bcd", "seeds", "[0, 2]")
    measured = {f"measure bcd/{network}" for network in ("mlp", "cifar_nv", "resnet18_c", "resnet18_c_held")}
    assert names(tree.due()) == {*measured, *after_measuring("bcd")}


def test_another_spelling_of_a_number(tree: Tree):
    tree.set("tiny", "toy", "lr", '"2e-2"')
    assert tree.due() == {}


def test_one_network(tree: Tree):
    tree.edit("config.yaml", "inputs: 192, hidden: [16, 16]", "inputs: 192, hidden: [16, 8]")
    measured = {"measure bcd/mlp", "measure_time timing/mlp"}
    assert names(tree.due()) == {*measured, *after_measuring("bcd", "timing")}


def test_plot_style_in_the_configuration(tree: Tree):
    tree.edit("config.yaml", "dpi: 200", "dpi: 120")
    assert names(tree.due()) == {*(f"figure {item}" for item in ITEMS), "pages", "all"}


@pytest.mark.parametrize(
    ("path", "redone"),
    [
        ("src/paper/figures/toy.py", {"figure toy", "pages", "all"}),
        ("src/paper/claims/toy.py", {"claim toy", "claims", "pages", "all"}),
        ("src/paper/figures/style.py", {*(f"figure {item}" for item in ITEMS), "pages", "all"}),
        ("src/paper/aggregate.py", after_measuring(*ITEMS)),
        ("src/paper/measure/toy.py", set()),
    ],
)
def test_edited_module(tree: Tree, path: str, redone: set[str]):
    file = tree.folder / path
    later = time.time() + 10
    os.utime(file, (later, later))
    assert tree.due() == {}, "a touch is not an edit"
    file.write_text(file.read_text() + "\n# a remark\n")
    os.utime(file, (later, later))
    assert names(tree.due()) == redone


def test_version_of_a_measurement(tree: Tree):
    tree.edit("src/paper/plan.py", 'on one neuron", "Figure 1"', 'on one neuron", "Figure 1", version=99')
    assert names(tree.due()) == {"measure toy/all", *after_measuring("toy")}


def test_version_of_training(tree: Tree):
    tree.edit("src/paper/cells.py", "VERSION = ", "VERSION = 9")
    due = tree.due()
    trained = [item for item, entry in ITEMS.items() if entry.trained]
    cells = {job for job in due if job.startswith("train ")}
    assert len(cells) == len(tree.files("results/tiny/train/**/*.csv")) > 20
    assert set(due) == {*cells, *after_measuring(*trained)}


def test_deleted_result(tree: Tree):
    (result,) = tree.files("results/tiny/measure/toy/*.csv")
    before = result.read_bytes()
    result.unlink()
    assert names(tree.run()) == {"measure toy/all", *after_measuring("toy")}
    assert result.read_bytes() == before
    assert tree.due() == {}


def test_deleted_figure(tree: Tree):
    (tree.folder / "figures/tiny/bcd.pdf").unlink()
    assert names(tree.due()) == {"figure bcd", "pages", "all"}


def test_changed_and_changed_back(tree: Tree):
    tree.set("tiny", "toy", "lr", "1e-2")
    tree.run("toy")
    assert len(tree.files("results/tiny/measure/toy/*.csv")) == 2
    tree.set("tiny", "toy", "lr", "0.02")
    due = names(tree.due())
    assert not [job for job in due if job.startswith(("measure", "train", "data"))]
    assert {"aggregate toy", "figure toy"} <= due


def test_fresh_clone_beside_results(tree: Tree):
    """No notes of Snakemake, no data, tables or figures, times of files in any order: nothing costly is redone."""
    made = (f"results/tiny/{part}" for part in ("aggregate", "claims", "pages"))
    for name in (".snakemake", "figures", "logs", "results/data", *made):
        shutil.rmtree(tree.folder / name)
    chance = random.Random(0)
    for path in tree.files("**/*"):
        when = time.time() - chance.uniform(0, 1e6)
        os.utime(path, (when, when))
    due = names(tree.due())
    assert due
    assert not [job for job in due if job.startswith(("measure", "train", "data"))]


def test_data_appear_later(tree: Tree):
    """Newer data do not make results old."""
    later = time.time() + 1000
    for path in tree.files("results/data/*"):
        os.utime(path, (later, later))
    assert not [job for job in tree.due() if job.startswith(("measure", "train"))]


def test_scales_do_not_mix(tree: Tree):
    due = tree.due(scale="preview")
    assert "data cifar10" in due
    assert {job for job in due if job.startswith("figure")} == {f"figure {item}" for item in ITEMS}
    assert not [job for job in tree.due(scale="paper") if "generated" in job]
