"""Damaged files of a workflow: noticed, reported, recomputed or restored; the end is the same, byte for byte."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harm import cut, flip
from tests.faults.small import Small, kill
from tests.faults.test_kills import finish_and_compare, wait_for_checkpoint

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_data_file_is_named_by_the_job_that_reads_it(
    finished: Small, undisturbed: Small, damage: Callable[[Path], None]
):
    path = finished.folder / "results/data/generated.pt"
    damage(path)
    damaged = path.read_bytes()
    assert finished.snakemake().returncode == 0  # nothing that reads it is planned
    done = finished.snakemake("mlp_depth", "-R", "train")
    assert done.returncode == 1
    assert "results/data/generated.pt" in done.stdout
    assert path.read_bytes() == damaged
    path.unlink()
    finished.run("mlp_depth", "-R", "train")
    finish_and_compare(finished, undisturbed)


def test_a_damaged_checkpoint_is_not_used(fresh: Small, undisturbed: Small):
    snakemake = fresh.begin()
    wait_for_checkpoint(fresh)
    kill(snakemake.pid, group=True)
    snakemake.wait(300)
    for path in fresh.files("results/checkpoints/**/[!.]*.pt"):
        flip(path)
    fresh.unlock()
    finish_and_compare(fresh, undisturbed)
    logs = "".join(path.read_text() for path in fresh.files("logs/tiny/train/*.log"))
    assert "cannot be used (wrong checksum); starting anew" in logs
