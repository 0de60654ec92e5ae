"""The one call: what it does by default, what it reports, what it leaves alone."""

import copy
import doctest
import importlib
import io
import pickle
import pkgutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathcond
from tests.cases import BY_NAME, Lambda, mlp, outputs
from tests.reference import problem_of
from tests.steps import rescale_by_steps


def test_sweeps_after_sweeps_are_more_sweeps():
    """The objective of the rescaled model is the one that the solver had: nothing drifts when calls are repeated."""
    case = BY_NAME["mlp"]
    model, x, graph = case.model(), case.input(), case.graph
    twenty = pathcond.solve(graph, pathcond.compute_diag_g(model, x, graph=graph), sweeps=20)
    found = torch.zeros_like(twenty.log_scales)
    schedule = pathcond.Teleport(model, x, every=1, sweeps=5, clamp=None, damping=1.0, graph=graph)
    for _ in range(4):
        found += schedule.step().solution.log_scales
    torch.testing.assert_close(found, twenty.log_scales, rtol=0, atol=1e-9)
    best, again = (rescale_by_steps(model, x, method="optimum", graph=graph).log_scales.abs().amax() for _ in range(2))
    assert float(twenty.log_scales.abs().amax()) > 0.1
    assert float(again) < 5e-10 < float(best)


# ---- damping


@pytest.mark.parametrize("name", ["mlp", "residual_conv"])
def test_the_default_is_half_of_ten_sweeps(name):
    case = BY_NAME[name]
    model, x = case.model().eval(), case.input()
    graph = pathcond.extract_graph(model, x)
    g = pathcond.compute_diag_g(model, x, graph=graph, statistics="input")
    one, steps = case.model().eval(), case.model().eval()
    full = pathcond.rescale_(one, x, damping=1.0)
    solution = rescale_by_steps(steps, x, statistics="input", clamp=1.5)
    torch.testing.assert_close(full.solution.log_scales, solution.log_scales, rtol=0, atol=1e-9)
    report = pathcond.rescale_(model, x, damping=None if graph.chain else 0.5)
    assert (report.damping, full.damping) == (0.5, 1.0)
    assert torch.equal(report.solution.log_scales, 0.5 * full.solution.log_scales)
    assert report.objective[:-1] == full.objective
    assert "half of the log-scales (damping 0.5)" in str(report)
    u, problem = 2 * report.solution.log_scales, problem_of(graph, g)
    assert report.objective[0] == pytest.approx(problem.objective(0 * u), rel=1e-9)
    assert report.objective[-1] == pytest.approx(problem.objective(u), rel=1e-9)
    g = pathcond.compute_diag_g(model, x, graph=graph, statistics="input")  # from the weights afterwards
    linear = float((problem.matrix @ u).sum())
    assert report.objective[-1] == pytest.approx(problem_of(graph, g).objective(0 * u) - linear, rel=1e-9)


@pytest.mark.parametrize("name", ["residual_mlp", "concat", "squeeze_excite", "sdpa", "lora"])
def test_networks_with_shortcuts_stay_as_they_are_unless_damping_or_norms_is_given(name):
    model, x = BY_NAME[name].model(), BY_NAME[name].input()
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(pathcond.PathCondWarning, match=r"shortcuts, unless damping=0\.5 is given"):
        report = pathcond.rescale_(model, x)
    assert (report.moved, report.damping, report.graph.chain) == (0, 0.0, False)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    schedule = pathcond.Teleport(model, x, every=1)
    with pytest.warns(pathcond.PathCondWarning, match="shortcuts"):
        schedule.step()
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert pathcond.rescale_(copy.deepcopy(model), x, objective="norms").moved > 0
    assert pathcond.rescale_(model, x, damping=0.5).moved > 0


def test_what_no_output_needs_is_no_shortcut():
    """Flattening what is flat, a shape, a value that is thrown away."""
    model = Lambda(
        lambda s, x: (torch.flatten(x, 1), s.b(x).sum(), s.b(F.relu(s.a(x))))[2], a=nn.Linear(4, 4), b=nn.Linear(4, 4)
    )
    assert pathcond.extract_graph(model, torch.randn(3, 4)).chain


def test_norms_count_the_weights_of_every_product_and_gains_with_their_one():
    def forward(s, x):
        return torch.einsum("bi,ij->bj", F.relu(torch.einsum("bi,ij->bj", x, s.u) + s.shift), s.v)

    model = Lambda(forward, u=(3, 4), v=(4, 2), shift=(4,))
    report = pathcond.rescale_(model, torch.randn(5, 3), objective="norms")
    assert report.moved == 4
    expected = sum(p.detach().double().square().sum() for p in (model.u, model.v))
    assert report.objective[-1] == pytest.approx(float(expected), rel=1e-5)
    case = BY_NAME["one_plus_gain"]
    model = case.model()
    expected = (1 + model.w.detach()).square().sum() + model.b.weight.detach().square().sum()
    report = pathcond.rescale_(model, case.input(), objective="norms")
    assert report.objective[0] == pytest.approx(float(expected), rel=1e-12)


# ---- the report


def test_the_report_counts_units_in_its_text_table_and_plot():
    case = BY_NAME["squeeze_excite"]
    model = case.model()
    report = pathcond.rescale_(model, case.input(), clamp=0.3, damping=0.5)
    assert (report.units, report.graph.frozen_channels, report.no_path, report.moved) == (9, 4, 0, 9)
    assert 0 < report.at_bound == int((report.solution.log_scales.abs() > 0.15 - 1e-9).sum()) < 9
    said = ("rescaled 9 of 9 units (4 channels frozen)", f"{report.at_bound} units are at the bound", "frozen: 4 at")
    assert all(part in str(report) for part in said)
    assert set(report.log_scales) == set(report.scales) == {"a", "down", "b"}
    torch.testing.assert_close(torch.cat(list(report.log_scales.values())), report.solution.log_scales)
    torch.testing.assert_close(report.scales["a"], report.log_scales["a"].exp())
    rows = {line.split()[0]: line for line in report.table().splitlines()}
    assert list(rows) == ["module", "a", "down", "up", "b"]
    scales = f"{report.scales['a'].min():.3g} .. {report.scales['a'].max():.3g}"
    assert scales in rows["a"]
    assert "4 frozen at 'up': crosses `sigmoid`" in rows["up"]
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = report.plot()
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == ".") == report.units
    pyplot.close(axes.figure)


def test_the_table_counts_every_unit_once_and_explains_those_that_did_not_move():
    case = BY_NAME["residual_mlp"]
    report = pathcond.rescale_(case.model(), case.input(), damping=0.5)
    _, *lines = report.table().splitlines()
    counts = [tuple(map(int, line.split()[1:3])) for line in lines]
    channels = report.units + report.graph.frozen_channels
    assert [sum(column) for column in zip(*counts, strict=True)] == [channels, report.moved]
    assert any("4 counted at 'stem', which shares them" in line for line in lines)
    assert all(" at " in line for line, (n, m) in zip(lines, counts, strict=True) if n != m)


def _zero_head() -> nn.Module:
    model = mlp(3, 8, 6, 2)
    nn.init.zeros_(model[4].weight)
    return model


def _balanced() -> nn.Module:
    model = mlp(3, 4, 2).double()
    rescale_by_steps(model, torch.randn(4, 3).double(), method="optimum")
    return model


NOTHING_MOVED = {  # a network, what the warning says, what the table says
    "frozen": (lambda: mlp(3, 8, 6, 2, act=nn.Tanh),
               r"8 channels are frozen at '1'.*`tanh`.*6 channels are frozen at '3'", "8 frozen at '1'"),
    "zero-initialized": (_zero_head, "14 units have no path.*zero-initialized", "8 have no path through them"),
    "at the optimum": (_balanced, "4 units are at their best scale", "4 are at their best scale already"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING_MOVED)
def test_a_warning_says_why_nothing_moved(name):
    make, words, in_table = NOTHING_MOVED[name]
    model = make()
    x = torch.randn(4, 3, dtype=next(model.parameters()).dtype)
    with pytest.warns(pathcond.PathCondWarning, match=f"moved 0 of .*{words}"):
        report = pathcond.rescale_(model, x)
    assert (report.moved, report.no_path) == (0, 14 if name == "zero-initialized" else 0)
    assert in_table in report.table()


@pytest.mark.filterwarnings("error::pathcond.PathCondWarning")
def test_no_warning_where_units_moved_or_there_are_none():
    pathcond.rescale_(mlp(3, 8, 2), torch.randn(4, 3))
    pathcond.rescale_(nn.Linear(3, 2), torch.randn(4, 3))


def test_reports_of_models_with_max_pools_are_pickled_and_saved():
    case = BY_NAME["conv_pools"]
    model, x = case.model(), case.input()
    state = copy.deepcopy(model.state_dict())
    report = pathcond.rescale_(model, x)
    file = io.BytesIO()
    torch.save(report, file)
    loaded = pickle.loads(pickle.dumps(report))  # noqa: S301 - made here
    assert (str(loaded), loaded.table()) == (str(report), report.table())
    kept, fresh = (pathcond.compute_diag_g(model, x, graph=one) for one in (loaded.graph, report.graph))
    assert all(torch.equal(t, kept[n]) for n, t in fresh.items())
    loaded.undo_(model)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("batchnorm", ["affine", "exclude"])
def test_undo_after_training_keeps_the_function_if_exact(batchnorm):
    torch.manual_seed(0)
    model, x = mlp(3, 8, 8, 2, norm=nn.BatchNorm1d).double(), torch.randn(16, 3).double()
    report = pathcond.rescale_(model, x, graph=pathcond.extract_graph(model, x, batchnorm=batchnorm))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    before = outputs(model, x, False)
    report.undo_(model)
    change = float((outputs(model, x, False) - before).abs().amax() / before.abs().amax())
    assert (change < 1e-12) == bool(report.exact_for.modes) == (batchnorm == "affine")


# ---- parameters that do not train


def lora(n: int, m: int) -> Lambda:
    """A layer with frozen weights, to which a product of two trained factors is added."""
    base, factors = nn.Linear(n, m).requires_grad_(False), {"a": nn.Linear(n, 3), "b": nn.Linear(3, m)}
    return Lambda(lambda s, x: s.base(x) + s.b(s.a(x)), base=base, **factors)


@pytest.mark.parametrize("objective", ["paths", "norms"])
def test_only_units_of_trained_parameters_move(objective):
    torch.manual_seed(0)
    model, x = nn.Sequential(lora(4, 8), nn.ReLU(), lora(8, 2)).double(), torch.randn(6, 4).double()
    for layer in (model[0], model[2]):
        layer.a.weight.data.mul_(30.0)
    before, y = copy.deepcopy(model.state_dict()), model(x)
    options = {"objective": objective, "damping": 0.5}
    everything = pathcond.rescale_(copy.deepcopy(model), x, **options)
    report = pathcond.rescale_(model, x, **options, trainable_only=True)
    assert f"{int(report.fixed.sum())} touch a parameter that does not train" in report.table()
    assert (everything.units, everything.moved, report.units, report.moved) == (14, 14, 14, 6)
    assert any("8 units keep their scale" in note for note in report.notes)
    torch.testing.assert_close(model(x), y, rtol=1e-10, atol=1e-10)
    for name, value in model.state_dict().items():
        trained = ".a." in name or name.endswith("b.weight")
        assert torch.equal(value, before[name]) != trained, name
    assert report.solution.dead == ()
    model.requires_grad_(False)
    assert pathcond.rescale_(model, x, **options, trainable_only=True).moved == 0


# ---- the package


def test_examples_in_docstrings():
    for module in (m.name for m in pkgutil.walk_packages(pathcond.__path__, "pathcond.")):
        assert doctest.testmod(importlib.import_module(module)).failed == 0, module
