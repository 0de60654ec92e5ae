"""Expected diagonal: random networks against the library's diag(G), formulas against both, prints marked where off."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import pathcond
from paper.experiments import theory
from paper.theory import expected_general

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


def test_constant_diagonal_and_rank(table):
    even = table["case"].isin(["constant", "small"])
    assert table.loc[even, ["even_spread", "even_u"]].max().max() < 1e-12
    assert table.loc[~even, ["even_spread", "even_u"]].min().min() > 0.1
    assert set(table.loc[even, "parameters"]) == {64}
    assert set(table.loc[even, "units"]) == {12}
    assert (table["rank"] == table["parameters"] - table["units"]).all()


def test_formula_is_the_general_one(table):
    for (case, a), rows in table.groupby(["case", "a"], dropna=False):
        block = SETTINGS["cases"][case]
        variances = block["variances"] if math.isnan(a) else [a / n for n in block["widths"][:-1]]
        right = expected_general(block["widths"], variances, block["biases"])
        np.testing.assert_allclose(rows["formula"], right.edge + right.bias, rtol=1e-12)


def test_random_networks_agree_with_the_formula_and_not_with_wrong_prints(table):
    assert table["z"].abs().max() < 4.5
    assert table["z"].std() < 2.0
    off = table[table["printed_off"]]
    assert (off["printed_z"].abs() > 8.0).all()
    np.testing.assert_allclose(off["printed_z"], (off["monte_carlo"] - off["printed"]) / off["standard_error"])


def test_prints_are_marked_off_where_the_formulas_differ(table):
    off = table[table["printed_off"]].groupby("case")["layer"].agg(list).to_dict()
    assert off == {
        "varying_no_bias": [1, 2, 3], "small": [0, 1], "small_varying": [1], "large_varying": [1, 2, 3],
        "by_layer": [1, 2],
    }  # fmt: skip
    limits = table.dropna(subset="limit")
    assert set(limits["case"]) == {"small", "small_varying", "large_varying"}
    np.testing.assert_allclose(limits["limit"], limits["formula"], rtol=0.02)
    assert table.query("kind == 'bias'")["printed"].isna().all()
    assert set(table.query("kind == 'bias' or case == 'constant'")["printed_name"]) == {""}


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


def test_standard_error_is_that_of_the_mean(monkeypatch):
    monkeypatch.setattr(theory, "CHUNK", 700)
    network = theory.Network([2, 3, 2], [0.5, 0.4], True)
    means, errors = zip(
        *(theory.monte_carlo(network, 2000, torch.Generator().manual_seed(s)) for s in range(60)), strict=True
    )
    np.testing.assert_allclose(np.std(means, axis=0, ddof=1), np.mean(errors, axis=0), rtol=0.35)
