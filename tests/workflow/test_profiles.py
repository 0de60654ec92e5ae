"""Profiles: their keys are Snakemake's; what jobs ask for follows from rules, scale, configuration and environment."""

import re
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

from tests.workflow.tree import ROOT, Tree

PROFILES = sorted((ROOT / "profiles").iterdir())


def resources(tree: Tree, *arguments: str, scale: str) -> dict[str, dict[str, str]]:
    """What the jobs of a dry run ask for, by name."""
    done = tree.snakemake("-n", *arguments, scale=scale, accept_existing=False)
    assert done.returncode == 0, done.stdout
    found = re.findall(r"wildcards: key=(\S+)\n(?:    threads: (\d+)\n)?    resources: (.*)", done.stdout)
    return {
        name.rpartition("-")[0]: {"threads": threads or "1", **dict(pair.split("=", 1) for pair in given.split(", "))}
        for name, threads, given in found
    }


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A copy on a machine that seems to have a GPU."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Tree.fresh(tmp_path / "tree")


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_keys_are_known(profile: Path):
    known = {option.removeprefix("--") for option in get_argument_parser()._option_string_actions}
    keys = set(yaml.safe_load((profile / "config.yaml").read_text()))
    assert len(keys) > 4
    assert {key for key in keys - known if not key.startswith("slurm-")} == set()


def test_small_cells_share_a_gpu_and_large_ones_do_not(tree: Tree):
    found = resources(tree, "--workflow-profile", "gpu", scale="tiny")
    assert found["train/classify/mlp_2x16/pathcond-lr0.001"]["gpu"] == "1"
    assert found["train/classify/cifar_nv/pathcond-lr0.001"]["gpu"] == "4"
    assert found["measure/timing/mlp"]["gpu"] == "4"
    assert found["measure/toy/all"].get("gpu", "0") == "0"


def test_needs_follow_the_scale_and_the_place_the_surroundings(tree: Tree, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATHCOND_ACCOUNT", "ours")
    monkeypatch.setenv("PATHCOND_PARTITION", "cpu")
    monkeypatch.setenv("PATHCOND_GPU_PARTITION", "gpu")
    tree.edit("config.yaml", "  account: null", "  account: theirs")
    found = resources(tree, "--cores", "8", scale="paper")
    asked = ("threads", "mem_mb", "runtime", "gpu", "slurm_account", "slurm_partition")
    cell = found["train/classify/mlp_3x500/pathcond-lr0.001"]
    assert [cell[name] for name in asked] == ["4", "16000", "60", "1", "theirs", "gpu"]
    assert found["train/classify/cifar_nv/pathcond-lr0.001"]["runtime"] == "240"
    assert found["measure/toy/all"]["slurm_partition"] == "cpu"
    assert found["measure/timing/mlp"]["slurm_extra"] == "--exclusive"
