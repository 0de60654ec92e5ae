"""The workflow from other folders and other workflows, and the configuration that Snakemake merges there."""

import json
import os
import sys
from pathlib import Path

import pytest

from paper import config
from tests.workflow.tree import ROOT, Tree, jobs

CHAIN = {"measure toy", "aggregate toy", "figure toy", "claim toy", "toy"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree.fresh(tmp_path_factory.mktemp("sources") / "a tree", ("toy",))


def test_another_working_directory_with_and_without_a_configuration(sources: Tree, tmp_path: Path):
    for text in ("", "experiments: {toy: {steps: 0}}\n"):
        if text:
            (tmp_path / "config.yaml").write_text(text)
        done = sources.snakemake("-n", "toy", "--directory", str(tmp_path))
        if text:
            assert "experiments.toy.steps: expected at least 1, got 0" in done.stdout
        else:
            assert set(jobs(done.stdout)) == CHAIN, done.stdout[-3000:]


def test_a_copy_of_the_configuration_does_not_cancel_the_preset(sources: Tree):
    done = sources.snakemake("-n", "-p", "toy", "--configfile", "config.yaml", "--snakefile", "workflow/Snakefile")
    assert set(jobs(done.stdout)) == CHAIN, done.stdout[-3000:]
    assert "--preset tiny --over '{}'" in done.stdout or "--preset tiny --over {}" in done.stdout


def test_import_as_a_module_with_other_names_of_rules_and_a_batch_that_is_not_there(sources: Tree, tmp_path: Path):
    (tmp_path / "Snakefile").write_text(
        f"""
module pathcond:
    snakefile: "{sources.folder}/Snakefile"
    config: {{"preset": "tiny"}}

use rule * from pathcond as my_*
"""
    )
    done = Tree(tmp_path).snakemake("-n", "my_toy", "-p", "-R", "my_measure")
    assert set(jobs(done.stdout)) == CHAIN - {"toy"} | {"my_toy"}, done.stdout[-3000:]
    assert "--again" in done.stdout
    done = sources.snakemake("-n", "results/tiny/measure/toy-0123456789ab.json")
    assert "expected a batch of the preset tiny at these settings, got toy-0123456789ab." in done.stdout


APPTAINER = """#!/bin/sh
[ "$1" = --version ] && echo "apptainer version 1.3.0" && exit
echo "$@" >> {folder}/calls
while [ "$1" != -c ]; do shift; done
exec /bin/bash "$@"
"""


def test_jobs_run_in_the_container(sources: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for apptainer runs the command outside of a container."""
    tree = sources.copy(tmp_path / "tree")
    (tree.folder / "pathcond.sif").touch()
    (tmp_path / "apptainer").write_text(APPTAINER.format(folder=tmp_path))
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    tree.run("results/tiny/aggregate/toy.csv", "--sdm", "apptainer")
    calls = (tmp_path / "calls").read_text()
    assert f"{tree.folder}/pathcond.sif" in calls
    assert "paper.experiments measure" in calls


def test_broken_json_and_the_file_of_a_preset_are_refused(sources: Tree):
    done = sources.snakemake("-n", experiments='{"toy": {"lr": ')
    assert done.returncode == 1
    assert "the configuration has 1 mistake:\n  experiments: expected JSON, got" in done.stdout
    done = sources.snakemake("-n", "toy", "--configfile", "config/tiny.yaml", preset="paper")
    assert done.returncode == 1
    assert "config/tiny.yaml belongs to a preset. Choose it by --config preset=tiny." in done.stdout


def test_the_schema_is_that_of_the_configuration():
    there = json.loads((ROOT / "config/schema.json").read_text())
    assert there == json.loads(json.dumps(config.schema())), "run `make schema`"
