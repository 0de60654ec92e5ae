"""Checkpoints: they come back as they were, or are refused with a word."""

from pathlib import Path

import pytest
import torch

from paper.plan import key
from paper.train.checkpoint import Checkpoint
from tests.faults.harm import leave_half
from tests.paper.train.plain import MLP, cell

SEEDS = {
    0: {
        "epoch": 3,
        "state": None,
        "rows": [{"epoch": 0, "train_loss": float("inf"), "diverged": True}],
        "seconds": 1.5,
    },
    7: {"epoch": 1, "state": [torch.arange(3.0), torch.ones(2, 2, dtype=torch.float64)], "rows": [], "seconds": 0.0},
}


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_it_comes_back_as_it_was(tmp_path):
    spec = cell(MLP)
    checkpoint = Checkpoint(tmp_path, spec)
    assert checkpoint.read() == ({}, None)
    checkpoint.write({0: {"epoch": 1}})
    checkpoint.write(SEEDS)
    found, remark = Checkpoint(tmp_path, spec).read()
    assert remark is None
    assert found[0] == SEEDS[0]
    assert list(found) == [0, 7]
    for one, other in zip(found[7]["state"], SEEDS[7]["state"], strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    assert files(tmp_path) == [f"tiny/{key(spec)}.pt"]
    checkpoint.remove()
    assert not list(tmp_path.iterdir())
    checkpoint.remove()  # nothing there: nothing to do


def test_the_state_of_an_optimiser_comes_back(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.Adam([parameter], lr=0.1)
    parameter.sum().backward()
    optimiser.step()
    checkpoint = Checkpoint(tmp_path, cell(MLP))
    checkpoint.write({0: {"state": optimiser.state_dict()}})
    held = checkpoint.read()[0][0]["state"]
    assert held["param_groups"] == optimiser.state_dict()["param_groups"]
    assert torch.equal(held["state"][0]["exp_avg"], optimiser.state_dict()["state"][0]["exp_avg"])


@pytest.mark.parametrize("damage", ["cut", "empty", "start", "middle", "end", "longer", "nothing like it"])
def test_a_damaged_one_is_refused_and_removed(damage, tmp_path):
    checkpoint = Checkpoint(tmp_path, cell(MLP))
    checkpoint.write(SEEDS)
    raw = bytearray(checkpoint.path.read_bytes())
    if damage in ("start", "middle", "end"):
        raw[{"start": 0, "middle": len(raw) // 2, "end": -1}[damage]] ^= 1
    elif damage == "longer":
        raw += b"\0"
    else:
        raw = {"cut": raw[:-100], "empty": b"", "nothing like it": b"not a checkpoint"}[damage]
    checkpoint.path.write_bytes(raw)
    seeds, remark = checkpoint.read()
    assert seeds == {}
    assert remark is not None
    assert remark.startswith(f"checkpoint {checkpoint.path.name} cannot be used (")
    assert remark.endswith("); starting anew")
    assert checkpoint.read() == ({}, None)


def test_one_of_other_settings_is_not_used(tmp_path):
    mine, other = (Checkpoint(tmp_path, cell(MLP, lr=lr)) for lr in (0.1, 0.2))
    other.write(SEEDS)
    assert mine.read() == ({}, None)
    mine.path.write_bytes(other.path.read_bytes())  # not even under the right name
    seeds, remark = mine.read()
    assert seeds == {}
    assert remark is not None
    assert "of other settings" in remark
    assert other.read()[1] is None


def test_what_a_killed_write_left_goes_with_it(tmp_path):
    mine, other = (Checkpoint(tmp_path, cell(MLP, lr=lr)) for lr in (0.1, 0.2))
    mine.write(SEEDS)
    other.write(SEEDS)
    leave_half(mine.path)
    mine.remove()
    assert files(tmp_path) == [str(other.path.relative_to(tmp_path))]
    leave_half(other.path)
    other.remove()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_job_removes_in_between_is_made_again(tmp_path, monkeypatch):
    mine, other = (Checkpoint(tmp_path, cell(MLP, lr=lr)) for lr in (0.1, 0.2))
    other.write(SEEDS)
    inner, calls = Path.touch, []

    def late(path, **options):
        if not calls:
            other.remove()
        calls.append(path)
        inner(path, **options)

    monkeypatch.setattr(Path, "touch", late)
    mine.write(SEEDS)
    assert len(calls) == 2
    assert files(tmp_path) == [str(mine.path.relative_to(tmp_path))]
