"""The one call: what it reports, what it leaves alone, and its options."""

import copy
import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import pathcond
from paper import models
from tests.cases import BY_NAME, CASES, mlp


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("training", [False, True])
def test_every_case(case, training):
    model, x = case.model().train(training), case.input()
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    rng = torch.get_rng_state()
    report = pathcond.rescale_(model, x)
    assert report.units == case.units
    assert report.output_change < 1e-9
    assert report.objective_after <= report.objective_before
    assert model.training == training
    assert all(torch.equal(buffers[n], b) for n, b in model.named_buffers())
    assert torch.equal(rng, torch.get_rng_state())
    assert set(report.seconds) == {"graph", "diag_g", "solve", "check", "apply"}
    assert len(report.objective) == (11 if case.units else 1)


def test_report_reads_well():
    case = BY_NAME["squeeze_excite"]
    report = pathcond.rescale_(case.model(), case.input())
    text = str(report)
    for part in ("rescaled 7 units (4 frozen, 2 without a path)", "objective", "in 10 steps", "diag_g", "frozen: 4 at",
                 "largest change of the output", "sigmoid"):  # fmt: skip
        assert part in text
    assert set(report.u) == {"a", "down", "b"}
    assert report.u["a"].shape == (4,)
    torch.testing.assert_close(torch.cat(list(report.u.values())), report.solution.u)


def test_undo():
    case = BY_NAME["stage"]
    model, x = case.model(), case.input()
    state = copy.deepcopy(model.state_dict())
    report = pathcond.rescale_(model, x)
    assert any(not torch.equal(state[k], v) for k, v in model.state_dict().items())
    report.undo_(model)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=1e-12, atol=1e-14)


def test_it_is_the_three_steps():
    case = BY_NAME["conv_pools"]
    options = {"batchnorm": "exclude", "shortcuts": "freeze"}
    one, three, x = case.model(), case.model(), case.input()
    report = pathcond.rescale_(one, x, method="optimum", pooling="plain", clamp=1.0, **options)
    graph = pathcond.extract_graph(three, x, **options)
    g = pathcond.path_magnitudes(three, x, pooling="plain")
    solution = pathcond.solve(graph, g, method="optimum", clamp=1.0)
    pathcond.apply_scales_(three, graph, solution.u)
    torch.testing.assert_close(report.solution.u, solution.u)
    for a, b in zip(one.parameters(), three.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_graph_can_be_kept():
    case = BY_NAME["residual_conv"]
    fresh, kept, x = case.model(), case.model(), case.input()
    graph = pathcond.extract_graph(kept, x)
    pathcond.rescale_(fresh, x, check=False)
    report = pathcond.rescale_(kept, x, graph=graph, check=False)
    assert report.output_change is None
    assert "graph" not in report.seconds
    for a, b in zip(fresh.parameters(), kept.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_failure_leaves_the_model_alone():
    model, x = mlp(3, 4, 2).half(), torch.ones(1, 3).half()
    model[0].weight.data.mul_(1e-4)
    model[0].bias.data.mul_(1e-4)
    model[2].weight.data.mul_(5e4)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(pathcond.PathCondError):
        pathcond.rescale_(model, x, sweeps=-1)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())


def test_exclude_says_what_it_gives_up():
    model, x = mlp(3, 4, 5, 2, norm=nn.BatchNorm1d).double().train(), torch.randn(6, 3).double()
    report = pathcond.rescale_(model, x, batchnorm="exclude")
    assert not report.exact
    assert report.output_change > 1e-3  # in training mode
    assert "exclude" in str(report)


@pytest.mark.parametrize("name", ["mlp", "cifar_nv", "resnet18_c"])
@pytest.mark.parametrize("pooling", ["exact", "plain"])
def test_paper_networks_reach_the_optimum(name, pooling):
    torch.manual_seed(0)
    model, x = models.KINDS[name]().eval(), torch.ones(1, 3, 32, 32)
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    assert graph.units == {"mlp": 1500, "cifar_nv": 1792, "resnet18_c": 3904}[name]
    g = pathcond.path_magnitudes(model, x, graph=graph, pooling=pooling)
    best = pathcond.solve(graph, g, method="optimum")
    assert best.residual <= 1e-10
    ten = pathcond.solve(graph, g)
    assert best.objective[-1] < ten.objective[-1] < ten.objective[0]


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(pathcond.__path__, "pathcond.")])
def test_examples_in_docstrings(module):
    if module.endswith("cuda_kernel"):
        pytest.importorskip("triton")
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


def test_public_names_are_documented_with_an_example():
    for name in pathcond.__all__:
        thing = getattr(pathcond, name)
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing) or name in ("ENorm", "Teleport"):
            assert ">>>" in inspect.getdoc(thing), name


def test_batchnorm_in_training_mode_on_a_batch_of_one():
    model = models.mlp(6, (5, 4), 3)
    assert model.training
    report = pathcond.rescale_(model, torch.ones(1, 6))
    assert report.output_change is not None
    assert report.output_change < 1e-5
    assert all(module.training for module in model.modules())


def test_a_failure_in_both_modes_is_raised():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = models.mlp(6, (5,), 3)

        def forward(self, x):
            if not isinstance(x, FakeTensor):
                raise ValueError("not today")
            return self.net(x)

    with pytest.raises(ValueError, match="not today"):
        pathcond.rescale_(Picky(), torch.ones(2, 6))
