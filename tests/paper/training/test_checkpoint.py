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


def test_it_comes_back_as_it_was(tmp_path):
    spec = make_spec(MLP)
    checkpoint = Checkpoint(tmp_path, spec)
    assert checkpoint.read() == ({}, None)
    checkpoint.write({"epoch": 1})
    checkpoint.write(STATE)
    found, remark = Checkpoint(tmp_path, spec).read()
    assert remark is None
    assert {**found, "state": None} == {**STATE, "state": None}
    for one, other in zip(found["state"], STATE["state"], strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    assert checkpoint.path == tmp_path / f"tiny/{key(spec)}.pt"
    assert files(tmp_path) == {checkpoint.path.name}
    checkpoint.remove()
    assert not list(tmp_path.iterdir())
    checkpoint.remove()  # nothing there: nothing to do


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")], ids=["cut", "flip", "empty"])
def test_a_damaged_one_is_refused_and_removed(damage, tmp_path):
    checkpoint = Checkpoint(tmp_path, make_spec(MLP))
    checkpoint.write(STATE)
    damage(checkpoint.path)
    state, remark = checkpoint.read()
    assert state == {}
    assert remark is not None
    assert remark.startswith(f"checkpoint {checkpoint.path.name} cannot be used (")
    assert checkpoint.read() == ({}, None)


def test_one_of_other_settings_is_not_used(tmp_path):
    mine, other = (Checkpoint(tmp_path, make_spec(MLP, lr=lr)) for lr in (0.1, 0.2))
    other.write(STATE)
    assert mine.read() == ({}, None)
    mine.path.write_bytes(other.path.read_bytes())  # not even under the right name
    state, remark = mine.read()
    assert state == {}
    assert remark is not None
    assert "belongs to other settings" in remark
    assert other.read()[1] is None


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


def never() -> bool:
    return False


def test_a_killed_process_keeps_no_lock_and_other_runs_are_free(tmp_path, capsys):
    with another(tmp_path, ONE, THREE), lock_runs(tmp_path, [TWO], never) as locked:
        assert locked
    with lock_runs(tmp_path, [ONE, THREE], never) as locked:
        assert locked
    assert files(tmp_path) == set()
    assert capsys.readouterr().err == ""


def test_a_locked_run_is_waited_for(tmp_path, capsys):
    asked = []
    with another(tmp_path, ONE) as holder:

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


def test_locks_are_removed_after_a_failure_too(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_runs(tmp_path / "new", [ONE, TWO], never):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
