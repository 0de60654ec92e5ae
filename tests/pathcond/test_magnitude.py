"""diag(G): against a plain backward pass through the squared network, and in the places where that would fail."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import pathcond
from paper import models
from tests.cases import BY_NAME, CASES, Lambda, mlp

PLAIN = [
    "mlp", "mlp_leaky", "mlp_one_unit_layers", "residual_mlp", "residual_self", "declared_out_of_order", "by_hand",
    "conv_pools", "conv1d", "conv3d", "depthwise", "grouped", "transposed", "concat", "channel_shuffle",
    "pixel_shuffle",
    "flatten_permute", "tokens", "module_twice", "tied_autoencoder", "layer_scale", "stage", "residual_conv", "mlp_bn",
]  # fmt: skip


class _Squared(torch.overrides.TorchFunctionMode):
    """Runs a model as the network of path sums: no activations, sums for maxima, squared averages."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (F.relu, F.leaky_relu, torch.relu, torch.relu_):
            return args[0]
        if func in (torch.clamp, torch.Tensor.clamp):
            return args[0]
        if func is F.max_pool1d or func is F.max_pool2d:
            kwargs.pop("return_indices", None)
            x, k, *rest = args
            stride, padding = kwargs.get("stride") or k, kwargs.get("padding", 0)
            if func is F.max_pool1d:
                return F.avg_pool1d(x, k, stride, padding) * k
            return F.avg_pool2d(x, k, stride, padding, divisor_override=1)
        if func is F.adaptive_max_pool1d:
            return F.adaptive_avg_pool1d(*args[:2]) * (args[0].shape[-1] // args[1])
        if func in (F.avg_pool2d, F.avg_pool3d):
            out = func(*args, **kwargs)
            return out / (args[0][0, 0].numel() / out[0, 0].numel())
        if func is F.adaptive_avg_pool2d:
            return func(*args) / args[0].shape[-1] ** 2
        if func in (torch.Tensor.mean,):
            return func(*args, **kwargs) / args[0].shape[1]
        if func is F.batch_norm:
            x, mean, var = args[:3]
            shape = [1, -1] + [1] * (x.dim() - 2)
            gain = (kwargs["weight"] / (var + kwargs["eps"])).view(shape)  # the weight is squared already
            return x * gain + (mean**2).view(shape) * gain + kwargs["bias"].view(shape)
        return func(*args, **kwargs)


def brute_force(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    squares = {n: (p.detach() ** 2).requires_grad_() for n, p in model.named_parameters()}
    with _Squared():
        out = torch.func.functional_call(copy.deepcopy(model).eval(), squares, (torch.ones_like(x),))
    grads = torch.autograd.grad(out.sum(), list(squares.values()), allow_unused=True)
    return {n: g for n, g in zip(squares, grads, strict=True) if g is not None}


@pytest.mark.parametrize("name", PLAIN)
def test_against_autograd(name):
    case = BY_NAME[name]
    model, x = case.model(), case.input()[:1]
    expected = brute_force(model, x)
    g = pathcond.path_magnitudes(model, x)
    assert set(g) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(g[key], value, rtol=1e-11, atol=1e-14)
    assert all(log == 0.0 for log in g.log_scale.values())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_case_runs_and_follows_the_scales(case):
    """g of the rescaled model is exp(Bu) g: the path-lifting does not change."""
    model, x = case.model(), case.input()[:1]
    graph = pathcond.extract_graph(model, x)
    g = pathcond.path_magnitudes(model, x, graph=graph)
    assert g
    assert all(bool((t >= 0).all()) for t in g.values())
    u = torch.randn(graph.units, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pathcond.apply_scales_(model, graph, u)
    after = pathcond.path_magnitudes(model, x)
    full = torch.cat((torch.zeros(1, dtype=torch.float64), u))
    for name, t in g.items():
        scales = graph.params.get(name)
        factor = (full[scales.col] - full[scales.row]).exp() if scales else torch.ones(())
        torch.testing.assert_close(after[name], t * factor, rtol=1e-9, atol=1e-12)


class Sums(nn.Module):
    """Sums with factors, on either side, of data and parameters."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.p, self.q = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        h = torch.add(self.p, torch.relu(self.a(x)), alpha=3.0)
        h = torch.sub(h, self.q, alpha=0.5) + 2.0 * torch.relu(self.b(x))
        return self.c(torch.relu(h))


def test_sums_with_factors():
    torch.manual_seed(0)
    model, x = Sums().double(), torch.ones(1, 3, dtype=torch.float64)
    g = pathcond.path_magnitudes(model, x)
    a2, b2, c2 = ({n: p.detach() ** 2 for n, p in m.named_parameters()} for m in (model.a, model.b, model.c))
    out = c2["weight"].sum(0)
    mass = 9 * (a2["weight"].sum(1) + a2["bias"]) + model.p.detach() ** 2 + 0.25 * model.q.detach() ** 2
    mass = mass + 4 * (b2["weight"].sum(1) + b2["bias"])
    expected = {"p": out, "q": 0.25 * out, "a.bias": 9 * out, "b.bias": 4 * out, "c.weight": mass.expand(2, 4)}
    for name, value in expected.items():
        torch.testing.assert_close(g[name], value, rtol=1e-12, atol=0)
    assert pathcond.extract_graph(model, x).units == 4


def test_batch_multiplies_everything():
    case = BY_NAME["conv_pools"]
    one = pathcond.path_magnitudes(case.model(), case.input()[:1])
    three = pathcond.path_magnitudes(case.model(), case.input())
    for name in one:
        torch.testing.assert_close(three[name], 3 * one[name], rtol=1e-12, atol=0)


def test_nothing_is_touched():
    model = mlp(3, 4, 5, 2, norm=nn.BatchNorm1d)
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    model[2].eval()
    model(torch.randn(4, 3)).sum().backward()
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    grads = [p.grad.clone() for p in model.parameters()]
    flags = [m.training for m in model.modules()]
    hooks = len(model[0]._forward_hooks)
    with torch.inference_mode():
        pathcond.path_magnitudes(model, torch.ones(1, 3))
    pathcond.count_paths(model, torch.ones(1, 3))
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters(), strict=True))
    assert [m.training for m in model.modules()] == flags
    assert len(model[0]._forward_hooks) == hooks
    assert torch.equal(rng, torch.get_rng_state())


def test_float32_is_close_and_float64_on_demand():
    torch.manual_seed(0)
    model, x = mlp(20, 30, 30, 5), torch.ones(1, 20)
    exact = pathcond.path_magnitudes(copy.deepcopy(model).double(), x.double())
    for dtype, rtol in ((None, 1e-5), (torch.float64, 1e-12)):
        g = pathcond.path_magnitudes(model, x, dtype=dtype)
        assert all(t.dtype == torch.float64 for t in g.values())
        for name, t in exact.items():
            torch.testing.assert_close(g[name], t, rtol=rtol, atol=0)


def test_tiny_weights_do_not_underflow():
    """A float32 model whose squares leave float32 is computed again in float64."""
    model, x = mlp(3, 4, 4, 2), torch.ones(1, 3)
    with torch.no_grad():
        model[0].weight[0] *= 1e-21
        model[0].bias[0] *= 1e-21
    exact = pathcond.path_magnitudes(copy.deepcopy(model).double(), x.double())
    g = pathcond.path_magnitudes(model, x)
    assert float(exact["2.weight"][0, 0]) > 0
    for name, t in exact.items():
        torch.testing.assert_close(g[name], t, rtol=1e-6, atol=0)


@pytest.mark.parametrize("std", [1e-3, 1.0, 3.0])
def test_a_thousand_layers(std):
    """Path norms far outside float64: ratios of entries still follow the recursion in logarithms."""
    torch.manual_seed(0)
    width, depth = 4, 1000
    model = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, std)
    g = pathcond.path_magnitudes(model, torch.ones(1, width).double())
    layers = [m for m in model if isinstance(m, nn.Linear)]
    forward, log = torch.ones(width, dtype=torch.float64), 0.0
    inputs = []
    for layer in layers:
        inputs.append((forward, log))
        forward = layer.weight.detach() ** 2 @ forward + layer.bias.detach() ** 2 * math.exp(min(700, -log))
        top = float(forward.amax())
        forward, log = forward / top, log + math.log(top)
    back, blog = torch.ones(width, dtype=torch.float64), 0.0
    for i in reversed(range(depth)):
        a, alog = inputs[i]
        expected = torch.outer(back, a).log() + alog + blog
        found = g[f"{2 * i}.weight"].log() + g.log_scale[f"{2 * i}.weight"]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)
        back = layers[i].weight.detach().T ** 2 @ back
        top = float(back.amax())
        back, blog = back / top, blog + math.log(top)


def test_nan_weight_is_named():
    model = mlp(3, 4, 2)
    model[2].weight.data[0, 0] = math.nan
    for call in (pathcond.path_magnitudes, pathcond.rescale_):
        with pytest.raises(pathcond.PathCondError, match=r"1 NaN or infinite entries of 8 in '2\.weight'"):
            call(model, torch.ones(1, 3))
    with pytest.raises(pathcond.PathCondError, match="pooling"):
        pathcond.path_magnitudes(mlp(3, 4, 2), torch.ones(1, 3), pooling="max")


def test_pools_by_hand():
    """Each kind of pool against a sum over its cells, padding and ragged windows included."""
    x = torch.rand(1, 2, 7, 7, dtype=torch.float64)
    for pool in (
        nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(2, dilation=2), nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(3, divisor_override=5),
        nn.AdaptiveAvgPool2d(3), nn.AdaptiveAvgPool2d((2, None)), nn.AdaptiveMaxPool2d((3, 2)),
    ):  # fmt: skip
        weights = _coefficients(pool, x)  # output cell by input cell
        for pooling, coefficient in (("exact", weights**2), ("plain", None)):
            model = Lambda(lambda s, x: s.b(s.pool(s.a(x)).flatten(1)), a=nn.Conv2d(2, 2, 1), pool=pool,
                           b=nn.Linear(2 * weights.shape[0], 1)).double()  # fmt: skip
            g = pathcond.path_magnitudes(model, x, pooling=pooling)
            mass = (model.a.weight.detach() ** 2).sum((1, 2, 3)) + model.a.bias.detach() ** 2
            if coefficient is None:
                expected = pool(mass.view(1, 2, 1, 1).expand(1, 2, 7, 7)).flatten(1)
            else:
                expected = (mass[:, None] * coefficient.sum(1)).reshape(1, -1)
            torch.testing.assert_close(g["b.weight"], expected, rtol=1e-12, atol=0)


def _coefficients(pool: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """How each output cell depends on each input cell: 1 in a maximum's window, the weight in an average's."""
    n = x[0, 0].numel()
    probes = torch.eye(n, dtype=torch.float64).view(n, 1, *x.shape[2:])
    return pool(probes).reshape(n, -1).T


def test_path_counts_of_the_paper():
    model = nn.Sequential(nn.Flatten(), mlp(3072, 500, 500, 500, 10))
    x = torch.ones(1, 3, 32, 32)
    exact = ((3072 + 1) * 500 + 1) * 500
    exact = ((exact + 1) * 500 + 1) * 10
    assert pathcond.count_paths(model, x) == pytest.approx(exact, rel=1e-12)
    assert pathcond.count_paths(model, x, log10=True) == pytest.approx(math.log10(exact), rel=1e-12)
    deep = nn.Sequential(*[nn.Linear(500, 500) for _ in range(200)])
    assert pathcond.count_paths(deep, torch.ones(1, 500)) == math.inf
    assert pathcond.count_paths(deep, torch.ones(1, 500), log10=True) == pytest.approx(201 * math.log10(500), abs=1e-2)
    with pytest.raises(pathcond.PathCondError, match="'paper', 'all'"):
        pathcond.count_paths(model, x, pooling="exact")


@pytest.mark.parametrize(
    ("build", "parameters", "paper", "every"),
    [
        (lambda: models.mlp(batchnorm=False), 2_042_510, "3.84e+12", "3.84e+12"),
        (lambda: models.cifar_nv(bias=False), 2_616_576, "4.13e+26", "1.78e+30"),
        (torchvision.models.resnet18, 11_689_512, "2.24e+53", "1.87e+54"),
        (torchvision.models.resnet34, 21_797_672, "1.19e+100", None),
        (torchvision.models.resnet50, 25_557_032, "2.64e+136", None),
        (torchvision.models.vgg16, 138_357_544, "5.89e+54", None),
    ],
    ids=["mlp", "cifar_nv", "resnet18", "resnet34", "resnet50", "vgg16"],
)
def test_table_of_architectures(build, parameters, paper, every):
    """The paper's six rows: parameters, and paths to all digits printed."""
    model, x = build(), torch.ones(1, 3, 32, 32)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert f"{pathcond.count_paths(model, x):.2e}" == paper
    if every is not None:
        assert f"{pathcond.count_paths(model, x, pooling='all'):.2e}" == every


def test_token_inputs():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)).double()
    x = torch.tensor([[2, 5]])
    graph = pathcond.extract_graph(model, x)
    assert graph.units == 7
    g = pathcond.path_magnitudes(model, x)
    assert g["0.weight"][[2, 5]].amin() > 0
    assert g["0.weight"][[0, 1, 3, 4, 6]].abs().amax() == 0
    report = pathcond.rescale_(model, x)
    assert report.output_change < 1e-12
