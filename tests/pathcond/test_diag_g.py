"""diag(G): against a plain backward pass through the squared network, and in the places where that would fail."""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import BY_NAME, Lambda, mlp, one_hidden_layer

PLAIN = [
    "mlp", "mlp_leaky", "mlp_one_unit_layers", "residual_mlp", "residual_self", "declared_out_of_order", "by_hand",
    "conv_pools", "conv1d", "conv3d", "depthwise", "grouped", "transposed", "concat", "channel_shuffle",
    "pixel_shuffle", "flatten_permute", "tokens", "module_twice", "tied_autoencoder", "layer_scale", "stage",
    "residual_conv", "mlp_bn", "rnn", "rnn_two_ways", "rnn_two_layers", "rnn_cell",
]  # fmt: skip


POOLS = (F.max_pool1d, F.max_pool2d, F.adaptive_max_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool2d)


def coefficients(pool: Callable[[Tensor], Tensor], size: Sequence[int]) -> Tensor:
    """Of each position in each position of the pool's output, shape (positions, outputs)."""
    count = math.prod(size)
    return pool(torch.eye(count, dtype=torch.float64).view(count, 1, *size)).reshape(count, -1)


class Squared(torch.overrides.TorchFunctionMode):
    """Runs a model as the network of path sums: no activations, pools with squared coefficients."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (F.relu, F.leaky_relu, torch.relu, torch.relu_, torch.clamp, torch.Tensor.clamp):
            return args[0]
        if func in POOLS:
            squares = coefficients(lambda x: func(x, *args[1:], **kwargs), args[0].shape[2:]) ** 2
            return (args[0].flatten(2) @ squares).view_as(func(*args, **kwargs))
        if func is torch.Tensor.mean:
            return func(*args, **kwargs) / args[0].shape[1]
        if func is F.batch_norm:
            x, mean, var = args[:3]
            shape = [1, -1] + [1] * (x.dim() - 2)
            gain = (kwargs["weight"] / (var + kwargs["eps"])).view(shape)  # the weight is squared already
            return x * gain + (mean**2).view(shape) * gain + kwargs["bias"].view(shape)
        return func(*args, **kwargs)


@pytest.mark.parametrize("name", PLAIN)
def test_against_autograd(name):
    """A batch counts as one example."""
    case = BY_NAME[name]
    model, x = case.model(), case.input()
    squares = {n: (p.detach() ** 2).requires_grad_() for n, p in model.named_parameters()}
    with Squared():
        out = torch.func.functional_call(copy.deepcopy(model).eval(), squares, (torch.ones_like(x[:1]),))
    found = torch.autograd.grad(out.sum(), list(squares.values()), allow_unused=True)
    expected = dict(zip(squares, found, strict=True))
    g = pathcond.compute_diag_g(model, x, graph=case.graph)
    assert set(g) == {n for n, t in expected.items() if t is not None}
    for key, value in g.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-11, atol=1e-14)
    assert all(log == 0.0 for log in g.log_scale.values())


def test_pools_by_hand():
    """Each kind of pool against a sum over its positions, padding and ragged windows included."""
    x = torch.rand(1, 2, 7, 7, dtype=torch.float64)
    for pool in (
        nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(2, dilation=2), nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(3, divisor_override=5),
        nn.AdaptiveAvgPool2d(3), nn.AdaptiveAvgPool2d((2, None)), nn.AdaptiveMaxPool2d((3, 2)),
    ):  # fmt: skip
        each = coefficients(pool, (7, 7))
        model = Lambda(lambda s, x: s.b(s.pool(s.a(x)).flatten(1)), a=nn.Conv2d(2, 2, 1), pool=pool,
                       b=nn.Linear(2 * each.shape[1], 1)).double()  # fmt: skip
        sums = (model.a.weight.detach() ** 2).sum((1, 2, 3)) + model.a.bias.detach() ** 2
        for pooling, expected in (
            ("exact", (sums[:, None] * (each**2).sum(0)).reshape(1, -1)),
            ("plain", pool(sums.view(1, 2, 1, 1).expand(1, 2, 7, 7)).flatten(1)),
        ):
            g = pathcond.compute_diag_g(model, x, pooling=pooling)
            torch.testing.assert_close(g["b.weight"], expected, rtol=1e-12, atol=0)


# ---- normalizations with statistics of the example input

NORMS = {
    "batch": (lambda: nn.BatchNorm2d(4), lambda h: 1 / (h.var((0, 2, 3), correction=0) + 1e-5)),
    "layer": (lambda: nn.LayerNorm((4, 5, 5)), lambda h: (1 / (h.var((1, 2, 3), correction=0) + 1e-5)).mean()),
    "last axis": (lambda: nn.LayerNorm(5), lambda h: (1 / (h.var(-1, correction=0) + 1e-5)).mean()),
    "rms": (lambda: nn.RMSNorm((4, 5, 5), eps=1e-6), lambda h: (1 / (h.square().mean((1, 2, 3)) + 1e-6)).mean()),
    "group": (lambda: nn.GroupNorm(2, 4), lambda h: (
        1 / (h.reshape(len(h), 2, -1).var(-1, correction=0) + 1e-5)).mean(0).repeat_interleave(2)),
    "instance": (
        lambda: nn.InstanceNorm2d(4, affine=True), lambda h: (1 / (h.var((2, 3), correction=0) + 1e-5)).mean(0)),
}  # fmt: skip


def at_positions(t: Tensor) -> Tensor:
    """A vector with an entry for each of the four channels is spread over their positions."""
    return t[:, None, None] if t.shape == (4,) else t


@pytest.mark.parametrize("name", NORMS)
def test_measured_slopes(name):
    """A normalization is the map with slope gain / std, where the variance is that of the example input."""
    make, slope_of = NORMS[name]
    torch.manual_seed(0)
    layers = {"a": nn.Conv2d(3, 4, 1), "n": make(), "b": nn.Linear(100, 2)}
    model = Lambda(lambda s, x: s.b(F.relu(s.n(s.a(x))).flatten(1)), **layers).double()
    nn.init.normal_(model.n.weight)
    x = 3 * torch.randn(6, 3, 5, 5).double()
    state, squares = copy.deepcopy(model.state_dict()), {n: p.detach() ** 2 for n, p in model.named_parameters()}
    slope, gain = at_positions(slope_of(model.a(x).detach())), at_positions(squares["n.weight"])
    entering = at_positions(squares["a.weight"].sum((1, 2, 3)) + squares["a.bias"]).expand(4, 5, 5)
    bias = at_positions(squares.get("n.bias", torch.zeros(())))
    leaving = squares["b.weight"].sum(0).view(4, 5, 5)
    g = pathcond.compute_diag_g(model, x, statistics="input")
    found = g["b.weight"][0].view(4, 5, 5)
    torch.testing.assert_close(found, entering * slope * gain + bias, rtol=1e-5, atol=0)  # measured in float32
    torch.testing.assert_close(g["a.bias"], (leaving * slope * gain).sum((1, 2)), rtol=1e-5, atol=0)
    through = (leaving * slope * entering).sum_to_size(gain.shape).reshape(model.n.weight.shape)
    torch.testing.assert_close(g["n.weight"], through, rtol=1e-5, atol=0)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())


def test_statistics_by_default():
    """Measured where the example is a batch of different examples; else the running ones, with a note."""
    torch.manual_seed(0)
    batch = torch.randn(16, 3).double()
    model = mlp(3, 8, 2, norm=nn.BatchNorm1d).double()
    for x, expected in ((batch, "input"), (batch[:1], "running"), (torch.ones(16, 3).double(), "running")):
        rescaled = copy.deepcopy(model)
        report = pathcond.rescale_(rescaled, x)
        assert all(module.training for module in rescaled.modules())
        assert (report.statistics, report.output_change < 1e-12) == (expected, True)
        assert any("not measured" in note for note in report.notes) == (expected == "running")
    measured, running = (pathcond.compute_diag_g(model, batch, statistics=s)["0.bias"] for s in ("input", "running"))
    assert not torch.allclose(measured, running, rtol=0.1)
    assert not pathcond.rescale_(mlp(3, 8, 2).double(), batch[:1]).notes


# ---- barriers


def attention(s, x):
    weights = (s.q(x) @ s.k(x).transpose(-1, -2) / 2).softmax(-1)
    return s.out(F.relu(s.h(s.o(weights @ s.v(x)))))


def test_scales_of_attention_do_not_depend_on_the_number_of_tokens():
    found = []
    for tokens in (3, 4, 5):  # at head size 4
        torch.manual_seed(0)
        layers = {n: nn.Linear(4, 4) for n in "qkvo"} | {"h": nn.Linear(4, 6), "out": nn.Linear(6, 2)}
        report = pathcond.rescale_(Lambda(attention, **layers).double(), torch.randn(2, tokens, 4).double(), clamp=None)
        assert (report.units, report.graph.frozen_channels) == (18, 0)
        found.append(report.solution.log_scales)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("act", [nn.GELU(), nn.Tanh(), nn.Softmax(-1), Lambda(lambda s, x: torch.fft.fft(x).real)])
def test_a_barrier_cuts_g_into_blocks(act):
    """diag(G) of a network cut by a barrier is that of its two parts, entry by entry."""
    torch.manual_seed(0)
    first, second = mlp(3, 5, 4).double(), mlp(4, 6, 2).double()
    x = torch.randn(2, 3).double()
    g = pathcond.compute_diag_g(nn.Sequential(first, act, second), x)
    parts = {f"0.{n}": t for n, t in pathcond.compute_diag_g(first, x).items()}
    parts |= {f"2.{n}": t for n, t in pathcond.compute_diag_g(second, torch.ones(1, 4).double()).items()}
    assert g.keys() == parts.keys()
    for name, t in parts.items():
        torch.testing.assert_close(g[name], t, rtol=1e-12, atol=0)


# ---- numbers


def test_units_before_an_unknown_operation_have_paths():
    torch.manual_seed(0)
    recurrent = Lambda(lambda s, x: s.o(s.g(F.relu(s.b(F.relu(s.a(x)))).transpose(1, 2))[0]), a=nn.Conv1d(3, 8, 3),
                       b=nn.Conv1d(8, 6, 3), g=nn.GRU(6, 5, batch_first=True), o=nn.Linear(5, 2))  # fmt: skip
    loss = one_hidden_layer(lambda s, x, y: F.cross_entropy(s.b(F.relu(s.a(x))), y), inputs=3)
    for model, x in ((recurrent, torch.randn(2, 3, 10)), (loss, (torch.randn(4, 3), torch.tensor([0, 1, 1, 0])))):
        report = pathcond.rescale_(model, x)
        assert (report.units, report.no_path, report.moved) == (8, 0, 8)


def test_numbers_that_fill_in_count_with_their_squares():
    """Also where path sums are far from 1."""

    def forward(s, x):
        h = s.a(x)
        h[:, 0] = np.int64(2)
        q = s.c(x)
        return s.b(F.pad(F.relu(h), (0, 1), value=np.float32(3))), F.scaled_dot_product_attention(q, q, x)

    model = Lambda(forward, a=nn.Linear(3, 3), b=nn.Linear(4, 2), c=nn.Linear(3, 3)).double()
    for factor in (1.0, 1e12):
        model.a.weight.data.fill_(factor)
        g = pathcond.compute_diag_g(model, torch.ones(2, 3, dtype=torch.float64)).as_float64()
        torch.testing.assert_close(g["b.weight"][0, [0, 3]], torch.tensor([4.0, 9.0], dtype=torch.float64))
        assert float(g["c.bias"].sum()) == pytest.approx(3.0)  # query and key are one tensor, whose paths end once


def test_a_model_with_indices_into_the_batch_takes_all_of_it():
    model = Lambda(lambda s, x: s.b(s.a(x).relu()[[0, 1]]), a=nn.Linear(2, 3), b=nn.Linear(3, 1))
    assert pathcond.rescale_(model, torch.randn(2, 2), damping=1).moved == 3


def test_float32_repeats_in_float64_what_underflows():
    """Entries that are exactly zero, of tokens that are not there and of dead units, are no reason."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Embedding(7, 4), mlp(4, 8, 4, 2)), torch.tensor([[2, 5]])
    with torch.no_grad():
        model[1][0].weight[2], model[1][0].bias[2] = 0.0, 0.0
    for factor, dtype, rtol in ((1.0, None, 1e-5), (1.0, torch.float64, 1e-12), (1e-21, None, 1e-6)):
        with torch.no_grad():
            model[1][0].weight[0] *= factor
            model[1][0].bias[0] *= factor
        exact = pathcond.compute_diag_g(copy.deepcopy(model).double(), x)
        assert float(exact["1.2.weight"][0, 0]) > 0
        assert float(exact["0.weight"][[2, 5]].amin()) > 0 == float(exact["0.weight"][[0, 1, 3, 4, 6]].amax())
        assert float(exact["1.2.weight"][:, 2].amax()) == 0
        g = pathcond.compute_diag_g(model, x, dtype=dtype)
        for name, t in exact.items():
            assert g[name].dtype == torch.float64
            torch.testing.assert_close(g[name], t, rtol=rtol, atol=0)


@pytest.mark.parametrize(("std", "bias"), [(1e-3, False), (0.1, True), (10.0, True)])
def test_hundreds_of_layers(std, bias):
    """Path norms far outside float64: entries follow the recursion in logarithms, and sweeps lower the objective."""
    torch.manual_seed(0)
    width, depth = 4, 150
    model = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]).double()
    for p in model.parameters():
        nn.init.normal_(p, 0, std if bias or p.ndim > 1 else 0.0)
    graph = pathcond.extract_graph(model, torch.ones(1, width).double())
    g = pathcond.compute_diag_g(model, torch.ones(1, width).double(), graph=graph)
    values = pathcond.solve(graph, g, sweeps=3).objective
    assert all(b <= a + 1e-12 * abs(a) for a, b in zip(values, values[1:], strict=False))
    layers = [m for m in model if isinstance(m, nn.Linear)]
    logs = [(m.weight.detach().square().log(), m.bias.detach().square().log()) for m in layers]
    entering, leaving = [torch.zeros(width).double()], [torch.zeros(width).double()]
    for weight, bias in logs:
        entering.append(torch.logaddexp((weight + entering[-1]).logsumexp(1), bias))
    for weight, _ in reversed(logs):
        leaving.append((weight.T + leaving[-1]).logsumexp(1))
    for i in range(depth):
        found = g[f"{2 * i}.weight"].log() + g.log_scale[f"{2 * i}.weight"]
        expected = leaving[depth - 1 - i][:, None] + entering[i]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)


def test_parameters_must_be_finite_but_not_other_buffers():
    x = torch.randn(2, 4, 3)
    masked = Lambda(lambda s, x: s.c(F.relu(s.a((x @ x.mT + s.mask).softmax(-1) @ x))), a=nn.Linear(3, 8),
                    c=nn.Linear(8, 2))  # fmt: skip
    masked.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    masked.register_buffer("observed", torch.tensor([math.nan, math.inf]))  # of an observer that has seen nothing
    assert pathcond.rescale_(masked, x, damping=0.5).moved == 8
    masked.c.weight.data[0].fill_(math.nan)
    with pytest.raises(pathcond.PathCondError, match=r"8 NaN or infinite entries of 16 in 'c\.weight'"):
        pathcond.compute_diag_g(masked, x)
