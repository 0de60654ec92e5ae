"""Training asks Slurm when its job ends, and stops before."""

import math
import time

from paper.training.__main__ import MARGIN, _end


def test_the_first_limit_counts(tmp_path, monkeypatch):
    def squeue(text):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n[ \"$2\" = --jobs=7 ] && echo '{text}'\n")
        (tmp_path / "squeue").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for text in ("N/A", "NONE", "", "tomorrow"):
        squeue(text)
        assert _end(None) == math.inf
    moment = math.floor(time.time()) + 900
    squeue(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment)))
    assert _end(None) == _end(3600) == moment - MARGIN
    before = time.time()
    assert before + 1 <= _end(1) <= time.time() + 1
    monkeypatch.delenv("SLURM_JOB_ID")
    assert _end(None) == math.inf
