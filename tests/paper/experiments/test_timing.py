"""Timing: what a row holds, that weights come back, and that an epoch is scaled up from its batches."""

import gc

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


@pytest.mark.parametrize(
    "model",
    [
        SETTINGS["model"],
        {"kind": "cifar_nv", "width": 0.03125, "image": 8},
        {"kind": "resnet18_c", "width": 0.0625, "image": 8},
    ],
    ids=lambda model: model["kind"],
)
def test_rows(model):
    table = timing.measure({**SETTINGS, "network": model["kind"], "model": model}, CPU)
    assert list(table.columns) == [
        "network", "pooling", "repeat", "step", "seconds", "parameters", "units", "batches", "epoch_batches",
        "hardware",
    ]  # fmt: skip
    assert len(table) == len(table.drop_duplicates(["pooling", "repeat", "step"])) == 2 * 3 * 6
    assert sorted(table["repeat"].unique()) == [0, 1, 2]
    assert (table["seconds"] > 0).all()
    steps = table.pivot(index=["pooling", "repeat"], columns="step", values="seconds")
    parts = steps[["graph", "diag_g", "solve", "apply"]].sum(axis=1)
    assert steps["total"].tolist() == pytest.approx(parts.tolist())
    assert steps.loc["plain", "epoch"].tolist() == steps.loc["exact", "epoch"].tolist()
    assert set(table["batches"]) == {2}
    assert set(table["epoch_batches"]) == {3}
    assert set(table["parameters"]) == {models.parameters(models.build(model))}
    assert table["hardware"].iloc[0].startswith("CPU ")


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


def test_garbage_collection_is_off_meanwhile():
    assert [gc.isenabled() for _ in timing.repeats(SETTINGS)] == [False] * 4
    assert gc.isenabled()


def test_garbage_collection_is_back_after_a_failure(monkeypatch):
    monkeypatch.setattr(timing.Bench, "epoch", lambda self, repeat: 1 / (repeat - repeat))
    with pytest.raises(ZeroDivisionError):
        timing.measure(SETTINGS, CPU)
    assert gc.isenabled()
