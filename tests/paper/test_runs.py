"""Runs: one per seed, named by their settings; which jobs compute them."""

from pathlib import Path

import pytest

from paper import config, runs
from paper import plan as plans
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]
PLANS = {preset: plans.plan(config.read(ROOT, preset)) for preset in ("paper", "preview", "tiny")}


def spec(preset: str = "tiny", **fields: object) -> runs.Spec:
    """The first training run with these fields."""
    found = PLANS[preset].training().values()
    return next(s for s in found if all(s[name] == value for name, value in fields.items()))


def test_equal_numbers_have_equal_keys_and_other_settings_other_ones():
    one = spec()
    assert runs.key({**one, "lr": 1e-3, "preset": "other"}) == runs.key({**one, "lr": 0.001})
    assert runs.key({**one, "epochs": float(one["epochs"])}) == runs.key(one)
    for name, value in (("epochs", 99), ("seed", 7), ("version", 2), ("batch", 7), ("dataset", "mnist")):
        assert runs.digest({**one, name: value}) != runs.digest(one)


@pytest.mark.parametrize("preset", PLANS)
def test_every_run_is_computed_by_one_job(preset: str):
    plan = PLANS[preset]
    keys = [key for batch in plan.batches.values() for key in batch.keys]
    assert sorted(keys) == sorted(plan.specs)
    for experiment, asked in plan.asked.items():
        computed = {key for batch in plan.batches_of(experiment) for key in batch.keys}
        assert computed >= set(asked)
        if EXPERIMENTS[experiment].where != "ours":  # ours read whole jobs of the paper's experiments
            assert computed == set(asked), "nothing that it does not ask for"


@pytest.mark.parametrize(("experiment", "block", "over", "differ"), [
    ("tuned", "mlp_more", {"batch": 16}, "batch in all runs of mlp_2x16 with 3 epochs, got .32. in train/.* .16."),
    ("practice", "resnet18_more", {"seeds": [0, 2], "optimiser": {"name": "sgd"}}, "optimiser"),
    ("default", "bounded", {"setup": "mlp_cifar", "methods": ["half"], "clamp": 2.0}, "rescaling"),
])  # fmt: skip
def test_runs_that_a_table_would_mix_are_refused(experiment: str, block: str, over: dict, differ: str):
    base = config.read(ROOT, "tiny").plain["practice"]["resnet18"] if experiment == "practice" else {}
    settings = {"experiments": {experiment: {block: {**base, **over}}}}
    with pytest.raises(PaperError, match=f"experiments.{experiment}: expected the same {differ}"):
        plans.plan(config.read(ROOT, "tiny", settings))


def test_a_new_run_changes_the_jobs_of_its_experiments_alone():
    plan = plans.plan(config.read(ROOT, "paper", {"experiments": {"mlp_depth_gelu": {"seeds": [*range(11)]}}}))
    new = set(plan.specs) - set(PLANS["paper"].specs)
    assert len(new) == 21
    changed = [batch for batch in plan.batches.values() if batch not in PLANS["paper"].batches.values()]
    assert [batch.name.rpartition("-")[0] for batch in changed] == ["mlp_depth_gelu"]


def test_jobs_are_split_by_number_and_by_cost():
    """Eight GPUs are then nearly eight times as fast as one; a single long run is a job of its own."""
    plan, sizes = PLANS["paper"], config.read(ROOT, "paper").top.runs_per_job
    seconds = {}
    for (stage, name), batch in plan.batches.items():
        if stage == "train":
            assert len(batch.keys) <= (sizes.convolutional if "cifar_nv" in name else sizes.fully_connected)
            seconds[name] = sum(plans.gpu_seconds(plan.specs[key]) for key in batch.keys)
            assert seconds[name] <= plans.LONGEST_JOB or len(batch.keys) == 1
    assert max(seconds.values()) < sum(seconds.values()) / 24


def test_starts_are_shared_by_methods_and_rescalings_by_learning_rates():
    folder = Path("results")
    baseline, pathcond = (spec(network="mlp_2x16", method=name, seed=0) for name in ("baseline", "pathcond"))
    assert runs.start_path(folder, baseline) == runs.start_path(folder, pathcond)
    other = spec(network="mlp_2x16", method="pathcond", seed=0, lr=0.1)
    assert other["lr"] != pathcond["lr"]
    assert runs.scales_path(folder, other) == runs.scales_path(folder, pathcond)
    sweeps = {**pathcond, "rescaling": {**pathcond["rescaling"], "sweeps": 3}}
    assert runs.scales_path(folder, sweeps) != runs.scales_path(folder, pathcond)
    assert runs.start_path(folder, sweeps) == runs.start_path(folder, pathcond)
