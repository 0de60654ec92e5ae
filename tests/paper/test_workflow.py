"""The functions of the rules, without Snakemake: inputs of jobs, what is refused or deleted before the first job."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pandas as pd
import pytest

from paper import results, runs, workflow
from paper.cli import PaperError
from paper.workflow import Workflow

ROOT = Path(__file__).parents[2]
BATCH = "mlp_depth_gelu-00"


@pytest.fixture
def flow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda preset="tiny", **over: Workflow(ROOT, {"preset": preset, **over})


def write(flow, batch=BATCH, stage="train"):
    """Results for all runs of a batch."""
    plan = flow.plan(flow.preset)
    for key in plan.batches[stage, batch].keys:
        path = runs.result_path(Path("results"), plan.specs[key])
        results.write_result(path, pd.DataFrame({"a": [1]}), plan.specs[key], {"seconds": 1.0})
    return [runs.result_path(Path("results"), plan.specs[key]) for key in plan.batches[stage, batch].keys]


class Job(SimpleNamespace):
    __hash__ = object.__hash__


def job(rule, preset="tiny", **wildcards):
    return Job(rule=SimpleNamespace(name=rule), wildcards=SimpleNamespace(preset=preset, **wildcards))


def test_a_job_reads_data_start_weights_and_rescalings_only_if_runs_are_missing(flow):
    wildcards = SimpleNamespace(preset="tiny", batch=BATCH)
    expected = ["results/data/generated.pt", "results/tiny/init/mlp_gelu.json", "results/tiny/rescale/mlp_gelu.json"]
    assert flow().inputs("train", wildcards) == expected
    paths = write(flow())
    assert flow().inputs("train", wildcards) == []
    next(path for path in paths if path.name.startswith("pathcond")).write_text("damaged")
    assert flow().inputs("train", wildcards) == expected
    Path("results/tiny/train").mkdir(exist_ok=True)
    keys = flow().plan("tiny").batches["train", BATCH].keys
    Path(f"results/tiny/train/{BATCH}.json").write_text(json.dumps(dict.fromkeys(keys, "")))  # the job ran before
    again = flow()
    again.dag = SimpleNamespace(forcefiles=set())
    assert again.inputs("train", wildcards) == expected
    assert again.dag.forcefiles == again.outdated == {f"results/tiny/train/{BATCH}.json"}
    forced = flow()
    forced.forced_names = frozenset(["train"])
    assert set(expected) <= set(forced.inputs("train", wildcards))
    assert Workflow(ROOT, {"preset": "tiny"}, main=False).inputs("train", wildcards) == []


def test_start_weights_are_those_of_the_missing_runs(flow):
    wildcards = SimpleNamespace(preset="tiny", family="mlp_gelu")
    one = flow()
    assert {s["seed"] for s in runs.read_specs([one.starts(wildcards, rescaled=False)], "train")} == {0, 1}
    for path in write(flow()):
        if "-seed1-" in path.name:
            path.unlink()
    found = runs.read_specs([flow().starts(wildcards, rescaled=True)], "train")
    assert [(s["seed"], s["method"]) for s in found] == [(1, "pathcond")]


def test_training_that_cannot_run_here_is_refused_with_its_cost(flow):
    one = flow("paper")
    with pytest.raises(PaperError) as caught:
        one.before_jobs([job("train", "paper", batch=BATCH)], set(), can_train=False, cores=2)
    said = str(caught.value)
    assert said.startswith("63 training runs are missing (mlp_2x500_gelu, ")
    for text in ("no GPU here", "on an H200", "on this CPU", "device=cpu", "preset=preview"):
        assert text in said
    one.before_jobs([job("train", "paper", batch=BATCH)], set(), can_train=True, cores=2)
    write(flow("paper"))
    flow("paper").before_jobs([job("train", "paper", batch=BATCH)], set(), can_train=False, cores=2)


def test_results_of_forced_jobs_are_deleted_and_of_no_others(flow):
    paths = write(flow())
    forced = job("train", batch=BATCH)
    flow().before_jobs([forced], set(), can_train=True, cores=2)
    assert all(path.exists() for path in paths)
    with pytest.raises(PaperError, match="6 training runs are missing"):
        flow().before_jobs([forced], {forced}, can_train=False, cores=2)
    assert all(path.exists() for path in paths), "refused before anything is deleted"
    flow().before_jobs([forced], {forced}, can_train=True, cores=2)
    assert not any(path.exists() or path.with_suffix(".json").exists() for path in paths)


class Forced(NamedTuple):
    rule: str
    output: tuple[str, ...]


def test_forced_jobs_are_those_asked_for_and_what_follows():
    """A job that Snakemake forces because its last run was interrupted is not among them."""
    jobs = [Forced(name, (f"{name}.json",)) for name in "abcd"]
    dag = SimpleNamespace(
        reason=lambda one: SimpleNamespace(forced=one.rule in "ad"),
        dependencies={jobs[0]: {}, jobs[1]: {jobs[0]: set()}, jobs[2]: {}, jobs[3]: {}},
        needrun=lambda one: True,
        forcerules={"a"},
    )
    assert workflow.forced_jobs(dag, jobs) == set(jobs[:2])
    assert workflow.forced_jobs(dag, jobs, ["d.json"]) == {*jobs[:2], jobs[3]}


def test_a_preset_is_judged_where_its_settings_are_the_papers(flow):
    tiny = flow()
    assert not tiny.judged("tiny", "toy")
    assert tiny.judged("paper", "toy")
    same = flow("preview")
    assert same.judged("preview", "architectures")  # not smaller there


def test_the_note_says_how_much_and_what_is_missing(flow):
    one = flow("paper", missing=[{"network": "cifar_nv", "method": "enorm", "lr": 1e-4}])
    assert one.note("paper", "cifar_nv_lrs") == (
        "preset: paper  ·  40,000 images  ·  128 epochs (500 at lr 0.0001)  ·  3 seeds  ·  without enorm at lr 0.0001"
    )
    assert "target 99% train accuracy" in one.note("paper", "mlp_depth")


def test_the_note_joins_the_grids_of_one_kind_of_network():
    grid = {"model": {"kind": "mlp"}, "images": 1000, "epochs": 3, "seeds": [0, 1]}
    settings = {
        "mlp": grid,
        "more_seeds": {**grid, "seeds": [2]},
        "other_starts": {**grid, "seeding": "authors", "epochs": 5, "seeds": [7]},
        "cifar_nv": {**grid, "model": {"kind": "cifar_nv"}},
    }
    amounts = (
        "mlp: 1,000 images  ·  3 or 5 epochs  ·  up to 3 seeds  ·  cifar_nv: 1,000 images  ·  3 epochs  ·  2 seeds"
    )
    assert workflow.note("tiny", settings) == f"preset: tiny  ·  {amounts}"


def test_code_of_an_experiment_includes_the_experiments_it_imports():
    def names(experiment):
        return [Path(file).stem for file in workflow.code("aggregate", experiment)]

    assert names("toy") == ["__main__", "aggregate", "toy"]
    assert names("cifar_nv_lrs")[2:] == ["cifar_nv_lrs", "cifar_nv"]
    assert {"timing_depth", "timing"} < set(names("timing_depth"))
