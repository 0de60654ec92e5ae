"""Expected diagonal: random networks against the library's diag(G), formulas against both, prints marked where off."""

import numpy as np
import pytest
import torch
from torch import nn

import pathcond
from paper.experiments import theory

CPU = torch.device("cpu")
UNEVEN, EVEN = [3, 8, 2, 6, 4], [4, 4, 4, 4, 4]
SETTINGS = {
    "draws": 25_000,
    "seeds": [0],
    "cases": {
        "constant": {"widths": EVEN, "a": [0.1, 1.0], "biases": True},
        "varying_no_bias": {"widths": UNEVEN, "a": [2.0], "biases": False},
        "small": {"widths": EVEN, "a": [0.001], "biases": True},
        "small_varying": {"widths": UNEVEN, "a": [0.001], "biases": True},
        "large_varying": {"widths": UNEVEN, "a": [1000.0], "biases": True},
        "by_layer": {"widths": UNEVEN, "variances": [0.2, 0.05, 0.6, 0.1], "biases": True},
    },
}


@pytest.fixture(scope="module")
def table():
    return theory.measure(SETTINGS, CPU)


def test_random_networks_agree_with_the_formula_and_not_with_wrong_prints(table):
    assert table["z"].abs().max() < 4.5
    assert table["z"].std() < 2.0
    off = table[table["printed_off"]]
    assert (off["printed_z"].abs() > 8.0).all()
    np.testing.assert_allclose(off["printed_z"], (off["monte_carlo"] - off["printed"]) / off["standard_error"])


@pytest.mark.parametrize("biases", [True, False])
def test_entries_are_those_of_the_library(biases):
    network = theory.Network([3, 5, 2, 4], [0.3, 0.7, 0.2], biases)
    weights, shifts = theory.draw_squares(network, 2, torch.Generator().manual_seed(0))
    found = theory.average_entries(weights, shifts, biases)
    for draw in range(2):
        layers = []
        for k, (weight, shift) in enumerate(zip(weights, [*shifts, None], strict=True)):
            layer = nn.Linear(weight.shape[2], weight.shape[1], bias=biases and shift is not None, dtype=torch.float64)
            layer.weight.data.copy_(weight[draw].sqrt())
            if layer.bias is not None:
                layer.bias.data.copy_(shift[draw].sqrt())
            layers += [layer, nn.ReLU()] if k < 2 else [layer]
        g = pathcond.compute_diag_g(nn.Sequential(*layers), torch.ones(1, 3, dtype=torch.float64))
        kinds = ("weight", "bias") if biases else ("weight",)
        expected = [values.mean().item() for kind in kinds for name, values in g.items() if name.endswith(kind)]
        np.testing.assert_allclose(found[draw], expected, rtol=1e-12)
