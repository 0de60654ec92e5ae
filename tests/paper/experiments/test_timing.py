"""Timing: weights come back, an epoch is scaled up from its batches; golden runs have the other columns."""

import pytest
import torch

from paper import models
from paper.experiments import timing

CPU = torch.device("cpu")
MODEL = {"kind": "mlp", "inputs": 48, "hidden": [6, 5], "outputs": 10}


@pytest.fixture
def bench(generated):
    return lambda batches: timing.Bench(MODEL, timing.load("generated", generated, CPU), 256, batches)


def test_every_repeat_starts_from_the_same_weights(bench):
    one, fresh = bench(2), models.make(MODEL, 0, "timing")
    one.rescaling("plain", 10)
    assert all(torch.equal(a, b) for a, b in zip(one.module.parameters(), fresh.parameters(), strict=True))
    one.epoch(0)
    assert not any(torch.equal(a, b) for a, b in zip(one.trained.parameters(), fresh.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one.module.parameters(), fresh.parameters(), strict=True))


@pytest.mark.parametrize(("batches", "timed"), [(1, 1), (3, 3), (100, 3)])
def test_an_epoch_is_scaled_up(batches, timed, bench, monkeypatch):
    one, sizes = bench(batches), []
    monkeypatch.setattr(one, "_train", lambda parts: sizes.extend(len(part) for part in parts))
    ticks = iter((10.0, 12.0))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert one.epoch(0) == pytest.approx(2.0 * 3 / timed)
    assert sizes == [256, 256, 128][:timed]
