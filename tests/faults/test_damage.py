"""Damaged files of a workflow: noticed, reported, recomputed or restored; the end is the same, byte for byte."""

import pytest

from tests.faults.harm import flip
from tests.faults.small import Small
from tests.faults.test_kills import finish_and_compare

pytestmark = pytest.mark.faults


def test_a_damaged_data_file_is_named_by_the_job_that_reads_it(finished: Small, undisturbed: Small):
    path = finished.folder / "results/data/generated.pt"
    flip(path)
    damaged = path.read_bytes()
    assert finished.snakemake().returncode == 0  # nothing that reads it is planned
    done = finished.snakemake("mlp_depth", "-R", "train")
    assert done.returncode == 1
    assert "results/data/generated.pt" in done.stdout
    assert path.read_bytes() == damaged
    path.unlink()
    finished.run("mlp_depth", "-R", "train")
    finish_and_compare(finished, undisturbed)
