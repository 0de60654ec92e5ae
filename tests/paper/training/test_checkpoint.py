"""Checkpoints are restored exactly or refused with a reason; locks keep two processes from one run."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from paper.runs import key
from paper.training.runner import Checkpoint, lock_runs
from tests.faults.harm import ROOT, cut, files, flip, leave_half
from tests.paper.training.reference import MLP, make_spec

STATE = {
    "epoch": 3,
    "state": [torch.arange(3.0), torch.ones(2, 2, dtype=torch.float64)],
    "rows": [{"epoch": 0, "train_loss": float("inf"), "diverged": True}],
    "seconds": 1.5,
}


def test_it_comes_back_as_it_was_or_is_refused_with_a_reason(tmp_path):
    mine, other = (Checkpoint(tmp_path, make_spec(MLP, lr=lr)) for lr in (0.1, 0.2))
    other.write({"epoch": 1})
    other.write(STATE)
    found, remark = other.read()
    assert remark is None
    assert {**found, "state": None} == {**STATE, "state": None}
    for one, same in zip(found["state"], STATE["state"], strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert mine.read() == ({}, None)
    whole = other.path.read_bytes()
    for damage, says in ((cut, ""), (flip, "wrong checksum"), (lambda path: None, "belongs to other settings")):
        mine.path.write_bytes(whole)
        damage(mine.path)
        state, remark = mine.read()
        assert state == {}
        assert remark.startswith(f"checkpoint {mine.path.name} cannot be used (")
        assert says in remark
        assert mine.read() == ({}, None), "it is removed"


def test_what_a_killed_write_left_goes_with_it(tmp_path):
    mine, other = (Checkpoint(tmp_path, make_spec(MLP, lr=lr)) for lr in (0.1, 0.2))
    mine.write(STATE)
    other.write(STATE)
    leave_half(mine.path)
    mine.remove()
    assert files(tmp_path) == {other.path.name}
    leave_half(other.path)
    other.remove()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_job_removes_in_between_is_made_again(tmp_path, monkeypatch):
    mine, other = (Checkpoint(tmp_path, make_spec(MLP, lr=lr)) for lr in (0.1, 0.2))
    other.write(STATE)
    inner, calls = os.open, []

    def late(path, *options):
        if not calls:
            other.remove()
        calls.append(path)
        return inner(path, *options)

    monkeypatch.setattr(os, "open", late)
    mine.write(STATE)
    assert len(calls) == 2
    assert files(tmp_path) == {mine.path.name}


# ---- locks

ONE, TWO, THREE = (make_spec(MLP, lr=lr) for lr in (0.1, 0.2, 0.3))
_HOLDER = """
import json, sys, time
from pathlib import Path
from paper.training.runner import lock_runs
with lock_runs(Path(sys.argv[1]), json.loads(sys.argv[2]), lambda: True) as locked:
    print(locked, flush=True)
    time.sleep(600 if locked else 0)
"""


@contextmanager
def another(folder, *specs, locked=True):
    """Another process that locks specs until it is killed, or does not wait for them."""
    words = [sys.executable, "-c", _HOLDER, str(folder), json.dumps(specs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{locked}\n"
        yield process
        process.kill()


def test_a_locked_run_is_waited_for_until_its_process_ends_and_other_runs_are_free(tmp_path, capsys):
    asked = []
    with another(tmp_path, ONE, THREE) as holder:
        with lock_runs(tmp_path, [TWO], lambda: False) as locked:
            assert locked
        assert capsys.readouterr().err == ""

        def stop() -> bool:
            asked.append(1)
            if len(asked) == 2:
                holder.kill()
            return False

        with lock_runs(tmp_path, [TWO, ONE], stop) as locked:
            assert locked
            assert len(asked) >= 2
            with another(tmp_path, ONE, locked=False):
                pass
    assert capsys.readouterr().err == f"{key(ONE)}: another process trains it; waiting for that one to end\n"
    with pytest.raises(ZeroDivisionError), lock_runs(tmp_path, [ONE, TWO, THREE], stop):
        raise ZeroDivisionError
    assert files(tmp_path) == set(), "a failure leaves no lock either"
