"""The solvers against the literal algorithm, dense references and scipy, for both objectives."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

import pathcond
from pathcond.solvers import SolverOptions, balance_norms
from tests.cases import BY_NAME, mlp
from tests.reference import dense_problem, literal_sweeps, signed_matrix, signed_sweeps


def problem_of(name):
    case = BY_NAME[name]
    return case.graph, pathcond.compute_diag_g(case.model(), case.input(), graph=case.graph)


@pytest.mark.parametrize("name", ["mlp", "stage", "depthwise"])
@pytest.mark.parametrize("method", ["sweeps", "optimum"])
def test_constant_g_and_constant_factors(name, method):
    graph, g = problem_of(name)
    flat = {n: torch.full_like(t, 0.7) for n, t in g.items()}
    torch.testing.assert_close(
        pathcond.solve(graph, flat, method=method).log_scales, torch.zeros(graph.units).double(), rtol=0, atol=1e-9
    )
    base = pathcond.solve(graph, g, method=method).log_scales
    for factor in (1e-200, 1e150):
        scaled = {n: t * factor for n, t in g.items()}
        torch.testing.assert_close(pathcond.solve(graph, scaled, method=method).log_scales, base, rtol=0, atol=1e-8)
    shifted = pathcond.DiagG(g, dict.fromkeys(g, 5000.0))
    torch.testing.assert_close(pathcond.solve(graph, shifted, method=method).log_scales, base, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "method"), [("mlp", "sweeps"), ("stage", "optimum"), ("residual_conv", "optimum")])
def test_clamp_bounds_u_and_is_optimal_within(name, method):
    graph, g = problem_of(name)
    free = pathcond.solve(graph, g, method="optimum").log_scales
    bound = float(free.abs().amax()) / 2
    solution = pathcond.solve(graph, g, method=method, sweeps=2000, clamp=bound)
    assert float(solution.log_scales.abs().amax()) <= bound * (1 + 1e-12)
    assert solution.residual <= 1e-9  # of the gradient, less what presses against the bound
    assert solution.clamped == int((solution.log_scales.abs() > bound * (1 - 1e-9)).sum()) > 0
    assert pathcond.solve(graph, g, method=method, clamp=100.0).clamped == 0
    dense = dense_problem(graph, g)
    value = dense.objective(2 * solution.log_scales)
    for h in range(graph.units):
        for step in (-1e-3, 1e-3):
            u = 2 * solution.log_scales
            u[h] = min(max(float(u[h]) + step, -2 * bound), 2 * bound)
            assert dense.objective(u) >= value - 1e-9 * abs(value)


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
    torch.testing.assert_close(
        2 * pathcond.solve(graph, g).log_scales, literal_sweeps(dense_problem(graph, g), 10), rtol=0, atol=1e-9
    )
    assert pathcond.rescale_(model, x).no_path == 2


def test_bad_entries_are_named():
    graph, g = problem_of("mlp")
    for value, message in ((math.nan, "nan"), (math.inf, "inf"), (-1.0, "-1.0")):
        bad = {n: t.clone() for n, t in g.items()}
        bad["2.weight"][0, 0] = value
        with pytest.raises(pathcond.SolveError, match=rf"{message}.*'2\.weight'"):
            pathcond.solve(graph, bad)
    with pytest.raises(pathcond.PathCondError, match="'other'"):
        pathcond.solve(graph, {**g, "other": torch.ones(2)})
    with pytest.raises(pathcond.PathCondError, match=r"expected shape \(4, 3\) for '0\.weight', got \(2,\)"):
        pathcond.solve(graph, {**g, "0.weight": torch.ones(2)})


@pytest.mark.parametrize("variance", [1e-6, 1e2])
def test_hundreds_of_layers(variance):
    """Path sums that no float64 holds: the objective falls from sweep to sweep."""
    torch.manual_seed(0)
    model = mlp(*[4] * 151).double()
    for p in model.parameters():
        p.data.normal_(0, math.sqrt(variance))
    x = torch.ones(1, 4).double()
    graph = pathcond.extract_graph(model, x)
    g = pathcond.compute_diag_g(model, x, graph=graph)
    solution = pathcond.solve(graph, g, sweeps=3)
    assert bool(torch.isfinite(solution.log_scales).all())
    assert all(b <= a + 1e-12 * abs(a) for a, b in zip(solution.objective, solution.objective[1:], strict=False))


# ---- units with elements that carry the inverse of their scale, or a power of it


def random_g(graph, generator):
    return {
        name: (1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)).exp()
        for name, shape in graph.shapes.items()
    }


def make_graph(groups, params, shapes):
    return pathcond.ScaleGraph(
        units=sum(groups), layers={}, groups=groups, params=params, shapes=shapes, frozen=(), notes=(),
        exact_for=pathcond.ExactFor(("eval", "train"), 1), options={}, frozen_by_module={}, trace=None,
    )  # fmt: skip


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
        col_axis = {"elementwise": col[:, None, None], "one column": col[:1, None, None]}.get(kind, col[None, :, None])
        if kind == "vector":
            params[name], shapes[name] = pathcond.ParamScales(row, torch.zeros(1, dtype=torch.int64)), (n,)
        else:
            params[name] = pathcond.ParamScales(row[:, None, None], col_axis)
            shapes[name] = (n, 5, 2)
    graph = make_graph(groups, params, shapes)
    g = random_g(graph, generator)
    return graph, {name: t * (torch.rand(t.shape, generator=generator) >= zeros) for name, t in g.items()}


SIGNED = {
    **{f"inverse {seed}": lambda seed=seed: random_problem(seed) for seed in range(3)},
    "plain": lambda: random_problem(3, inverse=False),
    "zeros": lambda: random_problem(1, 0.7),
}


@pytest.fixture(params=SIGNED)
def signed(request):
    graph, g = SIGNED[request.param]()
    return graph, g, *signed_matrix(graph, g)


def value_of(b, g, u):
    return float(len(g) * ((b @ u).exp() * g).sum().log() - (b @ u).sum())


def test_signed_iterates_are_the_literal_algorithms(signed):
    graph, g, b, flat = signed
    for sweeps in (1, 2, 10):
        solution = pathcond.solve(graph, g, sweeps=sweeps)
        torch.testing.assert_close(2 * solution.log_scales, signed_sweeps(b, flat, sweeps), rtol=0, atol=1e-9)
        assert solution.objective[-1] == pytest.approx(value_of(b, flat, (2 * solution.log_scales)), rel=1e-12)
    damped = pathcond.solve(graph, g, damping=0.5)
    assert torch.equal(damped.log_scales, 0.5 * solution.log_scales)
    assert damped.objective[-1] == pytest.approx(value_of(b, flat, (2 * damped.log_scales)), rel=1e-12)
    bound = float(solution.log_scales.abs().amax()) / 2
    clamped = pathcond.solve(graph, g, sweeps=4, clamp=bound)
    torch.testing.assert_close(2 * clamped.log_scales, signed_sweeps(b, flat, 4, 2 * bound), rtol=0, atol=1e-9)
    assert clamped.clamped == int((clamped.log_scales.abs() > bound * (1 - 1e-12)).sum()) > 0


def test_signed_optimum(signed):
    graph, g, b, flat = signed
    best = pathcond.solve(graph, g, method="optimum")
    assert best.result is pathcond.Result.OPTIMUM
    assert best.steps < 20
    alive = torch.ones(graph.units, dtype=torch.bool)
    alive[list(best.dead)] = False
    share = (b @ (2 * best.log_scales)).exp() * flat
    assert float((b.T @ (share / share.sum() - 1 / len(flat)))[alive].abs().amax()) <= 1e-9
    assert bool((best.log_scales[~alive] == 0).all())


# ---- norms, and units that stay


def weights_of(graph, seed=5):
    """Random weights of both signs."""
    source = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=source, dtype=torch.float64) for name, shape in graph.shapes.items()}


def with_zeros(name):
    """A graph, and weights that are zero where the problem has zeros."""
    graph, g = SIGNED[name]()
    return graph, {key: torch.where(g[key] > 0, w, 0.0) for key, w in weights_of(graph).items()}


@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("clamp", [None, 0.2])
def test_the_least_norms_are_scipy_s(name, clamp):
    graph, weights = with_zeros(name)
    b, w = (t.numpy() for t in signed_matrix(graph, weights))
    found = balance_norms(graph, weights, SolverOptions(method="optimum", clamp=clamp))

    def value_and_gradient(u):
        terms = w**2 * np.exp(-b @ u)
        return math.log(terms.sum()), -b.T @ terms / terms.sum()

    limit = math.inf if clamp is None else 2 * clamp
    bounds = [(0.0, 0.0) if h in found.dead else (-limit, limit) for h in range(graph.units)]
    options = {"ftol": 1e-15, "gtol": 1e-9}
    best = optimize.minimize(
        value_and_gradient, [0.0] * graph.units, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    assert found.objective[0] == pytest.approx(float((w**2).sum()))
    assert math.log(found.objective[-1]) == pytest.approx(best.fun, abs=1e-9)
    torch.testing.assert_close(2 * found.log_scales, torch.from_numpy(best.x), rtol=0, atol=1e-4)
    swept = balance_norms(graph, weights, SolverOptions(sweeps=10, clamp=clamp))
    assert swept.objective[-1] >= found.objective[-1] * (1 - 1e-9)
    assert all(b <= a * (1 + 1e-12) for a, b in zip(swept.objective, swept.objective[1:], strict=False))


@pytest.mark.parametrize("name", SIGNED)
def test_fixed_units_stay_and_the_others_are_at_their_optimum(name):
    graph, g = SIGNED[name]()
    fixed = torch.arange(graph.units) % 2 == 0
    b, flat = signed_matrix(graph, g)
    for method in ("sweeps", "optimum"):
        found = pathcond.solve(graph, g, method=method, fixed=fixed)
        assert not found.log_scales[fixed].any()
        share = (b @ (2 * found.log_scales)).exp() * flat
        free = ~fixed
        free[list(found.dead)] = False
        gradient = (b.T @ (share / share.sum() - 1 / len(flat)))[free]
        assert method == "sweeps" or not len(gradient) or float(gradient.abs().amax()) <= 1e-8
    with pytest.raises(pathcond.PathCondError, match="expected fixed to be a mask"):
        pathcond.solve(graph, g, fixed=fixed[1:])


def far_apart(exponent):
    model, x = mlp(3, 4, 2).double(), torch.ones(2, 3).double()
    with torch.no_grad():
        model[0].weight.mul_(10.0**-exponent)
        model[2].weight.mul_(10.0**exponent)
    return model, x


@pytest.mark.parametrize("exponent", [12, 200])
def test_magnitudes_far_apart(exponent):
    model, x = far_apart(exponent)
    report = pathcond.rescale_(model, x, objective="norms", clamp=None)
    assert report.max_log_scale == pytest.approx(exponent * math.log(10), rel=0.1)
    assert report.solution.residual < 1e-9
    assert report.output_change < 1e-9


def test_optimum_of_magnitudes_far_apart():
    # A sweep lowers each unit's share of the sum only relative to the other units, so ten sweeps are far from it.
    model, x = far_apart(200)
    graph, before = pathcond.extract_graph(model, x), model(x)
    g = pathcond.compute_diag_g(model, x, graph=graph)
    best = pathcond.solve(graph, g, method="optimum").log_scales
    assert float(best.abs().amax()) == pytest.approx(100 * math.log(10), rel=0.01)
    torch.testing.assert_close(pathcond.solve(graph, g, sweeps=300).log_scales, best, rtol=1e-9, atol=0)
    pathcond.apply_scales_(model, graph, best)
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=0)
