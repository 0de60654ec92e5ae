"""Expected diagonal: random networks against the formulas, prints marked where off."""

import numpy as np
import torch

from paper.experiments import theory

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


def test_random_networks_agree_with_the_formula_and_not_with_wrong_prints():
    table = theory.measure(SETTINGS, torch.device("cpu"))
    assert table["z"].abs().max() < 4.5
    assert table["z"].std() < 2.0
    off = table[table["printed_off"]]
    assert (off["printed_z"].abs() > 8.0).all()
    np.testing.assert_allclose(off["printed_z"], (off["monte_carlo"] - off["printed"]) / off["standard_error"])
