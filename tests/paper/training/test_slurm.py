"""Training asks Slurm when its job ends, and stops before."""

import math
import time

import pytest

from paper.training import __main__ as command


@pytest.fixture
def squeue(monkeypatch, tmp_path):
    """A squeue that gives an answer for job 7."""

    def answer(text):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n[ \"$2\" = --jobs=7 ] && echo '{text}'\n")
        (tmp_path / "squeue").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return answer


def soon(seconds):
    """A moment from now as squeue writes it, and as a number."""
    moment = math.floor(time.time()) + seconds
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment)), moment


def test_no_limit_is_none(squeue, monkeypatch):
    for text in ("N/A", "NONE", "", "tomorrow"):
        squeue(text)
        assert command._end(None) == math.inf
    squeue(soon(90)[0])
    monkeypatch.delenv("SLURM_JOB_ID")
    assert command._end(None) == math.inf


def test_the_first_limit_counts(squeue):
    text, moment = soon(900)
    squeue(text)
    assert command._end(None) == moment - command.MARGIN
    assert command._end(3600) == moment - command.MARGIN
    before = time.time()
    assert before + 1 <= command._end(1) <= time.time() + 1
