"""Smooth activations: exactness of ReLU, the bound, and the change falling with depth at the default scale."""

import pytest
import torch

from paper.experiments import smooth

CPU = torch.device("cpu")
TINY = {
    "activations": ["gelu", "silu", "relu"], "initialisations": ["default", "he"], "hidden_layers": [1, 3],
    "inputs": 32, "width": 16, "outputs": 10, "samples": 4, "sweeps": 10, "clamp": 5.0, "seeds": [0, 1],
}  # fmt: skip


def test_relu_is_exact_and_units_at_the_bound_are_counted():
    table = smooth.measure({**TINY, "clamp": 0.05}, CPU)
    relu = table["activation"] == "relu"
    assert table.loc[relu, "error"].max() < 1e-13 < 1e-4 < table.loc[~relu, "error"].min()
    assert table["train_error"].min() > 1e-4  # BatchNorm takes the scales of its own layer away, not of the next
    assert table["clamped"].min() > 0
    assert table["max_u"].tolist() == [0.05] * len(table)
    assert table["free_u"].min() > 0.05


@pytest.mark.slow
def test_the_paper_s_curve():
    settings = {**TINY, "inputs": 3072, "width": 500, "hidden_layers": [1, 4, 8], "samples": 16, "seeds": [0, 1, 2]}
    table = smooth.measure({**settings, "activations": ["gelu", "silu"]}, CPU)
    means = table.groupby(["activation", "initialisation", "hidden_layers"])["error"].mean()
    assert means["gelu", "default"].tolist() == pytest.approx([2.1e-1, 2.7e-2, 3.1e-4], rel=0.3)
    assert means["silu", "default"].tolist() == pytest.approx([1.7e-1, 1.7e-2, 2.1e-4], rel=0.3)
    assert means["gelu", "he"].is_monotonic_increasing
