"""Timing by depth: the columns of the table."""

import torch

from paper import data
from paper.experiments import timing_depth

SETTINGS = {
    "hidden_layers": [1, 3], "inputs": 48, "width": 6, "outputs": 10, "dataset": "generated", "batch": 16, "batches": 2,
    "sweeps": 10, "warmup": 1, "repeats": 2, "data": None,
}  # fmt: skip


def test_rows(monkeypatch):
    images, labels = torch.zeros(40, 3, 4, 4, dtype=torch.uint8), torch.zeros(40, dtype=torch.uint8)
    monkeypatch.setattr(data, "load", lambda path, name: data.Dataset(images, labels, images, labels))
    table = timing_depth.measure(SETTINGS, torch.device("cpu"))
    assert list(table.columns) == [
        "hidden_layers", "parameters", "repeat", "step", "seconds", "batches", "epoch_batches", "hardware",
    ]  # fmt: skip
    assert len(table) == len(table.drop_duplicates(["hidden_layers", "repeat", "step"])) == 2 * 2 * 6
    sizes = {1: 48 * 6 + 12 + 70, 3: 48 * 6 + 2 * 36 + 36 + 70}
    assert dict(zip(table["hidden_layers"], table["parameters"], strict=True)) == sizes
    assert (table["seconds"] > 0).all()
    assert set(table["batches"]) == {2}
    assert set(table["epoch_batches"]) == {3}
