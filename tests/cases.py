"""Tiny networks for all tests: each with an input and the number of units that must be free and frozen."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond


@dataclass(frozen=True)
class Case:
    """A network, its input shape (without the batch of 3), and how many of its units are free and frozen."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    units: int
    frozen: int = 0

    def model(self, seed: int = 0) -> nn.Module:
        """The network in float64, with every parameter and statistic away from zero, one and each other."""
        torch.manual_seed(seed)
        model = self.build().double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
            for name, b in model.named_buffers():
                if name.endswith("running_var"):
                    b.copy_(0.5 + torch.rand_like(b))
                elif name.endswith("running_mean"):
                    b.copy_(0.5 * torch.randn_like(b))
        return model

    def input(self, seed: int = 1) -> Tensor:
        return torch.randn(3, *self.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Lambda(nn.Module):
    """Layers and random parameters, given by their shapes, as attributes; and a function for the forward pass."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module | tuple[int, ...]) -> None:
        super().__init__()
        self._run = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(torch.randn(part)) if isinstance(part, tuple) else part)

    def forward(self, *inputs: Any) -> Any:
        return self._run(self, *inputs)


def outputs(model: nn.Module, x: Tensor | tuple[Tensor, ...], training: bool) -> Tensor:
    """The output in one mode, with the same random numbers each time; the model is left as it is."""
    model = copy.deepcopy(model).train(training)
    torch.manual_seed(7)
    with torch.no_grad():
        return model(*x) if isinstance(x, tuple) else model(x)


def change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest change of an output relative to its largest entry; NaN if one is not finite."""
    found = [(b - a).abs().amax() / b.abs().amax() for b, a in zip(before, after, strict=True)]
    return float(torch.stack(found).amax())


def random_scales(graph: pathcond.ScaleGraph, seed: int = 3) -> Tensor:
    return torch.randn(graph.units, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_function_kept(
    model: nn.Module, x: Tensor | tuple[Tensor, ...], graph: pathcond.ScaleGraph, tol: float = 1e-9
) -> None:
    """Random scales change no output, in both modes; the model is left as it is."""
    scaled = copy.deepcopy(model)
    pathcond.apply_scales_(scaled, graph, random_scales(graph))
    for training in (False, True):
        found, expected = (outputs(m, x, training) for m in (scaled, model))
        torch.testing.assert_close(found, expected, rtol=tol, atol=tol * float(expected.abs().amax()))


def assert_diag_g_follows(
    model: nn.Module, x: Tensor, graph: pathcond.ScaleGraph, tol: float = 1e-9, but: frozenset[str] = frozenset()
) -> None:
    """diag(G) after a rescaling at random is exp(Bu) diag(G), entry by entry, but for some parameters."""
    before, u = pathcond.compute_diag_g(model, x), random_scales(graph)
    pathcond.apply_scales_(model, graph, u)
    after, full = pathcond.compute_diag_g(model, x), graph.by_number(u)
    for name in before.keys() - but:
        scales = graph.params.get(name)
        factor = (full[scales.col] - full[scales.row]).exp() if scales else torch.ones(())
        atol = 1e-12 * float(before[name].abs().amax())
        torch.testing.assert_close(after[name], before[name] * factor, rtol=tol, atol=atol)


def mlp(
    *widths: int, act: Callable[[], nn.Module] = nn.ReLU, norm: Callable[[int], nn.Module] | None = None
) -> nn.Module:
    layers: list[nn.Module] = []
    for i, (n, m) in enumerate(zip(widths, widths[1:], strict=False)):
        layers.append(nn.Linear(n, m))
        if i < len(widths) - 2:
            layers += ([norm(m)] if norm else []) + [act()]
    return nn.Sequential(*layers)


def conv(n: int, m: int, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(n, m, k, padding=k // 2, **options)


def head(n: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 2))


def _residual_mlp(s: Any, x: Tensor) -> Tensor:
    x = F.relu(s.stem(x))
    x = F.relu(x + s.b(F.relu(s.a(x))))
    return s.head(x)


def _residual_conv(s: Any, x: Tensor) -> Tensor:
    y = s.bn2(s.c2(F.relu(s.bn1(s.c1(x)))))
    return s.head(F.relu(y + s.bn3(s.short(x))))


def _stage(s: Any, x: Tensor) -> Tensor:
    x = F.relu(s.bn0(s.c0(x)))
    for block in (s.one, s.two):
        y = block(x)
        y += x
        x = F.relu(y, inplace=True)
    return s.head(x)


def _block(n: int) -> nn.Module:
    return nn.Sequential(
        conv(n, 5, bias=False), nn.BatchNorm2d(5), nn.ReLU(inplace=True), conv(5, n, bias=False), nn.BatchNorm2d(n)
    )


def _shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def _views(s: Any, x: Tensor) -> Tensor:
    x = s.a(x)
    left, right = x.chunk(2, 1)
    left.relu_()  # through a view, in place
    right.mul_(0.5)
    x[:, :1] += right[:, :1]  # ties channel 0 to channel 3
    return s.b(F.relu(x))


def _se(s: Any, x: Tensor) -> Tensor:
    x = F.relu(s.a(x))
    gate = torch.sigmoid(s.up(F.relu(s.down(x.mean((2, 3), keepdim=True)))))
    return s.head(F.relu(s.b(gate * x)))


def _branch(s: Any, x: Tensor) -> Tensor:
    if x.dim() > 2:
        x = x.flatten(1)
    return s.b(torch.where(s.a(x) > 0, s.a(x), 0.1 * s.a(x)))


def _scalar_gain(s: Any, x: Tensor) -> Tensor:
    """A parameter without axes, and weights made from parameters alone."""
    w = s.b.weight - s.b.weight.mean(1, keepdim=True)
    return s.c(F.relu(F.linear(F.relu(s.a(x)) * s.gain, w, s.b.bias)))


def _made_weights(s: Any, x: Tensor) -> Tensor:
    """A convolution whose weights are computed from its input."""
    x = F.relu(s.a(x))
    w = (torch.sigmoid(s.b(x.mean((0, 2, 3)))) @ s.w).view(4, 4, 3, 3)
    return s.head(F.relu(F.conv2d(x, w)))


CASES = [
    Case("mlp", lambda: mlp(3, 4, 5, 2), (3,), 9),
    Case("mlp_bn", lambda: mlp(3, 4, 5, 2, norm=nn.BatchNorm1d), (3,), 9),
    Case("mlp_ln", lambda: mlp(3, 4, 5, 2, norm=nn.LayerNorm), (3,), 9),
    Case("mlp_leaky", lambda: mlp(3, 4, 2, act=lambda: nn.LeakyReLU(0.2)), (3,), 4),
    Case("mlp_prelu", lambda: mlp(3, 4, 2, act=lambda: nn.PReLU(4)), (3,), 4),
    Case("mlp_dropout", lambda: nn.Sequential(mlp(3, 4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)), (3,), 8),
    Case("mlp_one_unit_layers", lambda: mlp(1, 1, 1, 1), (1,), 2),
    Case("mlp_bn_no_affine", lambda: mlp(3, 4, 2, norm=lambda n: nn.BatchNorm1d(n, affine=False)), (3,), 0, 4),
    Case("mlp_tanh", lambda: mlp(3, 4, 5, 2, act=nn.Tanh), (3,), 0, 9),
    Case("mlp_relu6", lambda: mlp(3, 4, 2, act=nn.ReLU6), (3,), 0, 4),
    Case("mlp_gelu", lambda: mlp(3, 4, 2, act=nn.GELU), (3,), 0, 4),
    Case("linear", lambda: nn.Linear(3, 2), (3,), 0),
    Case("by_hand", lambda: Lambda(  # plain tensors and matrix products, no layers
        lambda s, x: (x @ s.w1 + s.b1).clamp(min=0) @ s.w2, w1=(3, 5), w2=(5, 2), b1=(5,)), (3,), 5),
    Case("branch_on_shape", lambda: Lambda(_branch, a=nn.Linear(4, 3), b=nn.Linear(3, 2)), (2, 2), 3),
    Case(
        "declared_out_of_order",
        lambda: Lambda(lambda s, x: s.first(F.relu(s.third(F.relu(s.second(x))))), first=nn.Linear(4, 2),
                       second=nn.Linear(3, 5), third=nn.Linear(5, 4)),
        (3,), 9,
    ),
    Case("residual_mlp", lambda: Lambda(_residual_mlp, stem=nn.Linear(3, 4), a=nn.Linear(4, 5), b=nn.Linear(5, 4),
                                        head=nn.Linear(4, 2)), (3,), 9),
    Case("residual_to_input", lambda: Lambda(lambda s, x: s.h(F.relu(x + s.b(F.relu(s.a(x))))), a=nn.Linear(3, 4),
                                             b=nn.Linear(4, 3), h=nn.Linear(3, 2)), (3,), 4, 3),
    Case("residual_self", lambda: Lambda(lambda s, x: s.h(F.relu((y := F.relu(s.a(x))) + s.b(y))), a=nn.Linear(3, 4),
                                         b=nn.Linear(4, 4), h=nn.Linear(4, 2)), (3,), 4),
    Case("tied_to_output", lambda: Lambda(lambda s, x: s.a(x) + s.b(F.relu(s.a(x))), a=nn.Linear(3, 4),
                                          b=nn.Linear(4, 4)), (3,), 0, 4),
    Case("residual_conv", lambda: Lambda(
        _residual_conv, c1=conv(2, 4), bn1=nn.BatchNorm2d(4), c2=conv(4, 3), bn2=nn.BatchNorm2d(3), short=conv(2, 3, 1),
        bn3=nn.BatchNorm2d(3), head=head(3)), (2, 4, 4), 7),
    Case("stage", lambda: Lambda(_stage, c0=conv(2, 4), bn0=nn.BatchNorm2d(4), one=_block(4), two=_block(4),
                                 head=head(4)), (2, 4, 4), 14),
    Case("conv_pools", lambda: nn.Sequential(
        conv(2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), conv(3, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 2)), (2, 8, 8), 10),
    Case("conv_padding_modes", lambda: nn.Sequential(
        conv(2, 3, padding_mode="circular"), nn.ReLU(), conv(3, 3, padding_mode="reflect"), nn.ReLU(),
        nn.ZeroPad2d(1), nn.Conv2d(3, 3, 3, padding="same"), nn.ReLU(), head(3)), (2, 5, 5), 9),
    Case("conv1d", lambda: nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 4, 2), nn.AdaptiveMaxPool1d(2), nn.Flatten(),
        nn.Linear(8, 2)), (2, 9), 7),
    Case("conv3d", lambda: nn.Sequential(
        nn.Conv3d(1, 3, 2), nn.ReLU(), nn.AvgPool3d(2), nn.Conv3d(3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2)),
        (1, 3, 3, 3), 5),
    Case("depthwise", lambda: nn.Sequential(
        conv(2, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4, groups=4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 3, 1),
        nn.ReLU(), head(3)), (2, 4, 4), 11),
    Case("grouped", lambda: nn.Sequential(
        conv(2, 4), nn.ReLU(), conv(4, 6, groups=2), nn.ReLU(), head(6)), (2, 4, 4), 10),
    Case("transposed", lambda: nn.Sequential(
        conv(2, 4), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.ReLU(), nn.ConvTranspose2d(6, 3, 3),
        nn.ReLU(),
        head(3)), (2, 3, 3), 13),
    Case("concat", lambda: Lambda(
        lambda s, x: s.head(F.relu(s.c(torch.cat([F.relu(s.a(x)), F.relu(s.b(x)), x], 1)))), a=conv(2, 3),
        b=conv(2, 2, 1),
        c=conv(7, 3), head=head(3)), (2, 4, 4), 8),
    Case("split", lambda: Lambda(
        lambda s, x: s.head(F.relu(torch.cat([s.b(F.relu(s.a(x)).split([1, 3], 1)[1]), s.a(x)[:, :1]], 1))),
        a=conv(2, 4), b=conv(3, 2), head=head(3)), (2, 4, 4), 6),
    Case("channel_shuffle", lambda: Lambda(
        lambda s, x: s.head(F.relu(s.b(_shuffle(F.relu(s.a(x)), 2)))), a=conv(2, 6), b=conv(6, 3, groups=3),
        head=head(3)),
        (2, 4, 4), 9),
    Case("pixel_shuffle", lambda: nn.Sequential(conv(2, 8), nn.ReLU(), nn.PixelShuffle(2), conv(2, 3), nn.ReLU(),
                                                head(3)), (2, 3, 3), 5),
    Case("upsample", lambda: nn.Sequential(
        conv(2, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"), conv(3, 2), nn.ReLU(), head(2)),
        (2, 3, 3), 5),
    Case("flatten_permute", lambda: Lambda(
        lambda s, x: s.c(F.relu(s.b(F.relu(s.a(x)).permute(0, 2, 3, 1).reshape(x.shape[0], -1)))), a=conv(2, 3),
        b=nn.Linear(27, 4), c=nn.Linear(4, 2)), (2, 3, 3), 7),
    Case("tokens", lambda: Lambda(
        lambda s, x: s.b(F.relu(s.a(x.flatten(2).transpose(1, 2)))).mean(1), a=nn.Linear(2, 5), b=nn.Linear(5, 2)),
        (2, 3, 3), 5),
    Case("views_in_place", lambda: Lambda(_views, a=nn.Linear(3, 6), b=nn.Linear(6, 2)), (3,), 5),
    Case("module_twice", lambda: Lambda(
        lambda s, x: s.c(F.relu(s.b(F.relu(s.b(F.relu(s.a(x))))))), a=nn.Linear(3, 4), b=nn.Linear(4, 4),
        c=nn.Linear(4, 2)), (3,), 4),
    Case("shared_branches", lambda: Lambda(
        lambda s, x: s.b(F.relu(s.a(x))) + s.b(F.relu(s.a(-x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2)), (3,), 4),
    Case("tied_autoencoder", lambda: Lambda(
        lambda s, x: F.linear(F.relu(F.linear(x, s.w, s.b)), s.w.t()), w=(4, 6), b=(4,)), (6,), 0, 1),
    Case("scalar_gain", lambda: Lambda(
        _scalar_gain, a=nn.Linear(3, 4), b=nn.Linear(4, 5), c=nn.Linear(5, 2), gain=()), (3,), 0, 9),
    Case("made_weights", lambda: Lambda(
        _made_weights, a=conv(2, 4), b=nn.Linear(4, 3), head=head(4), w=(3, 4 * 4 * 9)), (2, 5, 5), 0, 11),
    Case("layer_scale", lambda: Lambda(
        lambda s, x: s.c(F.relu(s.b(F.relu(s.a(x) * s.gain + s.shift)))), a=conv(2, 4), b=conv(4, 3), c=head(3),
        gain=(4, 1, 1), shift=(1, 4, 1, 1)), (2, 4, 4), 11),
    Case("group_norm", lambda: nn.Sequential(conv(2, 4), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 3),
                                             nn.InstanceNorm2d(3, affine=True), nn.ReLU(), head(3)), (2, 4, 4), 7),
    Case("squeeze_excite", lambda: Lambda(
        _se, a=conv(2, 4), down=nn.Conv2d(4, 2, 1), up=nn.Conv2d(2, 4, 1), b=conv(4, 3), head=head(3)),
        (2, 4, 4), 9, 4),
    Case("abs_and_maximum", lambda: Lambda(
        lambda s, x: s.c(torch.maximum(s.a(x).abs(), s.b(x))), a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(4, 2)),
        (3,), 4),
    Case("weight_norm", lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
        (3,), 3, 4),
]  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
