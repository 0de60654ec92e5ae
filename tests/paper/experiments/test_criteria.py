"""Criteria: values against autograd, minimizers against closed forms and against the library."""

import math

import numpy as np
import pytest
import torch

from paper.cli import PaperError
from paper.experiments import criteria

CPU = torch.device("cpu")
SETTINGS = {"target": 1.0, "lengths": [2, 3, 4], "grid": 41, "log_range": 2.0, "seeds": [0, 1, 2]}


@pytest.fixture(scope="module")
def table():
    return criteria.measure(SETTINGS, CPU)


def test_least_at_balance_but_for_the_weighted_norm(table):
    orbits = table.drop_duplicates(["example", "criterion", "seed"])
    assert orbits["balanced"].abs().min() > 1e-3, "balance must not be a point of the grid"
    off = (orbits["minimiser"] - orbits["balanced"]).to_numpy()
    shift = {"weighted_theta": -math.log(2.0) / 2.0, "weighted_gradient": math.log(2.0) / 2.0}
    np.testing.assert_allclose(off, [shift.get(name, 0.0) for name in orbits["criterion"]], atol=1e-6)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_derivatives_are_those_of_autograd(length):
    theta = torch.randn(length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)

    def loss(point):
        return (point.prod() - 0.7) ** 2 / 2.0

    gradient = torch.autograd.functional.jacobian(loss, theta)
    spectrum = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, theta))
    expected = {
        "theta_norm": theta.norm(), "inverse_norm": (1.0 / theta).norm(), "gradient_norm": gradient.norm(),
        "hessian_trace": spectrum.sum(), "hessian_norm": spectrum.abs().max(),
        "condition": spectrum.abs().max() / spectrum.abs().min(),
    }  # fmt: skip
    for name, value in expected.items():
        assert criteria.CRITERIA[name](theta[None], 0.7).item() == pytest.approx(value.item(), rel=1e-9), name


def test_a_minimum_outside_the_range_is_refused():
    with pytest.raises(PaperError, match="log_range"):
        criteria.measure(SETTINGS | {"log_range": 0.05}, CPU)
