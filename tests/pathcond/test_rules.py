"""Rules of operations: those of users, and code in which a wrong rule would show."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from pathcond.path_sums import Scaled
from pathcond.propagation import mixed_positions
from pathcond.rules import TABLE
from tests.cases import Lambda, assert_function_kept

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
    kept = dict(TABLE)
    yield TABLE
    TABLE.clear()
    TABLE.update(kept)


def pair_net() -> Lambda:
    torch.manual_seed(0)
    model = Lambda(lambda s, x: s.c(F.relu(weighted_pair(s.a(x), s.b(x), s.gain))),
                   a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(4, 2))  # fmt: skip
    model.gain = nn.Parameter(torch.randn(4))
    return model.double()


def pair_scales(s, call, a):
    together = s.tie(s.groups(a["x"]), s.groups(a["y"]), mixed_positions(call))
    view = s.parameter(a["gain"])
    made = s.new_groups(4, "gain", together)
    s.connect(view, made, together.reshape(-1))
    s.set_result(call, made[None, :])


def pair_paths(p, call, a):
    gain, x, y = p.square(a["gain"]), p.sums[a["x"].id], p.sums[a["y"].id]
    joint = x + Scaled(4 * y.t, y.log)

    def backward(gradient):
        through = Scaled(gradient.t * gain.t, gradient.log + gain.log)
        p.add_gradient(a["x"].id, through)
        p.add_gradient(a["y"].id, Scaled(4 * through.t, through.log))
        p.add_diagonal(a["gain"], Scaled((gradient.t * joint.t).sum(0), gradient.log + joint.log))

    p.set_result(call, Scaled(joint.t * gain.t, joint.log + gain.log), backward)


def test_an_operation_of_our_own_with_both_rules(table):
    x = torch.randn(2, 3, dtype=torch.float64)
    model = pair_net()
    before = pathcond.extract_graph(model, x)
    assert (before.units, before.frozen_units) == (0, 8)
    pathcond.register_rule(
        weighted_pair, scales=pair_scales, paths=pair_paths, arguments=("x", "y", "gain"), layer=True
    )
    graph = pathcond.extract_graph(model, x)
    assert (graph.units, graph.frozen_units) == (8, 0)  # the tied channels before it, and those behind it
    assert_function_kept(model, x, graph)
    squares = {n: (p.detach() ** 2).requires_grad_() for n, p in model.named_parameters()}
    into = squares["a.weight"].sum(1) + squares["a.bias"] + 4 * (squares["b.weight"].sum(1) + squares["b.bias"])
    total = (squares["c.weight"] @ (squares["gain"] * into) + squares["c.bias"]).sum()
    g = pathcond.compute_diag_g(model, x)
    for name, expected in zip(squares, torch.autograd.grad(total, list(squares.values())), strict=True):
        torch.testing.assert_close(g[name], expected, rtol=1e-12, atol=0)
    report = pathcond.rescale_(model, x)
    assert report.moved == 8
    assert report.output_change < 1e-12


def test_a_rule_for_scales_alone_makes_a_barrier(table):
    model = Lambda(lambda s, x: s.b(rect(s.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2)).double()
    x = torch.ones(1, 3, dtype=torch.float64)
    pathcond.register_rule(rect, scales=lambda s, call, a: s.set_result(call, s.groups(a["input"])))
    assert pathcond.extract_graph(model, x).units == 4
    g = pathcond.compute_diag_g(model, x)
    assert torch.equal(g["a.weight"], torch.ones(4, 3).double())  # paths end here
    assert torch.equal(g["b.weight"], torch.ones(2, 4).double())  # and start again


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


# ---- code that tempts a rule to believe too much


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def _int_copy(s, h, x):
    q = torch.zeros(3, 8, dtype=torch.long)
    q[:] = h * 10
    return s.fc2(q.double())


TAILS = {
    "flipped weight": lambda s, h, x: h @ s.w.flip(0),
    "rolled weight": lambda s, h, x: h @ s.w.roll(1, 0),
    "rotated weight": lambda s, h, x: h @ s.w.rot90(2),
    "weight by list": lambda s, h, x: h @ s.w[[3, 1, 2, 0, 7, 6, 5, 4]],
    "weight by tensor": lambda s, h, x: h @ s.w[torch.tensor([3, 1, 2, 0, 7, 6, 5, 4])],
    "rolled bias": lambda s, h, x: s.fc2(F.relu(h + s.b.roll(1))),
    "flipped gain": lambda s, h, x: s.fc2(F.relu(h * s.b.flip(0))),
    "shuffled kernel": lambda s, h, x: F.conv2d(h[:, :, None, None], F.channel_shuffle(s.c, 2)).flatten(1),
    "random order": lambda s, h, x: s.fc2(h[:, torch.randperm(8)]),
    "made norm weight": lambda s, h, x: s.fc2(h) + F.layer_norm(x[:, :1].expand(3, 8), (8,), h[0]).sum(),
    "made norm bias": lambda s, h, x: s.fc2(h) + F.layer_norm(s.fc1(x), (8,), None, h[0]).sum(),
    "made batch norm": lambda s, h, x: (
        s.fc2(h) + F.batch_norm(torch.cat([x, x], 1)[:, :8], None, None, h[0], h[1], True).sum()
    ),
    "made slope": lambda s, h, x: s.fc2(h) + F.prelu(torch.cat([x, x], 1)[:, :8], h[0]).sum(),
    "max by keyword": lambda s, h, x: s.fc2(h) + torch.max(x, other=h[:, :6]).sin().sum(),
    "integer copy": _int_copy,
    "integer sum": lambda s, h, x: s.fc2(h.sum(0, dtype=torch.long).double()),
    "expanded weight": lambda s, h, x: F.linear(h, s.v.expand(5, 8)),
    "expanded bias": lambda s, h, x: s.fc2(F.relu(h + s.one.expand(8))),
    "expanded gain": lambda s, h, x: s.fc2(F.relu(h * s.one.expand(8))),
    "one bias for all": lambda s, h, x: s.fc2(F.relu(F.linear(h, s.w @ s.w.T, s.one))),
    "one bias, own weight": lambda s, h, x: F.linear(F.relu(F.linear(h, s.w.t(), s.one)), s.w),
    "bias by row": lambda s, h, x: F.relu(torch.addmm(s.b[:3, None], h, s.w)),
    "bias without axes": lambda s, h, x: s.fc2(F.relu(torch.add(h, s.zero_dim))),
    "empty start": lambda s, h, x: s.fc2(torch.cat([torch.empty(0), h], 1)),
    "zeros as a layer's input": lambda s, h, x: s.fc2(h + F.linear(h.new_zeros(3, 5), s.w) * s.b),
    "zeros made other than zero": lambda s, h, x: s.fc2(h + F.linear(h.new_zeros(3, 5).add_(1), s.w)),
    "other dtype": lambda s, h, x: s.fc2(h) + h.view(torch.int64).sum() * 0,
    "slice, relu, view": lambda s, h, x: s.fc2(F.relu(s.fc1(x)[:, :4]).view(1, 12)[:, :8]),
}


@pytest.mark.parametrize("name", TAILS)
def test_function_is_kept(name):
    torch.manual_seed(0)
    model = Lambda(lambda s, x: TAILS[name](s, F.relu(s.fc1(x)), x), fc1=nn.Linear(6, 8), fc2=nn.Linear(8, 5)).double()
    model.w, model.v, model.b, model.one = weight(8, 5), weight(1, 8), weight(8), weight(1)
    model.c, model.zero_dim = weight(4, 8, 1, 1), weight()
    x = torch.randn(3, 6, dtype=torch.float64)
    assert_function_kept(model, x, pathcond.extract_graph(model, x))
    pathcond.compute_diag_g(model, x)
