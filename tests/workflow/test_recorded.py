"""Recorded runs in a fresh clone: no command destroys one, and nothing is trained that is recorded."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from paper import config, plan
from tests.workflow.tree import ROOT, Tree, git, jobs, once

# Commands of docs/pipeline.md, and others that force jobs; without a GPU none may start training.
COMMANDS = {
    "-n": 0, "toy --summary": 0, "toy --list-changes params": 0, "toy --list-changes input": 0, "--lint": 0,
    "toy --until aggregate": 0, "--unlock": 0, "toy --rulegraph": 0, "--touch -F toy": 0, "--touch -F": 0, "toy": 0,
    "figures/paper/architectures.pdf": 0, "toy --rerun-triggers mtime": 0, "timing -R timing --quiet rules": 0,
    "toy -R toy --no-hooks": 0, "mlp_depth -R train": 1, "mlp_depth -F": 1, "-R rescale init -n": 0,
    "mlp_depth -R mlp_depth -n": 0, "mlp_depth --config device=cuda -R train": 1, "--config preset=papr": 1,
    "cifar_nv -F --keep-going": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Tree:
    return Tree(once(tmp_path_factory, worker_id, "clone", lambda folder: Tree.clone(folder) and None))


def run(tree: Tree, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", *words], cwd=tree.folder, env=tree.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip


def changes(tree: Tree) -> str:
    return git(tree.folder, "status", "--porcelain")


@pytest.mark.xdist_group("clone")
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_changes_what_is_recorded(clone: Tree, command: str):
    done = run(clone, *command.split())
    assert done.returncode == COMMANDS[command], done.stdout[-3000:]
    assert changes(clone) == ""


@pytest.mark.xdist_group("clone")
def test_a_fresh_clone_plans_tables_claims_and_figures_alone(clone: Tree):
    """Also with a profile that sets nothing, and whatever was drawn before."""
    shutil.rmtree(clone.folder / ".snakemake", ignore_errors=True)
    plain, forced = (
        {job.split()[0] for job in jobs(run(clone, *words).stdout)}
        for words in (["-n"], ["-n", "-F", "--until", "aggregate", "--workflow-profile", "none"])
    )
    due = jobs(run(clone, "-n", "--config", 'experiments={"mlp_depth": {"epochs": 90}}').stdout)
    assert {job for job in due if job.startswith("train")} == {"train mlp_depth", "train mlp_depth_lrs"}
    assert plain <= {"aggregate", "claim", "claims", "figure", "page", "all"}
    assert {"download", "init", "rescale", "train", "measure", "measure_time"} <= forced


@pytest.mark.xdist_group("clone")
def test_a_stopped_measurement_keeps_its_predecessor(clone: Tree):
    """The job is forced and fails: neither its runs nor its index are lost."""
    source = clone.folder / "src/paper/experiments/toy.py"
    text = source.read_text()
    source.write_text(
        text.replace("\ndef measure(", "\ndef unused(").replace("EXPERIMENT = ", "measure = print\nEXPERIMENT = ")
    )
    try:
        done = run(clone, "toy", "-R", "measure")
        assert done.returncode == 1
        assert "Error in rule measure" in done.stdout
        assert "Traceback" in done.stdout, "the log of the failed job is shown"
    finally:
        source.write_text(text)
    assert changes(clone) == ""


@pytest.mark.xdist_group("clone")
def test_indices_that_snakemake_deletes_are_written_again_from_the_runs(clone: Tree):
    """They are outputs; runs are not."""
    assert run(clone, "--delete-all-output").returncode == 0
    gone = changes(clone).splitlines()
    assert gone
    assert all(re.match(r" D results/paper/(train|measure)/[^/]+\.json$", line) for line in gone)
    assert plan.write_indices(clone.folder / "results", plan.plan(config.read(ROOT, "paper"))) == []
    assert changes(clone) == ""


def test_indices_are_those_of_the_recorded_runs():
    """They are committed, so that a fresh clone trains nothing."""
    found = plan.plan(config.read(ROOT, "paper"))
    folder = ROOT / "results"
    expected = {plan.index_path(folder, "paper", batch): batch for batch in found.batches.values()}
    there = {path for stage in ("train", "measure") for path in (folder / "paper" / stage).glob("*.json")}
    way_out = "the indices are out of date: run `make indices` and commit results/paper"
    assert there == set(expected), way_out
    for path, batch in expected.items():
        listed = json.loads(path.read_text())
        recorded = {key: json.loads((folder / f"paper/{key}.json").read_text())["sha256"] for key in batch.keys}
        assert listed == recorded, way_out
