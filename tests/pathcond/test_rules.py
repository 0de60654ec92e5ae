"""Rules of operations: those of users, and code in which a wrong rule would show."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from pathcond.rules import TABLE
from pathcond.rules.base import mixed_positions
from tests.cases import Lambda, assert_function_kept


def assert_rules(model: nn.Module, x: Tensor, units: int, total) -> None:
    """``total(squares)`` is the path sum of the model's outputs for one example, given its squared parameters."""
    graph = pathcond.extract_graph(model, x)
    assert (graph.units, graph.frozen_channels) == (units, 0)
    assert_function_kept(model, x, graph)
    squares = {n: (p.detach() ** 2).requires_grad_() for n, p in model.named_parameters()}
    expected = torch.autograd.grad(total(squares).sum(), list(squares.values()))
    g = pathcond.compute_diag_g(model, x, graph=graph)
    for name, value in zip(squares, expected, strict=True):
        torch.testing.assert_close(g[name], value, rtol=1e-12, atol=1e-15)


# ---- rules of users


@torch.library.custom_op("pathcond_test::rect", mutates_args=())
def rect(x: Tensor) -> Tensor:
    return x.clamp(min=0.0)


@torch.library.custom_op("pathcond_test::weighted_pair", mutates_args=())
def weighted_pair(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
    """``gain * max(x, 2 y)`` with one gain for each channel: homogeneous in x and y together, a layer by its gain."""
    return gain * torch.maximum(x, 2 * y)


rect.register_fake(torch.empty_like)
weighted_pair.register_fake(lambda x, y, gain: torch.empty_like(x))


@pytest.fixture
def table():
    """The table of operations, put back afterwards."""
    with patch.dict(TABLE):
        yield


def pair_scales(s, call, a):
    together = s.tie(s.groups(a["x"]), s.groups(a["y"]), mixed_positions(call))
    view = s.parameter(a["gain"])
    made = s.new_groups(4, "gain")
    s.connect(view, made, together.reshape(-1))
    s.set_result(call, made[None, :])


def pair_paths(p, call, a):
    joint = p.between([a["x"], a["y"]], lambda x, y: x + 4 * y)
    p.product(call, [joint, a["gain"]], torch.mul)


def test_an_operation_of_our_own_with_both_rules(table):
    torch.manual_seed(0)
    model = Lambda(lambda s, x: s.c(F.relu(weighted_pair(s.a(x), s.b(x), s.gain))),
                   a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(4, 2), gain=(4,)).double()  # fmt: skip
    x = torch.randn(2, 3, dtype=torch.float64)
    before = pathcond.extract_graph(model, x)
    assert (before.units, before.frozen_channels) == (0, 8)
    pathcond.register_rule(
        weighted_pair, scales=pair_scales, paths=pair_paths, arguments=("x", "y", "gain"), layer=True
    )

    def total(q):
        into = q["a.weight"].sum(1) + q["a.bias"] + 4 * (q["b.weight"].sum(1) + q["b.bias"])
        return q["c.weight"] @ (q["gain"] * into) + q["c.bias"]

    assert_rules(model, x, 8, total)  # the tied channels before it, and those behind it
    report = pathcond.rescale_(model, x, damping=0.5)
    assert report.moved == 8
    assert report.output_change < 1e-12


def test_a_rule_for_scales_alone_makes_a_barrier(table):
    model = Lambda(lambda s, x: s.b(rect(s.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2)).double()
    x = torch.ones(1, 3, dtype=torch.float64)
    pathcond.register_rule(rect, scales=lambda s, call, a: s.set_result(call, s.groups(a["input"])))
    assert pathcond.extract_graph(model, x).units == 4
    g = pathcond.compute_diag_g(model, x)
    assert torch.equal(g["a.weight"], torch.ones(4, 3).double())  # paths end here
    torch.testing.assert_close(g["b.weight"], torch.ones(2, 4).double(), rtol=0, atol=1e-12)  # and start again


@pytest.mark.parametrize("spelling", [lambda: rect, lambda: torch.ops.pathcond_test.rect])
def test_an_operation_like_another(table, spelling):
    model = Lambda(lambda s, x: s.b(rect(s.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    frozen = pathcond.extract_graph(model, torch.ones(1, 3))
    assert frozen.units == 0
    assert "rect" in frozen.frozen[0].reason
    pathcond.register_rule(spelling(), like=torch.relu)
    assert pathcond.rescale_(model, torch.randn(2, 3)).units == 4


def test_what_cannot_be_registered(table):
    for given in (lambda x: x.clamp(min=0.0), nn.ReLU, nn.ReLU()):
        with pytest.raises(pathcond.PathCondError, match="custom_op"):
            pathcond.register_rule(given, like=torch.relu)
    with pytest.raises(pathcond.PathCondError, match="with a rule"):
        pathcond.register_rule(rect, like=torch.fft.fft)
    with pytest.raises(pathcond.PathCondError, match="both or neither"):
        pathcond.register_rule(rect)


def test_empty_tensors():
    """A concatenation of nothing else; a layer without inputs, of which only the bias starts paths."""
    model = Lambda(lambda s, x: s.b(s.a(x) + torch.cat([x[:0, 0]] * 2).sum()), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    assert pathcond.extract_graph(model, torch.ones(2, 3)).frozen_channels == 4
    bare = Lambda(lambda s, x: s.b(F.linear(x, s.w, s.v)), w=(4, 0), v=(4,), b=nn.Linear(4, 2)).double()
    g = pathcond.compute_diag_g(bare, torch.ones(2, 0).double())
    torch.testing.assert_close(g["b.weight"], bare.v.detach().square().expand(2, 4))


# ---- rules against a backward pass written by hand


@pytest.mark.parametrize(("alpha", "beta"), [(3.0, 0.5), (-2.0, 0.0)])
def test_addmm_with_factors(alpha, beta):
    torch.manual_seed(0)
    model = Lambda(lambda s, x: s.o(F.relu(torch.addmm(s.b, s.a(x), s.w, alpha=alpha, beta=beta))),
                   a=nn.Linear(3, 4), o=nn.Linear(5, 2), w=(4, 5), b=(5,)).double()  # fmt: skip

    def total(q):
        h = q["a.weight"].sum(1) + q["a.bias"]
        return q["o.weight"] @ (alpha**2 * h @ q["w"] + beta**2 * q["b"]) + q["o.bias"]

    if beta:
        assert_rules(model, torch.randn(2, 3).double(), 9, total)
    else:
        assert "b" not in pathcond.compute_diag_g(model, torch.ones(1, 3).double())
        assert_function_kept(model, x := torch.randn(2, 3).double(), pathcond.extract_graph(model, x))


def test_sums_with_factors():
    """Of data and parameters, on either side, also cast to the input's dtype."""

    def forward(s, x):
        h = torch.add(s.p.to(x), F.relu(s.a(x)), alpha=3.0)
        h = torch.sub(h, s.q.type_as(x).expand_as(h), alpha=0.5) + 2.0 * F.relu(s.b(x))
        return s.c(F.relu(h))

    torch.manual_seed(0)
    layers = {"a": nn.Linear(3, 4), "b": nn.Linear(3, 4), "c": nn.Linear(4, 2)}
    model = Lambda(forward, **layers, p=(4,), q=(4,)).double()

    def total(q):
        a, b = (q[f"{name}.weight"].sum(1) + q[f"{name}.bias"] for name in "ab")
        return q["c.weight"] @ (9 * a + q["p"] + 0.25 * q["q"] + 4 * b) + q["c.bias"]

    assert_rules(model, torch.ones(1, 3).double(), 4, total)
