"""Killed jobs and Snakemakes, two Snakemakes at once, damaged files, full disks: the end is the same, byte for byte."""

import os
import re
import signal
import time

import pytest

from tests.faults.harm import files, fill, flip, small_disk
from tests.faults.small import PATIENCE, Small, jobs_of, kill, wait_for, wait_until_gone

pytestmark = pytest.mark.faults
WAITING = "another process trains it; waiting for that one to end\n"


def finish_and_compare(tree: Small, undisturbed: Small) -> str:
    said = tree.finish()
    assert tree.content() == undisturbed.content()
    assert tree.leftovers() == []
    assert "Nothing to be done" in tree.finish()
    return said


def wait_for_checkpoint(tree: Small) -> None:
    end = time.monotonic() + PATIENCE
    while not tree.files("results/checkpoints/**/[!.]*.pt"):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_training_job_resumes_from_its_checkpoint(fresh: Small, undisturbed: Small):
    snakemake = fresh.begin()
    job = wait_for(snakemake, "paper.training")
    wait_for_checkpoint(fresh)
    kill(job)
    assert snakemake.wait(PATIENCE) == 1
    assert "Error in rule train" in fresh.said()
    assert fresh.files("results/checkpoints/**/[!.]*.pt")
    finish_and_compare(fresh, undisturbed)
    log = fresh.files("logs/tiny/train/mlp_depth-*.log")[0].read_text()
    assert int(log.split("epoch ")[1].split("/")[0]) > 1, log


def test_a_killed_snakemake_whose_jobs_live_on(fresh: Small, undisturbed: Small):
    """The next Snakemake waits for the runs that jobs of the killed one still train, and reuses them."""
    snakemake = fresh.begin()
    wait_for_checkpoint(fresh)
    orphans = [process for process, module in jobs_of(snakemake.pid).items() if module == "paper.training"]
    for process in orphans:
        os.kill(process, signal.SIGSTOP)
    kill(snakemake.pid)
    assert snakemake.wait(PATIENCE) < 0
    fresh.unlock()
    second, end = fresh.begin(), time.monotonic() + PATIENCE
    while not (waiting := [path for path in fresh.files("logs/tiny/train/*.log") if WAITING in path.read_text()]):
        assert time.monotonic() < end
        time.sleep(0.05)
    for process in orphans:
        os.kill(process, signal.SIGCONT)
    assert second.wait(PATIENCE) == 0, fresh.said()
    assert all("exists, reused" in path.read_text() for path in waiting)
    finish_and_compare(fresh, undisturbed)
    wait_until_gone(snakemake.pid)


def test_a_killed_snakemake_whose_jobs_end_before_the_next(fresh: Small, undisturbed: Small):
    """Results that the jobs of the killed Snakemake computed are reused."""
    snakemake = fresh.begin()
    wait_for(snakemake, "paper.training")
    kill(snakemake.pid)
    snakemake.wait(PATIENCE)
    wait_until_gone(snakemake.pid)
    made = {path: path.stat().st_mtime_ns for path in fresh.files("results/tiny/train/*/**/*.csv")}
    assert len(made) == 4
    fresh.unlock()
    finish_and_compare(fresh, undisturbed)
    assert all(path.stat().st_mtime_ns == when for path, when in made.items())


def test_a_snakemake_killed_after_a_job_has_written_its_file(fresh: Small, undisturbed: Small):
    """The job runs again, because Snakemake had not marked it as complete; the training behind it runs too."""
    for rule in ("init", "rescale"):
        once = f"[ ! -e kill-{rule} ] || (rm kill-{rule}; kill -9 $PPID)"
        fresh.edit(f"workflow/rules/{rule}.smk", '2>&1"', f'2>&1; {once}"')
        (fresh.folder / f"kill-{rule}").touch()
    for rule in ("init", "rescale"):
        assert fresh.begin().wait(PATIENCE) == -signal.SIGKILL
        assert fresh.files(f"results/tiny/{rule}/*.json")
        fresh.unlock()
    assert fresh.said().count(": init mlp") == 2
    assert ": rescale mlp" in finish_and_compare(fresh, undisturbed)


def test_a_forced_early_job_does_not_hide_what_is_missing(finished: Small):
    """Snakemake leaves out the jobs behind training: the command fails, and its second run makes them."""
    for path in finished.files("figures/tiny/mlp_depth.*"):
        path.unlink()
    done = finished.snakemake(*finished.targets, "-R", "init")
    assert done.returncode == 1
    assert "Run the same command once more" in done.stdout
    finished.finish()
    assert finished.files("figures/tiny/mlp_depth.pdf")


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
