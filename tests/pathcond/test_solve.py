"""The solver: the literal algorithm's iterates, the optimum, and everything that can go wrong with g."""

import math

import pytest
import torch
from torch import nn

import pathcond
from pathcond.sweeps import _recurrence_of_one, recurrence
from tests.cases import BY_NAME, CASES, mlp
from tests.reference import dense_problem, literal_sweeps, positive_root

RESCALED = [c for c in CASES if c.units]


def problem_of(name, **options):
    case = BY_NAME[name]
    model, x = case.model(), case.input()[:1]
    graph = pathcond.extract_graph(model, x, **options)
    return model, x, graph, pathcond.path_magnitudes(model, x, graph=graph)


@pytest.mark.parametrize("case", RESCALED, ids=lambda c: c.name)
def test_iterates_are_the_literal_algorithms(case):
    _, _, graph, g = problem_of(case.name)
    problem = dense_problem(graph, g)
    for sweeps in (1, 2, 10):
        solution = pathcond.solve(graph, g, sweeps=sweeps)
        torch.testing.assert_close(solution.u, literal_sweeps(problem, sweeps), rtol=0, atol=1e-9)
        assert solution.objective[-1] == pytest.approx(problem.objective(solution.u), rel=1e-12)
        assert solution.steps == sweeps
    assert solution.size == problem.p


@pytest.mark.parametrize("options", [{"batchnorm": "exclude"}, {"shortcuts": "freeze"}])
@pytest.mark.parametrize("name", ["mlp_bn", "residual_conv", "stage", "depthwise"])
def test_iterates_with_other_options(name, options):
    _, _, graph, g = problem_of(name, **options)
    u = pathcond.solve(graph, g).u
    torch.testing.assert_close(u, literal_sweeps(dense_problem(graph, g), 10), rtol=0, atol=1e-9)


def test_iterates_of_a_wider_net():
    torch.manual_seed(0)
    model, x = mlp(40, 60, 50, 60, 10).double(), torch.ones(1, 40).double()
    graph = pathcond.extract_graph(model, x)
    g = pathcond.path_magnitudes(model, x)
    u = literal_sweeps(dense_problem(graph, g), 10)
    torch.testing.assert_close(pathcond.solve(graph, g).u, u, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", RESCALED, ids=lambda c: c.name)
def test_objective_never_rises_and_updates_are_reported(case):
    _, _, graph, g = problem_of(case.name)
    solution = pathcond.solve(graph, g, sweeps=30)
    values = solution.objective
    assert len(values) == 31
    assert all(b <= a + 1e-12 * abs(a) for a, b in zip(values, values[1:], strict=False))
    first = pathcond.solve(graph, g, sweeps=1)
    assert first.mean_update[0] == pytest.approx(float(first.u.abs().mean()))
    assert first.mean_update[0] == solution.mean_update[0]


@pytest.mark.parametrize("case", RESCALED, ids=lambda c: c.name)
def test_optimum_and_solving_again(case):
    model, x, graph, g = problem_of(case.name)
    best = pathcond.solve(graph, g, method="optimum")
    assert best.residual <= 1e-10
    assert best.result is pathcond.Result.OPTIMUM
    dense = dense_problem(graph, g)
    b = dense.matrix()
    share = (b @ best.u).exp() * dense.g
    gradient = b.T @ (share / share.sum() - 1 / dense.p)
    assert float(gradient.abs().amax()) <= 1e-9
    pathcond.apply_scales_(model, graph, best.u)
    again = pathcond.path_magnitudes(model, x)
    for method in ("sweeps", "optimum"):
        torch.testing.assert_close(
            pathcond.solve(graph, again, method=method).u, torch.zeros_like(best.u), rtol=0, atol=1e-7
        )


@pytest.mark.parametrize("name", ["mlp", "conv_pools", "stage", "grouped"])
def test_ten_and_ten_sweeps_are_twenty(name):
    model, x, graph, g = problem_of(name)
    first = pathcond.solve(graph, g, sweeps=10).u
    pathcond.apply_scales_(model, graph, first)
    second = pathcond.solve(graph, pathcond.path_magnitudes(model, x), sweeps=10).u
    torch.testing.assert_close(first + second, pathcond.solve(graph, g, sweeps=20).u, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp", "stage", "depthwise"])
@pytest.mark.parametrize("method", ["sweeps", "optimum"])
def test_constant_g_and_constant_factors(name, method):
    _, _, graph, g = problem_of(name)
    flat = {n: torch.full_like(t, 0.7) for n, t in g.items()}
    torch.testing.assert_close(
        pathcond.solve(graph, flat, method=method).u, torch.zeros(graph.units).double(), rtol=0, atol=1e-9
    )
    base = pathcond.solve(graph, g, method=method).u
    for factor in (1e-200, 1e150):
        scaled = {n: t * factor for n, t in g.items()}
        torch.testing.assert_close(pathcond.solve(graph, scaled, method=method).u, base, rtol=0, atol=1e-8)
    shifted = pathcond.PathMagnitudes(g, dict.fromkeys(g, 5000.0))
    torch.testing.assert_close(pathcond.solve(graph, shifted, method=method).u, base, rtol=0, atol=1e-8)


def test_tolerance_stops_early():
    _, _, graph, g = problem_of("mlp")
    solution = pathcond.solve(graph, g, sweeps=1000, tol=1e-6)
    assert solution.result is pathcond.Result.TOLERANCE
    assert solution.steps < 1000
    assert solution.mean_update[-1] * graph.units < 1e-6 <= solution.mean_update[-2] * graph.units


@pytest.mark.parametrize("method", ["sweeps", "optimum"])
@pytest.mark.parametrize("name", ["mlp", "stage", "residual_conv"])
def test_clamp_bounds_u_and_is_optimal_within(name, method):
    _, _, graph, g = problem_of(name)
    free = pathcond.solve(graph, g, method="optimum").u
    bound = float(free.abs().amax()) / 2
    solution = pathcond.solve(graph, g, method=method, sweeps=2000, clamp=bound)
    assert float(solution.u.abs().amax()) <= bound * (1 + 1e-12)
    assert solution.residual <= 1e-9  # of the gradient, less what presses against the bound
    dense = dense_problem(graph, g)
    value = dense.objective(solution.u)
    for h in range(graph.units):
        for step in (-1e-3, 1e-3):
            u = solution.u.clone()
            u[h] = min(max(float(u[h]) + step, -bound), bound)
            assert dense.objective(u) >= value - 1e-9 * abs(value)


def test_dead_units_stay_and_are_named():
    model, x = mlp(3, 4, 5, 2).double(), torch.ones(1, 3).double()
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0  # nothing enters unit 1
        model[4].weight[:, 2] = 0  # nothing leaves unit 4 + 2
    graph = pathcond.extract_graph(model, x)
    g = pathcond.path_magnitudes(model, x)
    for method in ("sweeps", "optimum"):
        solution = pathcond.solve(graph, g, method=method)
        assert solution.dead == (1, 6)
        assert solution.u[[1, 6]].tolist() == [0.0, 0.0]
        assert bool(torch.isfinite(solution.u).all())
    torch.testing.assert_close(
        pathcond.solve(graph, g).u, literal_sweeps(dense_problem(graph, g), 10), rtol=0, atol=1e-9
    )
    report = pathcond.rescale_(model, x)
    assert any("no path" in f.reason and f.units == 2 for f in report.frozen)


def test_all_dead():
    model, x = mlp(3, 4, 2).double(), torch.ones(1, 3).double()
    for p in model.parameters():
        p.data.zero_()
    report = pathcond.rescale_(model, x)
    assert report.solution.dead == (0, 1, 2, 3)
    assert report.output_change == 0.0


def test_no_units():
    model, x, graph, g = problem_of("mlp_tanh")
    for method in ("sweeps", "optimum"):
        solution = pathcond.solve(graph, g, method=method)
        assert solution.result is pathcond.Result.NOTHING
        assert solution.u.shape == (0,)
    assert "0 units" in str(pathcond.rescale_(model, x))


def test_bad_magnitudes_are_named():
    _, _, graph, g = problem_of("mlp")
    for value, message in ((math.nan, "nan"), (math.inf, "inf"), (-1.0, "-1.0")):
        bad = {n: t.clone() for n, t in g.items()}
        bad["2.weight"][0, 0] = value
        with pytest.raises(pathcond.SolveError, match=rf"{message}.*'2\.weight'"):
            pathcond.solve(graph, bad)
    with pytest.raises(pathcond.PathCondError, match="'other'"):
        pathcond.solve(graph, {**g, "other": torch.ones(2)})
    with pytest.raises(pathcond.PathCondError, match=r"expected shape \(4, 3\) for '0\.weight', got \(2,\)"):
        pathcond.solve(graph, {**g, "0.weight": torch.ones(2)})


@pytest.mark.parametrize(
    "options", [{"method": "newton"}, {"sweeps": -1}, {"sweeps": 2.5}, {"tol": -1.0}, {"tol": math.nan}, {"clamp": 0.0}]
)
def test_bad_options(options):
    _, _, graph, g = problem_of("mlp")
    with pytest.raises(pathcond.PathCondError, match=next(iter(options))):
        pathcond.solve(graph, g, **options)


def test_recurrence_finds_the_root():
    """One unit: the change found solves the paper's quadratic, and the short form agrees."""
    for a, p, into, out, rest in ((5.0, 40, 0.2, 0.3, 0.5), (-7.0, 40, 1e-9, 0.6, 0.4), (0.0, 9, 0.5, 0.1, 0.4)):
        root = positive_root(out * (a + p), a * rest, into * (a - p))
        (change,), total = recurrence([a], p, [math.log(into)], [math.log(out)], rest, [(-99.0, 99.0)])
        assert math.exp(change) == pytest.approx(root, rel=1e-12)
        assert total == pytest.approx(rest + out * root + into / root, rel=1e-12)
        if a:
            size = abs(a)
            (part,), short = _recurrence_of_one(size, p, [4 * (p**2 - a**2) * into * out], [0.0], rest)
            part /= 2 * (p - size)
            assert (into / part if a > 0 else part / out) == pytest.approx(root, rel=1e-12)
            assert short == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("case", RESCALED, ids=lambda c: c.name)
def test_the_careful_way_gives_the_same(case, monkeypatch):
    """Plain numbers and logarithms are two ways through the same updates."""
    _, _, graph, g = problem_of(case.name)
    short = pathcond.solve(graph, g)
    monkeypatch.setattr("pathcond.sweeps.FAR", -1.0)
    careful = pathcond.solve(graph, g)
    torch.testing.assert_close(short.u, careful.u, rtol=0, atol=1e-11)
    torch.testing.assert_close(torch.tensor(short.objective), torch.tensor(careful.objective), rtol=1e-12, atol=1e-12)


def regime_net(seed: int, variance: float, alpha: float) -> nn.Module:
    """8 hidden layers, 256 units shared out by a Dirichlet draw, one variance for weights and biases."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch._sample_dirichlet(torch.full((8,), alpha, dtype=torch.float64), generator)
    widths = 1 + (shares * 248).floor().long()
    widths[: 256 - int(widths.sum())] += 1
    model = mlp(32, *widths.tolist(), 32).double()
    for p in model.parameters():
        p.data.normal_(0, math.sqrt(variance), generator=generator)
    return model


@pytest.mark.slow
def test_optimum_of_a_hundred_regime_nets():
    x = torch.ones(1, 32).double()
    count = 0
    for seed in range(20):
        graph = None  # the same for all variances: they have one architecture
        for variance in (1e-6, 1e-4, 1e-3, 1e-1, 10.0):
            model = regime_net(seed, variance, 10 ** (seed % 4 - 1))
            graph = graph or pathcond.extract_graph(model, x)
            solution = pathcond.solve(graph, pathcond.path_magnitudes(model, x, graph=graph), method="optimum")
            assert solution.residual <= 1e-10, (variance, seed)
            count += 1
    assert count == 100


@pytest.mark.slow
@pytest.mark.parametrize("variance", [1e-6, 1e-2, 1.0])
def test_a_thousand_layers(variance):
    """Magnitudes that no float64 holds: sweeps go down, and the optimum is reached."""
    torch.manual_seed(0)
    model = mlp(*[4] * 1001).double()
    for p in model.parameters():
        p.data.normal_(0, math.sqrt(variance))
    x = torch.ones(1, 4).double()
    graph = pathcond.extract_graph(model, x)
    g = pathcond.path_magnitudes(model, x, graph=graph)
    solution = pathcond.solve(graph, g, sweeps=3)
    assert bool(torch.isfinite(solution.u).all())
    assert all(b <= a + 1e-12 * abs(a) for a, b in zip(solution.objective, solution.objective[1:], strict=False))
