"""Timing: weights come back, an epoch is scaled up from its batches; golden runs have the other columns."""

import pytest
import torch

from paper import data, models
from paper.experiments import timing

CPU = torch.device("cpu")
COUNT = 40
SETTINGS = {
    "network": "mlp", "model": {"kind": "mlp", "inputs": 48, "hidden": [6, 5], "outputs": 10},
    "poolings": ["plain", "exact"], "dataset": "generated", "batch": 16, "batches": 2, "sweeps": 10, "warmup": 1,
    "repeats": 3, "data": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _images(monkeypatch):
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (COUNT, 3, 8, 8), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, 10, (COUNT,), dtype=torch.uint8, generator=draws)
    monkeypatch.setattr(data, "load", lambda path, name: data.Dataset(images, labels, images, labels))


def _bench(batches):
    return timing.Bench(SETTINGS["model"], timing.load("generated", None, CPU), 16, batches)


def test_every_repeat_starts_from_the_same_weights():
    bench = _bench(2)
    bench.rescaling("plain", 10)
    fresh = models.make(SETTINGS["model"], 0, "timing")
    assert all(torch.equal(a, b) for a, b in zip(bench.module.parameters(), fresh.parameters(), strict=True))
    bench.epoch(0)
    assert not any(torch.equal(a, b) for a, b in zip(bench.trained.parameters(), fresh.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(bench.module.parameters(), fresh.parameters(), strict=True))


@pytest.mark.parametrize(("batches", "timed"), [(1, 1), (3, 3), (100, 3)])
def test_an_epoch_is_scaled_up(batches, timed, monkeypatch):
    bench, sizes = _bench(batches), []
    monkeypatch.setattr(bench, "_train", lambda parts: sizes.extend(len(part) for part in parts))
    ticks = iter((10.0, 12.0))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert bench.epoch(0) == pytest.approx(2.0 * 3 / timed)
    assert sizes == [16, 16, 8][:timed]
