"""Writing scales: dtypes, ranges, and that an error writes nothing."""

import copy
import math

import pytest
import torch
from torch import nn

import pathcond
from tests.cases import BY_NAME, mlp


def graph_of(model, x):
    return pathcond.extract_graph(model, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_factors_and_dtype(dtype):
    model, x = mlp(3, 4, 2).to(dtype), torch.ones(1, 3, dtype=dtype)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    u = torch.tensor([0.5, -0.3, 1.1, 0.0], dtype=torch.float64)
    pathcond.apply_scales_(model, graph_of(model, x), u)
    scale = (u / 2).exp()
    exact = {
        "0.weight": before["0.weight"].double() * scale[:, None],
        "0.bias": before["0.bias"].double() * scale,
        "2.weight": before["2.weight"].double() / scale,
        "2.bias": before["2.bias"].double(),
    }
    for name, p in model.named_parameters():
        assert p.dtype == dtype
        torch.testing.assert_close(p.detach().double(), exact[name], rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_gradients_flags_and_identity_stay():
    model, x = mlp(3, 4, 2), torch.ones(1, 3)
    model[0].weight.requires_grad_(False)
    model(x).sum().backward()
    ids = [id(p) for p in model.parameters()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    graph = graph_of(model, x)
    with torch.inference_mode():
        pathcond.apply_scales_(model, graph, torch.ones(4))
    assert [id(p) for p in model.parameters()] == ids
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    for p, g in zip(model.parameters(), grads, strict=True):
        assert (p.grad is None) == (g is None)
        assert g is None or torch.equal(p.grad, g)
    model(x).sum().backward()  # the parameters still work


@pytest.mark.parametrize("u", [torch.tensor([30.0, 0, 0, 0]), torch.tensor([-30.0, 0, 0, 0])])
def test_overflow_is_refused_and_nothing_written(u):
    model, x = mlp(3, 4, 2).half(), torch.ones(1, 3).half()
    state = copy.deepcopy(model.state_dict())
    graph = graph_of(model, x)
    with pytest.raises(pathcond.ApplyError, match=r"float16.*would (overflow|vanish).*clamp="):
        pathcond.apply_scales_(model, graph, u)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    pathcond.apply_scales_(model, graph, u, force=True)
    assert any(not torch.equal(state[k], v) for k, v in model.state_dict().items())


def test_large_scales_that_cancel_are_exact():
    """A weight whose row and column factors are far outside float32, but not their product."""
    model, x = mlp(2, 1, 1, 1), torch.ones(1, 2)
    before = model[2].weight.detach().clone()
    graph = graph_of(model, x)
    model[0].weight.data.mul_(1e-20)
    model[0].bias.data.mul_(1e-20)
    model[2].bias.data.mul_(1e-20)
    model[4].weight.data.mul_(1e20)
    pathcond.apply_scales_(model, graph, torch.full((2,), 4 * math.log(1e10), dtype=torch.float64))
    torch.testing.assert_close(model[2].weight.detach(), before, rtol=1e-6, atol=0)
    assert bool(torch.isfinite(torch.cat([p.reshape(-1) for p in model.parameters()])).all())


def test_wrong_scales_and_models_are_refused():
    case = BY_NAME["mlp"]
    model, x = case.model(), case.input()
    graph = graph_of(model, x)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(pathcond.ApplyError, match=r"shape \(9,\).*got shape \(3,\)"):
        pathcond.apply_scales_(model, graph, torch.ones(3))
    bad = torch.zeros(9)
    bad[2] = math.nan
    with pytest.raises(pathcond.ApplyError, match="1 NaN"):
        pathcond.apply_scales_(model, graph, bad)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    with pytest.raises(pathcond.ApplyError, match=r"'0\.weight' of shape \(4, 3\), got shape \(5, 3\)"):
        pathcond.apply_scales_(mlp(3, 5, 5, 2).double(), graph, torch.ones(9))
    with pytest.raises(pathcond.ApplyError, match="no such parameter"):
        pathcond.apply_scales_(nn.Linear(3, 4), graph, torch.ones(9))
