"""Smooth activations: what a row holds, exactness of ReLU, and the change falling with depth at the default scale."""

import pytest
import torch

from paper.experiments import smooth

CPU = torch.device("cpu")
TINY = {
    "activations": ["gelu", "silu", "relu"], "initialisations": ["default", "he"], "hidden_layers": [1, 3],
    "inputs": 32, "width": 16, "outputs": 10, "samples": 4, "sweeps": 10, "clamp": 5.0, "seeds": [0, 1],
}  # fmt: skip


def test_rows():
    table = smooth.measure(TINY, CPU)
    names = ["activation", "initialisation", "hidden_layers", "seed"]
    more = ["error", "train_error", "max_u", "clamped", "free_u", "kept_u", "kept_error"]
    assert list(table.columns) == [*names, *more]
    assert len(table) == len(table.drop_duplicates(names)) == 3 * 2 * 2 * 2
    relu = table["activation"] == "relu"
    assert table.loc[relu, "error"].max() < 1e-13
    assert table.loc[~relu, "error"].min() > 1e-4
    assert table["clamped"].max() == 0
    assert table["train_error"].min() > 0.01  # BatchNorm takes the scales of its own layer away, not of the next
    assert table["free_u"].tolist() == pytest.approx(table["max_u"].tolist(), rel=1e-12)
    kept = table["kept_u"] / table["free_u"] - 1
    assert kept[relu].abs().max() < 1e-3  # but for the epsilon of BatchNorm
    assert kept[~relu].abs().min() > 1e-3
    assert table.equals(smooth.measure(TINY, CPU))


def test_activations_share_weights_and_so_scales():
    table = smooth.measure(TINY, CPU)
    largest = table.pivot(index=["initialisation", "hidden_layers", "seed"], columns="activation", values="max_u")
    assert largest["gelu"].tolist() == pytest.approx(largest["relu"].tolist(), rel=1e-9)
    assert largest["silu"].tolist() == pytest.approx(largest["relu"].tolist(), rel=1e-9)


def test_units_at_the_bound_are_counted():
    table = smooth.measure({**TINY, "clamp": 0.05, "activations": ["gelu"]}, CPU)
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
