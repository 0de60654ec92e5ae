"""Smooth activations: exactness of ReLU, and the bound."""

import torch

from paper.experiments import smooth

SETTINGS = {
    "activations": ["gelu", "silu", "relu"], "initialisations": ["default", "he"], "hidden_layers": [2],
    "inputs": 32, "width": 16, "outputs": 10, "samples": 4, "sweeps": 10, "clamp": 0.05, "seeds": [0],
}  # fmt: skip


def test_relu_is_exact_and_units_at_the_bound_are_counted():
    table = smooth.measure(SETTINGS, torch.device("cpu"))
    relu = table["activation"] == "relu"
    assert table.loc[relu, "error"].max() < 1e-13 < 1e-4 < table.loc[~relu, "error"].min()
    assert table["train_error"].min() > 1e-4  # BatchNorm takes the scales of its own layer away, not of the next
    assert table["clamped"].min() > 0
    assert table["max_u"].tolist() == [0.05] * len(table)
    assert table["free_u"].min() > 0.05
