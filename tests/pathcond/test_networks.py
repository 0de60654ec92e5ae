"""Properties of every network of the table (``tests/cases.py``), on one graph for each."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import pathcond
from tests.cases import CASES, assert_diag_g_follows, assert_function_kept, outputs, random_scales, rescaled
from tests.reference import literal_sweeps, problem_of


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def net(request: pytest.FixtureRequest):
    case, model = request.param, request.param.model()
    state = copy.deepcopy(model.state_dict())
    graph = case.graph
    g = pathcond.compute_diag_g(model, case.input(), graph=graph)
    yield SimpleNamespace(case=case, model=model, x=case.input(), graph=graph, g=g, problem=problem_of(graph, g))
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_units_are_free_or_frozen(net):
    graph, case = net.graph, net.case
    assert (graph.units, graph.frozen_channels) == (case.units, case.frozen), [str(entry) for entry in graph.frozen]
    assert sum(entry.channels for entries in graph.frozen_by_module.values() for entry in entries) == case.frozen
    assert graph.exact_for.modes == ("eval", "train")


def test_any_scales_keep_the_function_on_any_input(net):
    for seed, more in ((1, 0), (2, 0), (3, 2)):
        x = net.case.input(seed, more)
        try:
            outputs(net.model, x, True)
        except (RuntimeError, IndexError):  # the network takes one size of batches only
            assert more
            continue
        assert_function_kept(net.model, x, net.graph)


def test_units_are_independent(net):
    """Scales multiply parameters by exp(-Bu/2), and B has full rank."""
    scaled, found = rescaled(net.model, net.graph), []
    for name in net.g:
        offset = net.graph.params[name].offset if name in net.graph.params else 0.0
        pair = (m.get_parameter(name).detach() + offset for m in (scaled, net.model))
        found.append((next(pair) / next(pair)).log().reshape(-1))
    torch.testing.assert_close(torch.cat(found), -net.problem.matrix @ random_scales(net.graph), rtol=1e-9, atol=1e-9)
    assert net.graph.units == 0 or torch.linalg.matrix_rank(net.problem.matrix) == net.graph.units


def test_diag_g_follows_the_scales(net):
    assert all(bool((t >= 0).all()) and bool(t.isfinite().all()) for t in net.g.values())
    assert_diag_g_follows(net.model, net.x, net.graph, but=net.case.ends)


def test_sweeps_are_the_literal_algorithm(net):
    for sweeps in (1, 10):
        solution = pathcond.solve(net.graph, net.g, sweeps=sweeps)
        torch.testing.assert_close(2 * solution.log_scales, literal_sweeps(net.problem, sweeps), rtol=0, atol=1e-9)
        if net.graph.units:
            assert solution.objective[-1] == pytest.approx(net.problem.objective(2 * solution.log_scales), rel=1e-12)


def test_the_gradient_at_the_optimum_is_zero(net):
    best = pathcond.solve(net.graph, net.g, method="optimum")
    alive = torch.ones(net.graph.units, dtype=torch.bool)
    alive[list(best.dead)] = False
    assert not best.log_scales[~alive].any()
    assert best.result is (pathcond.Result.OPTIMUM if alive.any() else pathcond.Result.NOTHING)
    assert float(net.problem.gradient(2 * best.log_scales)[alive].abs().sum()) <= 1e-9


def gradients_(model: nn.Module, x: tuple[Tensor, ...]) -> None:
    torch.manual_seed(7)
    model.zero_grad()
    model(*x).square().sum().backward()


@pytest.mark.parametrize("objective", ["paths", "norms"])
def test_rescaled_saved_loaded_and_undone_with_the_state_of_adam(net, objective, tmp_path):
    model, x = copy.deepcopy(net.model).eval(), net.x if isinstance(net.x, tuple) else (net.x,)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    gradients_(model, x)
    optimizer.step()
    state, y = copy.deepcopy(optimizer.state_dict()["state"]), outputs(model, x, False)
    few = net.case.units < 0.1 * (net.case.units + net.case.frozen)
    with pytest.warns(pathcond.PathCondWarning, match="moved") if few else nullcontext():
        damping = 0.5 if objective == "paths" else 1.0  # given, as networks with shortcuts would stay as they are
        report = pathcond.rescale_(model, x, objective=objective, damping=damping, optimizer=optimizer, graph=net.graph)
    assert report.units == net.case.units
    assert not model.training
    assert report.moved == int((report.solution.log_scales.abs() > 1e-3).sum())
    assert report.max_log_scale <= (0.75 if objective == "paths" else 1.5) + 1e-9  # half of the bound, or all of it
    assert report.output_change < 1e-9
    assert all(b <= a + 1e-12 * abs(a) for a, b in zip(report.objective, report.objective[1:-1], strict=False))
    assert report.objective[-1] <= report.objective[0]
    torch.testing.assert_close(outputs(model, x, False), y, rtol=1e-9, atol=1e-9)
    gradients_(model, x)  # what Adam would hold had it seen the rescaled model
    for p, held in optimizer.state.items():
        torch.testing.assert_close(held["exp_avg"], 0.1 * p.grad, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(held["exp_avg_sq"], 1e-3 * p.grad**2, rtol=1e-8, atol=1e-10)
    report.save(tmp_path / "scales.safetensors")
    fresh = copy.deepcopy(net.model)
    pathcond.apply_scales_(fresh, pathcond.load_scales(tmp_path / "scales.safetensors"))
    assert all(torch.equal(p, q) for p, q in zip(fresh.parameters(), model.parameters(), strict=True))
    report.undo_(model, optimizer=optimizer)
    for p, q in zip(net.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-15)
    for held, before in zip(optimizer.state.values(), state.values(), strict=True):
        torch.testing.assert_close(held["exp_avg"], before["exp_avg"], rtol=1e-12, atol=1e-15)


def test_every_group_verifies(net, monkeypatch):
    monkeypatch.setattr("pathcond.groups.extract_graph", lambda *_, **__: net.graph)
    groups = pathcond.scale_groups(net.model.eval(), net.x)
    assert sum(group.channels for group in groups.free) == net.case.units
    assert sum(group.channels for group in groups.frozen) == net.case.frozen
    assert all(group.verify() < 1e-12 for group in groups.free)
