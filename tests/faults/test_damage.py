"""Damaged files of a workflow: noticed, reported, recomputed or restored; the end is the same, byte for byte."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from paper import config, results, runs
from paper import plan as plans
from tests.faults.harm import cut, flip
from tests.faults.small import Small, kill
from tests.faults.test_kills import finish_and_compare, wait_for_checkpoint

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_data_file_is_written_again(finished: Small, undisturbed: Small, damage: Callable[[Path], None]):
    path = finished.folder / "results/data/generated.pt"
    damage(path)
    damaged = path.read_bytes()
    assert finished.snakemake().returncode == 0  # nothing that reads it is planned
    assert path.read_bytes() == damaged
    for result in finished.files("results/tiny/train/*/**/*.*"):
        result.unlink()
    assert "results/data/generated.pt: damaged; it is written again." in finish_and_compare(finished, undisturbed)


def test_a_damaged_table_and_provenance_are_recomputed(finished: Small, undisturbed: Small):
    table = finished.files("results/tiny/train/*/**/*.csv")[0]
    provenance = finished.files("results/tiny/measure/*/*.json")[0]
    cut(table)
    flip(provenance)
    damaged = table.read_bytes(), provenance.read_bytes()
    assert finished.snakemake("-n", "mlp_depth", "toy").returncode == 0
    assert (table.read_bytes(), provenance.read_bytes()) == damaged  # a dry run changes nothing
    said = finish_and_compare(finished, undisturbed)
    assert "rule train:" in said
    assert "rule measure:" in said


def test_a_damaged_checkpoint_is_not_used(fresh: Small, undisturbed: Small):
    snakemake = fresh.begin()
    wait_for_checkpoint(fresh)
    kill(snakemake.pid, group=True)
    snakemake.wait(60)
    for path in fresh.files("results/checkpoints/**/[!.]*.pt"):
        flip(path)
    fresh.unlock()
    finish_and_compare(fresh, undisturbed)
    logs = "".join(path.read_text() for path in fresh.files("logs/tiny/train/*.log"))
    assert "cannot be used (wrong checksum); starting anew" in logs


@pytest.mark.parametrize(("suffix", "damage"), [(".csv", flip), (".json", cut)])
def test_damaged_runs_of_the_paper_stop_the_workflow(finished: Small, suffix: str, damage: Callable[[Path], None]):
    """They are not retrained, and the message says how to restore them."""
    specs = plans.plan(config.read(Path(__file__).parents[2], "paper")).specs.values()
    spec = next(spec for spec in specs if spec["stage"] == "train")
    path = runs.result_path(finished.folder / "results", spec)
    results.write_result(path, pd.DataFrame({"seed": [0], "epoch": [0]}), spec, {"seconds": 1.0})
    damage(path.with_suffix(suffix))
    damaged = path.with_suffix(suffix).read_bytes()
    done = finished.snakemake("mlp_depth", preset="paper", device="cpu")
    assert done.returncode == 1
    assert f"{path.relative_to(finished.folder)}: " in done.stdout
    assert "git restore results/paper" in done.stdout
    assert path.with_suffix(suffix).read_bytes() == damaged
