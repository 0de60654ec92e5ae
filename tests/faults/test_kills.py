"""Snakemake and its jobs killed in the middle, and two Snakemakes at once: the same command finishes, byte for byte."""

import os
import signal
import time

import pytest

from tests.faults.small import Small, jobs_of, kill, wait_for, wait_until_gone

pytestmark = pytest.mark.faults
WAITING = "another process trains it; waiting for that one to end\n"


def finish_and_compare(tree: Small, undisturbed: Small) -> str:
    said = tree.finish()
    assert tree.content() == undisturbed.content()
    assert tree.leftovers() == []
    assert "Nothing to be done" in tree.finish()
    return said


def wait_for_checkpoint(tree: Small) -> None:
    end = time.monotonic() + 60
    while not tree.files("checkpoints/**/[!.]*.pt"):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_training_job(fresh: Small, undisturbed: Small):
    snakemake = fresh.begin()
    kill(wait_for(snakemake, "paper.train"))
    assert snakemake.wait(120) == 1
    assert "Error in rule train" in fresh.said()
    assert len(fresh.files("results/tiny/train/**/*.csv")) < 2
    finish_and_compare(fresh, undisturbed)


def test_a_killed_training_job_goes_on_from_its_checkpoint(fresh: Small, undisturbed: Small):
    snakemake = fresh.begin()
    wait_for_checkpoint(fresh)
    kill(snakemake.pid, group=True)
    assert snakemake.wait(60) < 0
    kept = [path.relative_to(fresh.folder / "checkpoints") for path in fresh.files("checkpoints/**/[!.]*.pt")]
    finish_and_compare(fresh, undisturbed)
    for path in kept:
        log = (fresh.folder / "logs" / path).with_suffix(".log").read_text()
        assert " seed 1: epoch" in log
        assert " seed 0: epoch" not in log  # it was done


def test_a_killed_snakemake_whose_jobs_live_on(fresh: Small, undisturbed: Small):
    """No unlocking: the next one starts at once, waits for what the jobs of the killed one are at, and takes it."""
    snakemake = fresh.begin()
    wait_for_checkpoint(fresh)
    orphans = [process for process, module in jobs_of(snakemake.pid).items() if module == "paper.train"]
    for process in orphans:
        os.kill(process, signal.SIGSTOP)
    kill(snakemake.pid)
    assert snakemake.wait(60) < 0
    second, end = fresh.begin(), time.monotonic() + 60
    while not (waiting := [path for path in fresh.files("logs/tiny/train/**/*.log") if WAITING in path.read_text()]):
        assert time.monotonic() < end
        time.sleep(0.05)
    for process in orphans:
        os.kill(process, signal.SIGCONT)
    assert second.wait(200) == 0, fresh.said()
    assert all(path.read_text().endswith(": already there\n") for path in waiting)
    finish_and_compare(fresh, undisturbed)
    wait_until_gone(snakemake.pid)


def test_a_killed_snakemake_whose_jobs_end_before_the_next(fresh: Small, undisturbed: Small):
    """What they made is taken."""
    snakemake = fresh.begin()
    wait_for(snakemake, "paper.train")
    kill(snakemake.pid)
    snakemake.wait(60)
    wait_until_gone(snakemake.pid)
    made = len(fresh.files("results/tiny/train/**/*.json"))
    assert made
    assert finish_and_compare(fresh, undisturbed).count("rule train:") == 2 - made


def test_two_at_once(fresh: Small, undisturbed: Small):
    """Started in the same moment, one works and the other is told so; nothing is disturbed."""
    both = [fresh.begin() for _ in range(2)]
    status = sorted(one.wait(200) for one in both)
    said = fresh.said()
    assert status == [0, 1], said
    assert said.count("expected no other Snakemake at work in this folder, got process ") == 1
    assert any(f"got process {one.pid} on " in said for one in both)
    assert "--unlock" not in said
    assert "Traceback" not in said
    finish_and_compare(fresh, undisturbed)


def test_a_second_one_is_refused_while_the_first_lives(fresh: Small, undisturbed: Small):
    first = fresh.begin()
    wait_for(first, "paper.train")
    done = fresh.snakemake()
    assert done.returncode == 1
    assert f"got process {first.pid} on " in done.stdout
    assert "Nothing was changed" in done.stdout
    assert fresh.snakemake("-n", "toy").returncode == 0  # looking is free
    assert first.wait(200) == 0, fresh.said()
    finish_and_compare(fresh, undisturbed)
