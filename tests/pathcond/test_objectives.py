"""The objectives `norms` and `ranges`: the same function, the minimum that scipy finds, equal ranges, errors."""

import math

import pytest
import torch
from scipy import optimize
from torch import Tensor, nn

import pathcond
from pathcond.solvers import balance_norms, equalize_ranges
from tests.cases import BY_NAME, CASES, mlp, outputs
from tests.pathcond.test_solvers import SIGNED, random_problem, scores_problem
from tests.reference import signed_matrix

OBJECTIVES = ("norms", "ranges")
OBJECTIVE = pytest.mark.parametrize("objective", OBJECTIVES)
EXACT = {"method": "optimum", "clamp": None}


def weights_of(graph, seed=5):
    """Random weights of both signs."""
    source = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=source, dtype=torch.float64) for name, shape in graph.shapes.items()}


def imbalance(graph, weights, u) -> Tensor:
    """Log of the largest weight that enters each unit over the largest that leaves it, element by element."""
    b, w = signed_matrix(graph, weights)
    logs = w.abs().log() - b @ u / 2
    ends = [torch.where(side, logs[:, None], -math.inf).amax(0) for side in (b < 0, b > 0)]
    return ends[0] - ends[1]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@OBJECTIVE
def test_every_case_keeps_its_function(case, objective):
    model, x = case.model(), case.input()
    before = [outputs(model, x, training) for training in (False, True)]
    report = pathcond.rescale_(model, x, objective=objective)
    assert (report.units, report.statistics) == (case.units, "unused")
    assert report.max_log_scale <= 1.5 + 1e-9
    assert report.output_change < 1e-9
    assert report.objective_after <= report.objective_before
    assert set(report.seconds) == {"graph", "solve", "check", "apply"}
    for training, wanted in zip((False, True), before, strict=True):
        torch.testing.assert_close(outputs(model, x, training), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp", "mlp_bn", "residual_mlp", "conv_pools", "depthwise", "tokens"])
def test_norms_are_where_enorm_stays(name):
    case = BY_NAME[name]
    model, x = case.model(), case.input()
    before = pathcond.ENorm(model, x).objective()
    report = pathcond.rescale_(model, x, objective="norms", **EXACT)
    enorm = pathcond.ENorm(model, x)
    assert report.objective_before == pytest.approx(float(before), rel=1e-12)
    assert report.objective_after == pytest.approx(float(enorm.objective()), rel=1e-12)
    assert report.residual <= 1e-10
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    enorm.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), weights[name], rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", [name for name in SIGNED if "zeros" not in name])
@pytest.mark.parametrize("clamp", [None, 0.2])
def test_the_least_norms_are_scipy_s(name, clamp):
    graph, _ = SIGNED[name]()
    weights = weights_of(graph)
    b, w = (t.numpy() for t in signed_matrix(graph, weights))

    def value_and_gradient(u):
        import numpy as np

        terms = w**2 * np.exp(-b @ u)
        return math.log(terms.sum()), -b.T @ terms / terms.sum()

    bounds = None if clamp is None else [(-2 * clamp, 2 * clamp)] * graph.units
    options = {"ftol": 1e-15, "gtol": 1e-9}
    best = optimize.minimize(
        value_and_gradient, [0.0] * graph.units, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    found = balance_norms(graph, weights, method="optimum", clamp=clamp)
    assert found.objective[0] == pytest.approx(float((w**2).sum()))
    assert math.log(found.objective[-1]) == pytest.approx(best.fun, abs=1e-9)
    torch.testing.assert_close(found.u, torch.from_numpy(best.x), rtol=0, atol=1e-4)
    swept = balance_norms(graph, weights, sweeps=10, clamp=clamp)
    assert swept.objective[-1] >= found.objective[-1] * (1 - 1e-9)
    assert all(b <= a * (1 + 1e-12) for a, b in zip(swept.objective, swept.objective[1:], strict=False))


def test_ranges_of_a_chain_are_equal():
    torch.manual_seed(0)
    model, x = mlp(6, 8, 7, 9, 3).double(), torch.randn(4, 6).double()
    report = pathcond.rescale_(model, x, objective="ranges", **EXACT)
    assert report.result is pathcond.Result.TOLERANCE
    layers = [layer.weight.detach().abs() for layer in model if isinstance(layer, nn.Linear)]
    for first, second in zip(layers, layers[1:], strict=False):
        torch.testing.assert_close(first.amax(1), second.amax(0), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", SIGNED)
def test_ranges_are_equal_on_any_graph(name):
    graph, zeros = SIGNED[name]()
    weights = {key: torch.where(zeros[key] > 0, w, 0.0) for key, w in weights_of(graph).items()}
    found = equalize_ranges(graph, weights, method="optimum")
    dead = torch.zeros(graph.units, dtype=torch.bool)
    dead[list(found.dead)] = True
    left = imbalance(graph, weights, found.u)
    assert torch.equal(dead, ~torch.isfinite(left))
    assert not found.u[dead].any()
    assert found.result is pathcond.Result.TOLERANCE
    assert float(left[~dead].abs().amax()) <= 1e-8
    before = imbalance(graph, weights, torch.zeros(graph.units, dtype=torch.float64))
    assert found.objective[0] == pytest.approx(float(before[~dead].abs().amax()))


def test_one_unit_is_equalised_by_hand():
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[8.0, -2.0]]))
        model[0].bias.fill_(100.0)  # scaled, but no part of the range
        model[2].weight.copy_(torch.tensor([[-0.5], [0.1]]))
    report = pathcond.rescale_(model, torch.ones(1, 2).double(), objective="ranges")
    assert report.scales["0"].tolist() == pytest.approx([0.25])
    assert model[0].bias.tolist() == pytest.approx([25.0])
    assert model[0].weight.tolist()[0] == pytest.approx([2.0, -0.5])
    assert model[2].weight.flatten().tolist() == pytest.approx([-2.0, 0.4])
    norms = pathcond.rescale_(model, torch.ones(1, 2).double(), objective="norms", clamp=None)
    assert norms.scales["0"].item() == pytest.approx((4.16 / 4.25) ** 0.25)


def test_ranges_at_the_bound_and_stopped_early():
    graph, _ = random_problem(0)
    weights = {name: w * (50.0 if name.startswith("3") else 1.0) for name, w in weights_of(graph).items()}
    found = equalize_ranges(graph, weights, method="optimum", clamp=0.1)
    assert 0 < found.clamped == int((found.u.abs() > 0.2 - 1e-9).sum())
    assert float(found.u.abs().amax()) <= 0.2
    assert found.residual <= 1e-8 < found.objective[-1]
    assert equalize_ranges(graph, weights, sweeps=3).result is pathcond.Result.SWEEPS
    assert equalize_ranges(graph, weights, sweeps=200, tol=1e-3).steps < 200


@pytest.mark.parametrize("name", SIGNED)
def test_damped_norms_and_ranges(name):
    graph, zeros = SIGNED[name]()
    weights = {key: torch.where(zeros[key] > 0, w, 0.0) for key, w in weights_of(graph).items()}
    for solver in (balance_norms, equalize_ranges):
        full, found = (solver(graph, weights, clamp=0.2, damping=damping) for damping in (1.0, 0.4))
        assert torch.equal(found.u, 0.4 * full.u)
        assert found.objective[:-1] == full.objective
        assert found.clamped == full.clamped
        if solver is balance_norms:
            b, w = signed_matrix(graph, weights)
            assert found.objective[-1] == pytest.approx(float((w**2 * (-b @ found.u).exp()).sum()))
        else:
            left = imbalance(graph, weights, found.u)
            assert found.objective[-1] == pytest.approx(float(left[left.isfinite()].abs().amax()))
            assert found.residual == found.objective[-1]  # no unit is at the bound any more


def test_queries_and_keys():
    model, x, graph = scores_problem()
    before = model(x)
    weights = {name: p.detach() for name, p in model.named_parameters() if "bias" not in name}
    for solver in (balance_norms, equalize_ranges):
        u = solver(graph, weights, method="optimum").u
        pathcond.apply_scales_(model, graph, u)
        torch.testing.assert_close(model(x), before, rtol=1e-12, atol=0)
        torch.testing.assert_close(solver(graph, weights, method="optimum").u, torch.zeros_like(u), rtol=0, atol=1e-5)


@OBJECTIVE
def test_units_without_weights_on_one_side_stay(objective):
    model, x = mlp(3, 4, 2).double(), torch.ones(2, 3).double()
    with torch.no_grad():
        model[0].weight[1] = 0.0
    report = pathcond.rescale_(model, x, objective=objective)
    assert (report.no_path, report.solution.dead, report.moved) == (1, (1,), 3)
    with torch.no_grad():
        model[0].weight.zero_()
        model[2].weight.zero_()
    report = pathcond.rescale_(model, x, objective=objective)
    assert (report.result, report.no_path, report.moved) == (pathcond.Result.NOTHING, 4, 0)


@OBJECTIVE
def test_magnitudes_far_apart(objective):
    model, x = mlp(3, 4, 2).double(), torch.ones(2, 3).double()
    with torch.no_grad():
        model[0].weight.mul_(1e-200)
        model[2].weight.mul_(1e200)
    report = pathcond.rescale_(model, x, objective=objective, **EXACT)
    assert report.max_log_scale == pytest.approx(200 * math.log(10), rel=0.01)
    assert report.output_change < 1e-9


@OBJECTIVE
def test_during_training(objective):
    model, x = mlp(3, 8, 2).double(), torch.randn(5, 3).double()
    schedule = pathcond.Teleport(model, x, every=1, objective=objective)
    assert schedule.step().moved
    assert schedule.step().moved == 0


@OBJECTIVE
def test_weights_must_be_finite(objective):
    model = mlp(3, 4, 2).double()
    with torch.no_grad():
        model[2].weight[0, 1] = math.nan
    with pytest.raises(pathcond.PathCondError, match=r"1 NaN or infinite entries of 8 in '2.weight'"):
        pathcond.rescale_(model, torch.ones(2, 3).double(), objective=objective, check=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "l2"}, "expected objective to be .*paths.*norms.*ranges.*, got 'l2'"),
        ({"objective": "norms", "statistics": "input"}, "expected no statistics with objective='norms', got 'input'"),
        ({"objective": "ranges", "sweeps": -1}, "expected sweeps to be an integer >= 0, got -1"),
        ({"objective": "norms", "clamp": 0}, "expected clamp to be positive or None, got 0"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(pathcond.PathCondError, match=said):
        pathcond.rescale_(mlp(3, 4, 2), torch.ones(2, 3), **options)
