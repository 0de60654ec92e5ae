"""Criteria: values against autograd, minimizers against closed forms and against the library."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import pathcond
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


@pytest.mark.parametrize("length", [2, 3, 4])
def test_pathcond_is_the_objective_of_the_library(length):
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(length)))
    example = torch.ones(1, 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(length, generator=generator, dtype=torch.float64)
    for layer, value in zip(model, theta, strict=True):
        nn.init.constant_(layer.weight, float(value))
    graph = pathcond.extract_graph(model, example)
    g = pathcond.compute_diag_g(model, example, graph=graph)
    solution = pathcond.solve(graph, g, method="optimum")
    logs = torch.cat((solution.log_scales, torch.zeros(1))) - torch.cat((torch.zeros(1), solution.log_scales))
    rescaled = theta * logs.exp()
    start, end = (criteria.CRITERIA["pathcond"](point[None], 1.0).log().item() for point in (theta, rescaled))
    assert (end - start) * length == pytest.approx(solution.objective[-1] - solution.objective[0], abs=1e-8)
    np.testing.assert_allclose(rescaled.abs(), theta.abs().log().mean().exp(), rtol=1e-6)


def test_a_minimum_outside_the_range_is_refused():
    with pytest.raises(PaperError, match="log_range"):
        criteria.measure(SETTINGS | {"log_range": 0.05}, CPU)
