"""Full disks: the error says so, nothing half-written is left, and with room the same command finishes."""

import re

import pytest

from tests.faults.harm import files, fill, small_disk
from tests.faults.small import Small
from tests.faults.test_kills import finish_and_compare


@pytest.mark.faults
def test_a_workflow_on_a_full_disk(fresh: Small, undisturbed: Small):
    """Data, checkpoints, results and figures find no room, one after the other; each time the same command resumes."""
    for part in ("results/data", "results/checkpoints", "results/tiny/train", "figures/tiny"):
        with small_disk(fresh.folder / part):
            fill(fresh.folder / part)
            done = fresh.snakemake()
            assert done.returncode == 1
            assert re.search(rf"error: .*{part}/.*No space left on device", done.stdout), done.stdout[-4000:]
            assert "Traceback" not in done.stdout
            assert files(fresh.folder / part) == {"filler"}
    finish_and_compare(fresh, undisturbed)
