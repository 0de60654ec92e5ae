"""The solvers against the literal algorithm, the conditions of an optimum and scipy, for both objectives."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy import optimize

import pathcond
from pathcond.solvers import SolverOptions, balance_norms
from tests.cases import BY_NAME, mlp
from tests.reference import literal_sweeps, problem_of


def of_case(name):
    case = BY_NAME[name]
    return case.graph, pathcond.compute_diag_g(case.model(), case.input(), graph=case.graph)


def random_problem(seed, zeros=0.0, inverse=True):
    """Parameters with random ends: dense, elementwise and vectors; they couple units and inverse scales."""
    generator, groups = torch.Generator().manual_seed(seed), (3, 2, 4)
    most = sum(groups)
    least = -most if inverse else 0
    params, shapes = {}, {"free": (3, 3)}
    for index, kind in enumerate(("dense", "dense", "elementwise", "vector", "one column", "consecutive")):
        row, col = torch.randint(least, most + 1, (2, 5), generator=generator)
        if kind == "consecutive":
            row, col = torch.arange(most + 1), col.abs()
        col = torch.where(torch.isin(-col, row), 0, col)  # no element leads from a unit to its inverse
        name, n = f"{index}.{kind}", len(row)
        col_axis = {"elementwise": col[:, None, None], "one column": col[0]}.get(kind, col[None, :, None])
        if kind == "vector":
            params[name], shapes[name] = pathcond.ParamScales(row, torch.zeros(1, dtype=torch.int64)), (n,)
        else:
            params[name] = pathcond.ParamScales(row[:, None, None], col_axis)
            shapes[name] = (n, 5, 2)
    graph = pathcond.ScaleGraph(
        units=most, layers={}, groups=groups, params=params, shapes=shapes, frozen=(), notes=(),
        exact_for=pathcond.ExactFor(("eval", "train"), 1), options={}, frozen_by_module={}, trace=None,
    )  # fmt: skip
    entries = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    return graph, {n: (1.5 * t).exp() * (torch.rand(t.shape, generator=generator) >= zeros) for n, t in entries.items()}


PROBLEMS = {
    **{f"inverse {seed}": lambda seed=seed: random_problem(seed) for seed in range(3)},
    "plain": lambda: random_problem(3, inverse=False),
    "zeros": lambda: random_problem(1, 0.7),
    **{name: lambda name=name: of_case(name) for name in ("mlp", "stage", "depthwise", "residual_conv")},
}


@pytest.fixture(params=PROBLEMS)
def given(request):
    graph, g = PROBLEMS[request.param]()
    return graph, g, problem_of(graph, g)


@pytest.mark.parametrize("method", ["sweeps", "optimum"])
def test_constant_g_and_constant_factors(given, method):
    graph, g, _ = given
    flat = {n: torch.full_like(t, 0.7) for n, t in g.items()}
    assert float(pathcond.solve(graph, flat, method=method).log_scales.abs().amax()) < 1e-9
    base = pathcond.solve(graph, g, method=method).log_scales
    for other in (
        {n: t * 1e-200 for n, t in g.items()},
        {n: t * 1e150 for n, t in g.items()},
        pathcond.DiagG(g, dict.fromkeys(g, 5000.0)),
    ):
        torch.testing.assert_close(pathcond.solve(graph, other, method=method).log_scales, base, rtol=0, atol=1e-8)


def test_iterates_are_the_literal_algorithms(given):
    graph, g, problem = given
    for sweeps in (1, 2, 10):
        solution = pathcond.solve(graph, g, sweeps=sweeps)
        torch.testing.assert_close(2 * solution.log_scales, literal_sweeps(problem, sweeps), rtol=0, atol=1e-9)
        assert solution.objective[-1] == pytest.approx(problem.objective(2 * solution.log_scales), rel=1e-12)
    damped = pathcond.solve(graph, g, damping=0.5)
    assert torch.equal(damped.log_scales, 0.5 * solution.log_scales)
    assert damped.objective[-1] == pytest.approx(problem.objective(2 * damped.log_scales), rel=1e-12)
    bound = float(solution.log_scales.abs().amax()) / 2
    clamped = pathcond.solve(graph, g, sweeps=4, clamp=bound)
    torch.testing.assert_close(2 * clamped.log_scales, literal_sweeps(problem, 4, 2 * bound), rtol=0, atol=1e-9)


def test_the_optimum_within_a_bound_and_beside_units_that_stay(given):
    """The gradient is zero but for units at the bound, where it presses outward; many sweeps end there too."""
    graph, g, problem = given
    bound = float(pathcond.solve(graph, g, method="optimum").log_scales.abs().amax()) / 2
    half = torch.arange(graph.units) % 2 == 0
    for clamp, fixed, method in (*product((None, bound), (None, half), ["optimum"]), (bound, None, "sweeps")):
        found = pathcond.solve(graph, g, method=method, sweeps=300, clamp=clamp, fixed=fixed)
        u, free = found.log_scales, torch.ones(graph.units, dtype=torch.bool) if fixed is None else ~fixed
        free[list(found.dead)] = False
        assert not u[~free].any()
        at_bound = u.abs() > (clamp or math.inf) * (1 - 1e-12)
        assert float(u.abs().amax()) <= (clamp or math.inf) * (1 + 1e-12)
        assert found.clamped == int(at_bound.sum())
        assert found.clamped > 0 or clamp is None or fixed is not None
        gradient = problem.gradient(2 * u)
        assert float(torch.where(at_bound, (gradient * u.sign()).clamp(min=0), gradient)[free].abs().amax()) <= 1e-9
        assert found.residual <= 1e-9
        if method == "optimum":
            assert found.result is pathcond.Result.OPTIMUM
            assert found.steps < 20
    for wrong in (half[1:], [True]):
        with pytest.raises(pathcond.PathCondError, match="expected fixed to be a mask"):
            pathcond.solve(graph, g, fixed=wrong)


def test_dead_units_stay_and_are_named():
    model, x = mlp(3, 4, 5, 2).double(), torch.ones(1, 3).double()
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0  # nothing enters unit 1
        model[4].weight[:, 2] = 0  # nothing leaves unit 4 + 2
    graph = pathcond.extract_graph(model, x)
    g = pathcond.compute_diag_g(model, x)
    for method in ("sweeps", "optimum"):
        solution = pathcond.solve(graph, g, method=method)
        assert solution.dead == (1, 6)
        assert solution.log_scales[[1, 6]].tolist() == [0.0, 0.0]
        assert bool(torch.isfinite(solution.log_scales).all())
    expected = literal_sweeps(problem_of(graph, g), 10)
    torch.testing.assert_close(2 * pathcond.solve(graph, g).log_scales, expected, rtol=0, atol=1e-9)
    assert pathcond.rescale_(model, x).no_path == 2


def test_bad_entries_are_named():
    graph, g = of_case("mlp")
    for value, message in ((math.nan, "nan"), (math.inf, "inf"), (-1.0, "-1.0")):
        bad = {n: t.clone() for n, t in g.items()}
        bad["2.weight"][0, 0] = value
        with pytest.raises(pathcond.SolveError, match=rf"{message}.*'2\.weight'"):
            pathcond.solve(graph, bad)
    with pytest.raises(pathcond.PathCondError, match="'other'"):
        pathcond.solve(graph, {**g, "other": torch.ones(2)})
    with pytest.raises(pathcond.PathCondError, match=r"expected shape \(4, 3\) for '0\.weight', got \(2,\)"):
        pathcond.solve(graph, {**g, "0.weight": torch.ones(2)})


@pytest.mark.parametrize("clamp", [None, 0.2])
def test_the_least_norms_are_scipy_s(given, clamp):
    graph, squares, problem = given
    weights = {name: -t.sqrt() for name, t in squares.items()}
    b, w2 = problem.matrix.numpy(), problem.g.numpy()
    found = balance_norms(graph, weights, SolverOptions(method="optimum", clamp=clamp))

    def value_and_gradient(u):
        terms = w2 * np.exp(-b @ u)
        return math.log(terms.sum()), -b.T @ terms / terms.sum()

    limit = math.inf if clamp is None else 2 * clamp
    bounds = [(0.0, 0.0) if h in found.dead else (-limit, limit) for h in range(graph.units)]
    options = {"ftol": 1e-15, "gtol": 1e-9}
    best = optimize.minimize(
        value_and_gradient, [0.0] * graph.units, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    assert found.objective[0] == pytest.approx(float(w2.sum()))
    assert math.log(found.objective[-1]) == pytest.approx(best.fun, abs=1e-9)
    torch.testing.assert_close(2 * found.log_scales, torch.from_numpy(best.x), rtol=0, atol=1e-4)
    swept, damped = (balance_norms(graph, weights, SolverOptions(clamp=clamp, damping=d)) for d in (1.0, 0.5))
    assert torch.equal(damped.log_scales, 0.5 * swept.log_scales)
    assert swept.objective[-1] >= found.objective[-1] * (1 - 1e-9)
    assert all(b <= a * (1 + 1e-12) for a, b in zip(swept.objective, swept.objective[1:], strict=False))


@pytest.mark.parametrize("exponent", [12, 70])
def test_magnitudes_far_apart(exponent):
    """By least norms; the optimum of the path objective, of which ten sweeps are far, as they are relative."""
    model, x = mlp(3, 4, 2).double(), torch.ones(2, 3).double()
    with torch.no_grad():
        model[0].weight.mul_(10.0**-exponent)
        model[2].weight.mul_(10.0**exponent)
    graph, before = pathcond.extract_graph(model, x), model(x)
    g = pathcond.compute_diag_g(model, x, graph=graph)
    best = pathcond.solve(graph, g, method="optimum").log_scales
    if exponent == 70:
        assert float(best.abs().amax()) == pytest.approx(exponent / 2 * math.log(10), rel=0.01)
    torch.testing.assert_close(pathcond.solve(graph, g, sweeps=300).log_scales, best, rtol=1e-9, atol=0)
    report = pathcond.rescale_(model, x, objective="norms", clamp=None)
    assert report.max_log_scale == pytest.approx(exponent * math.log(10), rel=0.1)
    assert report.solution.residual < 1e-9
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=0)
    pathcond.apply_scales_(model, graph, best)
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=0)
