"""Recorded runs: a fresh clone draws from them alone, and what they lack or do not fit is named, not run or used."""

import json
import shutil
import subprocess
import sys

import pandas as pd

from tests.workflow.tree import Tree

RECORDS = ("measure", "train")


def fresh_clone(tree: Tree) -> None:
    """Leave nothing but sources and recorded runs."""
    for path in (*tree.files("results/*"), *tree.files("results/tiny/*")):
        if path.name not in ("tiny", *RECORDS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in (".snakemake", "figures", "logs"):
        shutil.rmtree(tree.folder / name)


def told(tree: Tree) -> str:
    command = [sys.executable, "-m", "paper.recorded", "--scale", "tiny"]
    done = subprocess.run(command, cwd=tree.folder, env=tree.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fresh_clone_draws_from_the_records_alone(tree: Tree):
    drawn = {path: path.read_bytes() for path in tree.files("figures/tiny/mlp_depth.png")}
    claims = (tree.folder / "results/tiny/claims/timing.json").read_bytes()
    fresh_clone(tree)
    assert "17 of 17 items are complete" in told(tree)
    parts = ("aggregate", "figure", "claim")
    made = {f"{part} {item}" for part in parts for item in ("mlp_depth", "timing")}
    assert set(tree.run("mlp_depth", "timing")) == made | {"mlp_depth", "timing"}
    assert {path: path.read_bytes() for path in drawn} == drawn
    assert (tree.folder / "results/tiny/claims/timing.json").read_bytes() == claims


def test_items_that_lack_a_run_are_named_and_left_out(tree: Tree):
    fresh_clone(tree)
    (lost,) = tree.files("results/tiny/train/classify/cifar_nv/baseline-lr0.01-*.csv")
    lost.unlink()
    assert f"cifar_nv_lrs       5 of   6 runs  not drawn, lacks\n    train/classify/cifar_nv/{lost.stem}\n" in told(
        tree
    )
    due = set(tree.due(only_recorded=True))
    assert not [job for job in due if job.startswith(("measure", "train", "data")) or "cifar_nv_lrs" in job]
    assert {"figure cifar_nv", "figure toy", "claims", "pages", "all"} <= due
    assert {"train classify/cifar_nv/baseline-lr0.01", "figure cifar_nv_lrs"} <= set(tree.due())


def test_a_learning_rate_that_lacks_its_runs_is_left_out(tree: Tree):
    table, claim = "results/tiny/aggregate/cifar_nv_lrs.csv", "results/tiny/claims/cifar_nv_lrs.json"
    before, said = (tree.folder / table).read_bytes(), json.loads((tree.folder / claim).read_text())
    tree.set("tiny", "cifar_nv_lrs", "lrs", "[0.01, 0.001, 0.0007]")
    assert "cifar_nv_lrs       6 of   9 runs  drawn without lr 0.0007, lacks" in told(tree)
    assert not [job for job in tree.due(only_recorded=True) if job.startswith(("train", "measure", "data"))]
    assert len([job for job in tree.due() if "lr0.0007" in job]) == 3
    fresh_clone(tree)
    done = tree.snakemake("cifar_nv_lrs", only_recorded=True)
    assert done.returncode == 0, done.stdout[-8000:]
    assert (tree.folder / table).read_bytes() == before
    expected = [{**one, "ours": f"without lr 0.0007: {one['ours']}"} for one in said]
    assert json.loads((tree.folder / claim).read_text()) == expected


def test_a_method_that_claims_do_not_need_is_left_out_alone(tree: Tree):
    results = tree.folder / "results/tiny"
    table, claim = results / "aggregate/cifar_nv_lrs.csv", results / "claims/cifar_nv_lrs.json"
    before, said = pd.read_csv(table), json.loads(claim.read_text())
    (lost,) = tree.files("results/tiny/train/classify/cifar_nv/enorm-lr0.01-*.csv")
    lost.unlink()
    fresh_clone(tree)
    assert "cifar_nv_lrs       5 of   6 runs  drawn without enorm at lr 0.01, lacks" in told(tree)
    done = tree.snakemake("cifar_nv_lrs", only_recorded=True)
    assert done.returncode == 0, done.stdout[-8000:]
    assert not lost.exists()
    expected = before[(before["method"] != "enorm") | (before["lr"] != 0.01)]
    pd.testing.assert_frame_equal(pd.read_csv(table), expected.reset_index(drop=True))
    assert (tree.folder / "figures/tiny/cifar_nv_lrs.png").exists()
    expected = [{**one, "ours": f"without enorm at lr 0.01: {one['ours']}"} for one in said]
    assert json.loads(claim.read_text()) == expected


def test_runs_of_other_settings_are_not_used(tree: Tree):
    fresh_clone(tree)
    (kept,) = tree.files("results/tiny/measure/toy/*.csv")
    tree.set("tiny", "toy", "lr", "1e-2")
    said = told(tree)
    assert "toy                0 of   1 runs  not drawn, lacks" in said
    assert f"measure/toy/{kept.stem}: of other settings than asked for, not used" in said
    assert not [job for job in tree.due(only_recorded=True) if "toy" in job]
    assert {"measure toy/all", "figure toy"} <= set(tree.due())
