"""One table of networks for all tests, each with its inputs, its number of free units and of frozen channels."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import pathcond
from pathcond.isolation import call_isolated
from pathcond.tracing import outputs_in

Given = tuple[int, ...] | Tensor
D = torch.float64


class CastsToFloat64(TorchFunctionMode):
    """Casts to float32 become casts to float64: some models compute in float32 for weights of any dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return (Tensor.double if func is Tensor.float else func)(*args, **kwargs)


class Case:
    """A network, the shapes of its inputs (or the inputs), and the numbers of free units and frozen channels.

    ``ends`` names parameters in front of operations at which paths end, so that their diag(G) is not that of all paths.
    """

    def __init__(
        self, name: str, units: int, frozen: int, network: nn.Module, *given: Given, ends: tuple[str, ...] = ()
    ) -> None:
        self.name, self.units, self.frozen, self.network, self.given, self.ends = (
            name, units, frozen, network, given, ends,
        )  # fmt: skip

    def model(self, seed: int = 0) -> nn.Module:
        """The network in float64, with every parameter and statistic away from zero, one and each other."""
        torch.manual_seed(seed)
        model = copy.deepcopy(self.network).double()
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(0.2, 0.6)
            for name, b in model.named_buffers():
                if name.endswith("running_var"):
                    b.uniform_(0.5, 1.5)
                elif name.endswith("running_mean"):
                    b.normal_(0.0, 0.5)
        return model

    def input(self, seed: int = 1, more: int = 0) -> Any:
        """A tensor, or a tuple of several; ``more`` makes the batch larger."""
        draw = torch.Generator().manual_seed(seed)
        found = tuple(
            given[(torch.arange(len(given) + more) + seed - 1) % len(given)]
            if isinstance(given, Tensor)
            else torch.randn(given[0] + more, *given[1:], generator=draw, dtype=D)
            for given in self.given
        )
        return found if len(found) > 1 else found[0]

    @property
    def graph(self) -> pathcond.ScaleGraph:
        """The graph of ``model()`` on ``input()``, extracted once for all tests."""
        return _extracted(self)


@cache
def _extracted(case: Case) -> pathcond.ScaleGraph:
    return pathcond.extract_graph(case.model(), case.input())


class Lambda(nn.Module):
    """Layers and random parameters, given by their shapes, as attributes; and a function for the forward pass."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module | tuple[int, ...]) -> None:
        super().__init__()
        self.forward = forward.__get__(self)
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(torch.randn(part)) if isinstance(part, tuple) else part)


def one_hidden_layer(
    forward: Callable[..., Any] = lambda s, x: s.b(F.relu(s.a(x))), inputs: int = 5, **more: nn.Module
) -> Lambda:
    """A function of two layers, ``a`` with eight outputs and ``b`` with two, and of more modules."""
    torch.manual_seed(0)
    return Lambda(forward, a=nn.Linear(inputs, 8), b=nn.Linear(8, 2), **more)


def outputs(model: nn.Module, x: Any, training: bool) -> Tensor:
    """The output in one mode, with the same random numbers each time; the model is left as it is."""
    model = copy.deepcopy(model).train(training)
    torch.manual_seed(7)
    with torch.no_grad():
        return model(*x) if isinstance(x, tuple) else model(x)


def outputs_in_mode(model: nn.Module, example_input: Any, training: bool) -> list[Tensor]:
    """Outputs in a mode, with the same random draws each time; the model is left as it was.

    Where weights are in float64, casts to float32 become casts to float64.
    """
    casts = CastsToFloat64() if any(p.dtype is D for p in model.parameters()) else nullcontext()
    with casts:
        found = outputs_in(call_isolated(model, example_input, training))
    return [t for t in found if t.is_floating_point()]


def change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest change of an output relative to its largest entry; NaN if one is not finite."""
    found = [(b - a).abs().amax() / b.abs().amax() for b, a in zip(before, after, strict=True)]
    return float(torch.stack(found).amax())


def changes_under_random_scales(
    model: nn.Module, x: Any, graph: pathcond.ScaleGraph, seed: int
) -> tuple[list[list[Tensor]], list[float]]:
    """Outputs in eval and in training mode, and by how much they change when the model is rescaled at random."""
    before = [outputs_in_mode(model, x, mode) for mode in (False, True)]
    pathcond.apply_scales_(model, graph, random_scales(graph, seed))
    return before, [change(b, outputs_in_mode(model, x, mode)) for b, mode in zip(before, (False, True), strict=True)]


def random_scales(graph: pathcond.ScaleGraph, seed: int = 3) -> Tensor:
    return torch.randn(graph.units, generator=torch.Generator().manual_seed(seed), dtype=D) / 2


def rescaled(model: nn.Module, graph: pathcond.ScaleGraph, seed: int = 3) -> nn.Module:
    """A copy of a model with random scales."""
    scaled = copy.deepcopy(model)
    pathcond.apply_scales_(scaled, graph, random_scales(graph, seed))
    return scaled


def assert_function_kept(model: nn.Module, x: Any, graph: pathcond.ScaleGraph, tol: float = 1e-9) -> None:
    """Random scales change no output, in both modes; the model is left as it is."""
    scaled = rescaled(model, graph)
    for training in (False, True):
        found, expected = (outputs(m, x, training) for m in (scaled, model))
        torch.testing.assert_close(found, expected, rtol=tol, atol=tol * float(expected.abs().amax()))


def assert_diag_g_follows(
    model: nn.Module, x: Any, graph: pathcond.ScaleGraph, tol: float = 1e-9, but: tuple[str, ...] = ()
) -> None:
    """diag(G) after a rescaling at random is exp(Bu) diag(G), entry by entry, but for some parameters."""
    before, full = pathcond.compute_diag_g(model, x, graph=graph), graph.by_number(2 * random_scales(graph))
    after = pathcond.compute_diag_g(rescaled(model, graph), x, graph=graph)
    for name in before.keys() - set(but):
        scales = graph.params.get(name)
        factor = (full[scales.col] - full[scales.row]).exp() if scales else torch.ones(())
        atol = 1e-12 * float(before[name].abs().amax())
        torch.testing.assert_close(after[name], before[name] * factor, rtol=tol, atol=atol)


def mlp(
    *widths: int, act: Callable[[], nn.Module] = nn.ReLU, norm: Callable[[int], nn.Module] | None = None
) -> nn.Sequential:
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


# ---- forward passes that need more than one expression


def _residual_mlp(s: Any, x: Tensor) -> Tensor:
    x = F.relu(s.stem(x))
    return s.head(F.relu(x + s.b(F.relu(s.a(x)))))


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
    left, right = x[:, :3], x[:, 3:]
    left.mul_(2.0)  # through a view, in place
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
    w = s.b.weight - s.b.weight.mean(1, keepdim=True)
    return s.c(F.relu(F.linear(F.relu(s.a(x)) * s.gain, w, s.b.bias)))


def _made_weights(s: Any, x: Tensor) -> Tensor:
    x = F.relu(s.a(x))
    w = (torch.sigmoid(s.b(x.mean((0, 2, 3)))) @ s.w).view(4, 4, 3, 3)
    return s.head(F.relu(F.conv2d(x, w)))


def _qkv(s: Any, x: Tensor, size: int = 3) -> list[Tensor]:
    return [layer(x).unflatten(-1, (-1, size)).transpose(1, 2) for layer in (s.q, s.k, s.v)]


def _sdpa(s: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(s, x)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return s.o(y.transpose(1, 2).flatten(2))


def _matmul(s: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(s, x)
    scores = (q @ k.transpose(-1, -2) / 3**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    return s.o((F.dropout(scores.softmax(-1), 0.0) @ v).transpose(1, 2).flatten(2))


def _rotary(s: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(s, x, 4)
    angle = torch.arange(5.0, dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1], dtype=x.dtype)

    def turn(y: Tensor) -> Tensor:
        return y * angle.cos() + torch.cat((-y[..., 2:], y[..., :2]), -1) * angle.sin()

    return s.o(F.scaled_dot_product_attention(turn(q), turn(k), v).transpose(1, 2).flatten(2))


def _einsum(s: Any, x: Tensor) -> Tensor:
    q, k, v = (torch.einsum("...td,dhk->...thk", x, w) for w in (s.wq, s.wk, s.wv))
    weights = torch.einsum("bqhk,bshk->bhqs", q, k).softmax(-1)
    return torch.einsum("bqhk,hkd->bqd", torch.einsum("bhqs,bshk->bqhk", weights, v), s.wo)


def _baddbmm(s: Any, x: Tensor) -> Tensor:
    bias = torch.ones(1, 5, 5, dtype=x.dtype)
    return s.o(torch.baddbmm(bias, s.q(x), s.k(x).transpose(1, 2), alpha=0.3).softmax(-1).bmm(s.v(x)))


def _chunks(s: Any, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w, b) for w, b in zip(s.w.chunk(3, 0), s.b.unbind(0), strict=True))
    return s.o(F.scaled_dot_product_attention(q, k, v))


def _stacked(s: Any, x: Tensor) -> Tensor:
    y = F.scaled_dot_product_attention(*(F.linear(x, w) for w in s.w.unbind(0)))
    halves = [F.relu(F.linear(y, s.o[part], s.c[part])) for part in (slice(0, 6), slice(6, 12))]
    return F.linear(halves[0] + halves[1], s.h)


def _gain(s: Any, x: Tensor) -> Tensor:
    y = s.a(x)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return s.b(y * (1.0 + s.w))


def _recurrent(start: Callable[[Tensor], Tensor]) -> Lambda:
    """A recurrent network by hand, which starts from zeros."""

    def forward(s: Any, x: Tensor) -> Tensor:
        h = start(x)
        for now in x.unbind(1):
            h = F.relu(s.i(now) + s.h(h))
        return s.o(h)

    return Lambda(forward, i=L(5, 8), h=L(8, 8), o=L(8, 2))


def _experts_by_where(s: Any, x: Tensor) -> Tensor:
    """Each expert reads the tokens that the router sends to it, as many as there are."""
    x = s.norm(x)
    weights, chosen = s.router(x).softmax(-1).topk(2, -1)
    mask, result = F.one_hot(chosen, 3).permute(2, 1, 0), torch.zeros_like(x)
    for index in range(3):
        place, token = torch.where(mask[index])
        y = s.down[index](F.relu(s.up[index](x[token])))
        result.index_add_(0, token, y * weights[token, place, None])
    return result


def _experts_by_split(s: Any, x: Tensor) -> Tensor:
    """Tokens in the order of their experts, in parts whose sizes ``tolist`` returns."""
    x = s.norm(x)
    weights, chosen = s.router(x).softmax(-1).max(-1)
    order, sizes = chosen.argsort(), F.one_hot(chosen, 3).sum(0).tolist()
    if hasattr(s, "branch") and sizes[0] > 2:
        return x
    parts = zip(x[order].split(sizes), s.up, s.down, strict=True)
    y = torch.cat([down(F.relu(up(part))) for part, up, down in parts])
    return torch.zeros_like(x).index_add(0, order, y * weights[order, None])


def _experts(forward: Callable[[Any, Tensor], Tensor]) -> Lambda:
    up, down = (nn.ModuleList(L(*sizes) for _ in range(3)) for sizes in ((8, 6), (6, 8)))
    return Lambda(forward, norm=nn.RMSNorm(8), router=L(8, 3, bias=False), up=up, down=down)


def _visible_blocks(s: Any, x: Tensor) -> Tensor:
    """For each token the mean of pairs of the tokens before it, selected by a constant mask."""
    h, found = F.relu(s.a(x)), []
    for row in torch.ones(5, 5, dtype=torch.bool).tril():
        seen = row.nonzero()[:, 0]
        pairs = seen.shape[0] // 2
        if pairs:
            found.append(h[:, seen[: 2 * pairs].view(pairs, 2)].mean((1, 2)))
    return s.b(torch.stack(found, 1))


def _masked_weights(s: Any, x: Tensor) -> Tensor:
    mask = (torch.arange(18).reshape(6, 3) % 2 == 0).to(x.dtype)
    return F.linear(F.relu(F.linear(x, s.a * mask)), 0.5 * s.b / 3)


def relu2(x: Tensor) -> Tensor:
    return F.relu(x) ** 2


def _transformer(s: Any, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in s.qkv(s.norm1(x)).chunk(3, -1))
    x = x + s.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return s.head(s.norm3(x + s.down(F.relu(s.up(s.norm2(x))))))


def _written_by_mask(s: Any, h: Tensor, x: Tensor) -> Tensor:
    filled = torch.empty_like(h)
    filled[:] = h
    filled[h > 0.5] = 0.0
    return s.fc2(filled)


def _data_replaced(s: Any, h: Tensor, x: Tensor) -> Tensor:
    """As where averaged weights are swapped in."""
    own, s.fc2.weight.data = s.fc2.weight.data, s.w.data
    made = s.fc2(h)
    s.fc2.weight.data = own
    return made


def _lists_written(s: Any, h: Tensor, x: Tensor) -> Tensor:
    weights = [p.data for p in s.fc2.parameters()]
    own = [t.clone() for t in weights]
    torch._foreach_copy_(weights, [s.w, s.v])
    made = s.fc2(h)
    torch._foreach_copy_(weights, own)
    return made


def _int_copy(s: Any, h: Tensor, x: Tensor) -> Tensor:
    q = torch.zeros(3, 8, dtype=torch.long)
    q[:] = h * 10
    return s.fc2(q.double())


def tail(forward: Callable[[Any, Tensor, Tensor], Tensor], **parts: tuple[int, ...]) -> Lambda:
    """A function of a hidden layer and the input."""
    return Lambda(lambda s, x: forward(s, F.relu(s.fc1(x)), x), fc1=L(6, 8), fc2=L(8, 5), **parts)


def recurrent(head: nn.Module, **options: Any) -> Lambda:
    rnn = nn.RNN(3, 4, nonlinearity="relu", batch_first=True, **options)
    return Lambda(lambda s, x: s.o(s.r(x)[0]), r=rnn, o=head)


def unruled(layer: Callable[[Any, Tensor], Tensor], **parts: nn.Module | tuple[int, ...]) -> Lambda:
    """A layer without a rule in front of a ReLU."""
    model = Lambda(lambda s, x: s.out(F.relu(layer(s, x))), **parts, out=L(8, 2))
    model.register_buffer("fixed", torch.randn(8, 5))
    return model


def _zeros_joined(s: Any, x: Tensor) -> Tensor:
    h = torch.cat([torch.zeros(2, 1, 8, dtype=x.dtype), F.relu(s.a(x))], 1) + s.p
    return torch.cat((s.c(h[:, 1:].mean(1)), h[:, 0]), 1)


def _zeros_written(s: Any, x: Tensor) -> Tensor:
    h = F.relu(s.a(x)).clone()
    h[:, 0] = 0
    h = s.p + h
    return torch.cat((s.c(h[:, 1:].mean(1)), torch.sigmoid(h[:, 0])), 1)


def _zeros_maximum(s: Any, x: Tensor) -> Tensor:
    h = torch.zeros(2, 5, 8, dtype=x.dtype)
    h[:, 1:] = s.a(x)
    h = torch.maximum(h, s.p.view(1, 1, -1))
    return torch.cat((s.c(h[:, 1:].mean(1)), h[:, 0].exp()), 1)


def embedded(forward: Callable[[Any, Tensor], Tensor]) -> Lambda:
    return Lambda(forward, e=nn.Embedding(10, 6), c=L(6, 4), d=L(6, 4))


def _edges(how: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Lambda:
    """Sums over the edges of a graph."""
    return Lambda(lambda s, x, source, target: s.b(F.relu(s.c(how((h := F.relu(s.a(x))), target, h[source])))),
                  a=L(8, 6), c=L(6, 6), b=L(6, 2))  # fmt: skip


L = nn.Linear
IDS, ZERO, ENDS = torch.tensor([1, 3, 2]), torch.zeros(1, dtype=torch.long), torch.arange(18).reshape(2, 9) * 7 % 5
ADJACENCY = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=D), -1)
MASK = torch.arange(6) < 2
QKV = {name: L(6, 6) for name in "qkv"}
QK = ("q.weight", "q.bias", "k.weight", "k.bias")

CASES = [
    Case("mlp", 9, 0, mlp(3, 4, 5, 2), (3, 3)),
    Case("mlp_bn", 9, 0, mlp(3, 4, 5, 2, norm=nn.BatchNorm1d), (3, 3)),
    Case("mlp_bn_over_all_batches", 9, 0, mlp(3, 4, 5, 2, norm=partial(nn.BatchNorm1d, momentum=None)), (3, 3)),
    Case("mlp_ln", 9, 0, mlp(3, 4, 5, 2, norm=nn.LayerNorm), (3, 3)),
    Case("mlp_leaky", 4, 0, mlp(3, 4, 2, act=lambda: nn.LeakyReLU(0.2)), (3, 3)),
    Case("mlp_prelu", 4, 0, mlp(3, 4, 2, act=lambda: nn.PReLU(4)), (3, 3)),
    Case("mlp_dropout", 8, 0, nn.Sequential(mlp(3, 4, 4), nn.ReLU(), nn.Dropout(0.5), L(4, 2)), (3, 3)),
    Case("mlp_one_unit_layers", 2, 0, mlp(1, 1, 1, 1), (3, 1)),
    Case("mlp_bn_no_affine", 0, 4, mlp(3, 4, 2, norm=lambda n: nn.BatchNorm1d(n, affine=False)), (3, 3)),
    Case("mlp_tanh", 0, 9, mlp(3, 4, 5, 2, act=nn.Tanh), (3, 3)),
    Case("mlp_gelu", 0, 4, mlp(3, 4, 2, act=nn.GELU), (3, 3)),
    Case("linear", 0, 0, L(3, 2), (3, 3)),
    Case("by_hand", 5, 0, Lambda(  # plain tensors and matrix products, no layers
        lambda s, x: (x @ s.w1 + s.b1).clamp(min=0) @ s.w2, w1=(3, 5), w2=(5, 2), b1=(5,)), (3, 3)),
    Case("branch_on_shape", 0, 3, Lambda(_branch, a=L(4, 3), b=L(3, 2)), (3, 2, 2)),
    Case("declared_out_of_order", 9, 0, Lambda(
        lambda s, x: s.first(F.relu(s.third(F.relu(s.second(x))))), first=L(4, 2), second=L(3, 5), third=L(5, 4)),
        (3, 3)),
    Case("residual_mlp", 9, 0, Lambda(_residual_mlp, stem=L(3, 4), a=L(4, 5), b=L(5, 4), head=L(4, 2)), (3, 3)),
    Case("residual_to_input", 4, 3, Lambda(
        lambda s, x: s.h(F.relu(x + s.b(F.relu(s.a(x))))), a=L(3, 4), b=L(4, 3), h=L(3, 2)), (3, 3)),
    Case("residual_self", 4, 0, Lambda(
        lambda s, x: s.h(F.relu((y := F.relu(s.a(x))) + s.b(y))), a=L(3, 4), b=L(4, 4), h=L(4, 2)), (3, 3)),
    Case("tied_to_output", 0, 4, Lambda(lambda s, x: s.a(x) + s.b(F.relu(s.a(x))), a=L(3, 4), b=L(4, 4)), (3, 3)),
    Case("residual_conv", 7, 0, Lambda(
        _residual_conv, c1=conv(2, 4), bn1=nn.BatchNorm2d(4), c2=conv(4, 3), bn2=nn.BatchNorm2d(3), short=conv(2, 3, 1),
        bn3=nn.BatchNorm2d(3), head=head(3)), (3, 2, 4, 4)),
    Case("stage", 14, 0, Lambda(_stage, c0=conv(2, 4), bn0=nn.BatchNorm2d(4), one=_block(4), two=_block(4),
                                head=head(4)), (3, 2, 4, 4)),
    Case("conv_pools", 10, 0, nn.Sequential(
        conv(2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), conv(3, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        L(16, 3), nn.ReLU(), L(3, 2)), (3, 2, 8, 8)),
    Case("conv_padding_modes", 9, 0, nn.Sequential(
        conv(2, 3, padding_mode="circular"), nn.ReLU(), conv(3, 3, padding_mode="reflect"), nn.ReLU(),
        nn.ZeroPad2d(1), nn.Conv2d(3, 3, 3, padding="same"), nn.ReLU(), head(3)), (3, 2, 5, 5)),
    Case("conv1d", 7, 0, nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 4, 2), nn.AdaptiveMaxPool1d(2), nn.Flatten(),
        L(8, 2)), (3, 2, 9)),
    Case("conv3d", 5, 0, nn.Sequential(
        nn.Conv3d(1, 3, 2), nn.ReLU(), nn.AvgPool3d(2), nn.Conv3d(3, 2, 1), nn.ReLU(), nn.Flatten(), L(2, 2)),
        (3, 1, 3, 3, 3)),
    Case("depthwise", 11, 0, nn.Sequential(
        conv(2, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4, groups=4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 3, 1),
        nn.ReLU(), head(3)), (3, 2, 4, 4)),
    Case("grouped", 10, 0, nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 6, groups=2), nn.ReLU(), head(6)),
         (3, 2, 4, 4)),
    Case("transposed", 13, 0, nn.Sequential(
        conv(2, 4), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.ReLU(), nn.ConvTranspose2d(6, 3, 3),
        nn.ReLU(), head(3)), (3, 2, 3, 3)),
    Case("concat", 8, 0, Lambda(
        lambda s, x: s.head(F.relu(s.c(torch.cat([F.relu(s.a(x)), F.relu(s.b(x)), x], 1)))), a=conv(2, 3),
        b=conv(2, 2, 1), c=conv(7, 3), head=head(3)), (3, 2, 4, 4)),
    Case("split", 6, 0, Lambda(
        lambda s, x: s.head(F.relu(torch.cat([s.b(F.relu(s.a(x)).split([1, 3], 1)[1]), s.a(x)[:, :1]], 1))),
        a=conv(2, 4), b=conv(3, 2), head=head(3)), (3, 2, 4, 4)),
    Case("channel_shuffle", 9, 0, Lambda(
        lambda s, x: s.head(F.relu(s.b(_shuffle(F.relu(s.a(x)), 2)))), a=conv(2, 6), b=conv(6, 3, groups=3),
        head=head(3)), (3, 2, 4, 4)),
    Case("pixel_shuffle", 5, 0, nn.Sequential(conv(2, 8), nn.ReLU(), nn.PixelShuffle(2), conv(2, 3), nn.ReLU(),
                                              head(3)), (3, 2, 3, 3)),
    Case("upsample", 5, 0, nn.Sequential(
        conv(2, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"), conv(3, 2), nn.ReLU(), head(2)),
        (3, 2, 3, 3)),
    Case("flatten_permute", 7, 0, Lambda(
        lambda s, x: s.c(F.relu(s.b(F.relu(s.a(x)).permute(0, 2, 3, 1).reshape(x.shape[0], -1)))), a=conv(2, 3),
        b=L(27, 4), c=L(4, 2)), (3, 2, 3, 3)),
    Case("tokens", 5, 0, Lambda(
        lambda s, x: s.b(F.relu(s.a(x.flatten(2).transpose(1, 2)))).mean(1), a=L(2, 5), b=L(5, 2)), (3, 2, 3, 3)),
    Case("views_in_place", 5, 0, Lambda(_views, a=L(3, 6), b=L(6, 2)), (3, 3)),
    Case("module_twice", 4, 0, Lambda(
        lambda s, x: s.c(F.relu(s.b(F.relu(s.b(F.relu(s.a(x))))))), a=L(3, 4), b=L(4, 4), c=L(4, 2)), (3, 3)),
    Case("shared_branches", 4, 0, Lambda(
        lambda s, x: s.b(F.relu(s.a(x))) + s.b(F.relu(s.a(-x))), a=L(3, 4), b=L(4, 2)), (3, 3)),
    Case("tied_autoencoder", 0, 4, Lambda(
        lambda s, x: F.linear(F.relu(F.linear(x, s.w, s.b)), s.w.t()), w=(4, 6), b=(4,)), (3, 6)),
    Case("scalar_gain", 0, 9, Lambda(_scalar_gain, a=L(3, 4), b=L(4, 5), c=L(5, 2), gain=()), (3, 3)),
    Case("made_weights", 0, 11, Lambda(_made_weights, a=conv(2, 4), b=L(4, 3), head=head(4), w=(3, 4 * 4 * 9)),
         (3, 2, 5, 5)),
    Case("layer_scale", 11, 0, Lambda(
        lambda s, x: s.c(F.relu(s.b(F.relu(s.a(x) * s.gain + s.shift)))), a=conv(2, 4), b=conv(4, 3), c=head(3),
        gain=(4, 1, 1), shift=(1, 4, 1, 1)), (3, 2, 4, 4)),
    Case("group_norm", 7, 0, nn.Sequential(
        conv(2, 4), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 3), nn.InstanceNorm2d(3, affine=True), nn.ReLU(), head(3)),
        (3, 2, 4, 4)),
    Case("squeeze_excite", 9, 4, Lambda(
        _se, a=conv(2, 4), down=nn.Conv2d(4, 2, 1), up=nn.Conv2d(2, 4, 1), b=conv(4, 3), head=head(3)), (3, 2, 4, 4)),
    Case("abs_and_maximum", 4, 0, Lambda(
        lambda s, x: s.c(torch.maximum(s.a(x).abs(), s.b(x))), a=L(3, 4), b=L(3, 4), c=L(4, 2)), (3, 3)),
    Case("weight_norm", 3, 4, nn.Sequential(
        nn.utils.parametrizations.weight_norm(L(3, 4)), nn.ReLU(), L(4, 3), nn.ReLU(), L(3, 2)), (3, 3)),
    # attention, gates, cut parameters
    Case("sdpa", 12, 0, Lambda(_sdpa, **QKV, o=L(6, 2)), (2, 5, 6), ends=QK),
    Case("grouped_query", 12, 0, Lambda(_sdpa, **QKV | {"q": L(6, 12)}, o=L(12, 2)), (2, 5, 6), ends=QK),
    Case("matmul", 12, 0, Lambda(_matmul, **QKV, o=L(6, 2)), (2, 5, 6), ends=QK),
    Case("rotary", 12, 0, Lambda(_rotary, q=L(6, 8), k=L(6, 8), v=L(6, 8), o=L(8, 2)), (2, 5, 6), ends=QK),
    Case("einsum", 12, 0, Lambda(_einsum, wq=(6, 2, 3), wk=(6, 2, 3), wv=(6, 2, 3), wo=(2, 3, 6)), (2, 5, 6),
         ends=("wq", "wk")),
    Case("baddbmm", 8, 0, Lambda(_baddbmm, q=L(6, 4), k=L(6, 4), v=L(6, 4), o=L(4, 3)), (2, 5, 6), ends=QK),
    Case("multihead", 12, 0, Lambda(
        lambda s, x, y: s.a(x, y, y)[0], a=nn.MultiheadAttention(6, 2, batch_first=True)), (2, 5, 6), (2, 4, 6),
        ends=("a.in_proj_weight", "a.in_proj_bias")),
    Case("chunks", 8, 0, Lambda(_chunks, w=(12, 6), b=(3, 4), o=L(4, 3)), (2, 5, 6), ends=("w", "b")),
    Case("stacked", 18, 0, Lambda(_stacked, w=(3, 6, 6), o=(12, 6), c=(12,), h=(2, 6)), (2, 5, 6), ends=("w",)),
    Case("overlapping", 1, 0, Lambda(  # seven rows, all tied to one another
        lambda s, x: s.o(F.relu(F.linear(x, s.w[:6])) + F.relu(F.linear(x, s.w[1:]))), w=(7, 3), o=L(6, 2)), (4, 3)),
    Case("strided", 0, 3, Lambda(lambda s, x: s.o(F.relu(F.linear(x, s.w[::2]))), w=(6, 3), o=L(3, 2)), (4, 3)),
    Case("gated", 6, 6, Lambda(lambda s, x: s.o(F.silu(s.g(x)) * s.u(x)), g=L(3, 6), u=L(3, 6), o=L(6, 2)), (4, 3)),
    Case("one_plus_gain", 6, 6, Lambda(_gain, a=L(3, 6), w=(6,), b=L(6, 2)), (4, 3)),
    Case("masked_to_zero", 6, 0, Lambda(
        lambda s, x: s.b(F.relu(s.a(x)).masked_fill(MASK.to(x.device), 0.0)), a=L(3, 6), b=L(6, 2)), (4, 3)),
    Case("masked_to_one", 0, 6, Lambda(
        lambda s, x: s.b(F.relu(s.a(x)).masked_fill(MASK.to(x.device), 1.0)), a=L(3, 6), b=L(6, 2)), (4, 3)),
    Case("masked_weights", 6, 0, Lambda(_masked_weights, a=(6, 3), b=(2, 6)), (4, 3)),
    Case("lora", 8, 0, Lambda(lambda s, x: s.o(F.relu(s.w(x) + 0.3 * s.b(s.a(x)))), w=L(4, 6), a=L(4, 2),
                              b=L(2, 6, bias=False), o=L(6, 2)), (5, 4)),
    Case("recurrent", 8, 0, _recurrent(lambda x: x.new_zeros(len(x), 8)), (2, 4, 5)),
    Case("recurrent_expanded", 8, 0, _recurrent(lambda x: torch.zeros(1, 8).to(x).expand(2, 8)), (2, 4, 5)),
    Case("graph_convolution", 6, 0, Lambda(
        lambda s, x: ADJACENCY.to(x) @ s.b(F.relu(ADJACENCY.to(x) @ s.a(x))), a=L(3, 6), b=L(6, 2)), (4, 3)),
    # sums over edges, and operations that take some of the entries
    Case("index_add", 12, 0, _edges(lambda h, to, picked: torch.zeros_like(h).index_add(0, to, picked)), (5, 8), *ENDS),
    Case("index_add_", 12, 0, _edges(lambda h, to, picked: h.new_zeros(h.shape).index_add_(0, to, picked)), (5, 8),
         *ENDS),
    Case("scatter_add", 12, 0, _edges(lambda h, to, picked: h.scatter_add(0, to[:, None].expand_as(picked), picked)),
         (5, 8), *ENDS),
    Case("topk", 6, 0, Lambda(lambda s, x: s.b(F.relu(s.a(x)).topk(2, 1)[0].flatten(1)), a=L(8, 6), b=L(12, 2)),
         (2, 3, 8)),
    Case("cumsum", 6, 0, Lambda(lambda s, x: s.b(F.relu(s.a(x)).cumsum(1)), a=L(8, 6), b=L(6, 2)), (2, 3, 8)),
    Case("three_factors", 11, 0, Lambda(
        lambda s, x: s.b(F.relu(torch.einsum("bti,ij,jk->btk", x, s.u, s.v))), u=(8, 5), v=(5, 6), b=L(6, 2)),
        (2, 3, 8)),
    Case("bmm", 10, 0, Lambda(lambda s, x: torch.bmm(F.relu(torch.bmm(x, s.u)), s.v), u=(2, 8, 5), v=(2, 5, 3)),
         (2, 3, 8)),
    Case("bmm_left", 10, 0, Lambda(lambda s, x: torch.bmm(s.v, F.relu(torch.bmm(s.u, x))), u=(2, 5, 3), v=(2, 4, 5)),
         (2, 3, 8)),
    Case("experts_by_where", 26, 3, _experts(_experts_by_where), (7, 8)),
    Case("experts_by_split", 26, 3, _experts(_experts_by_split), (7, 8)),
    Case("visible_blocks", 6, 0, Lambda(_visible_blocks, a=L(3, 6), b=L(6, 2)), (2, 5, 3)),
    # indices that are an input
    Case("tied_embedding", 6, 8, Lambda(
        lambda s, i: F.linear(s.c(F.relu(s.b(s.a(i)))), s.a.weight), a=nn.Embedding(7, 4), b=L(4, 6), c=L(6, 4)), IDS),
    Case("rows", 6, 0, Lambda(lambda s, x, i: s.b(F.relu(s.a(x))[i // 2]), a=L(3, 6), b=L(6, 2)), (5, 3),
         torch.tensor([0, 4, 2])),
    Case("channels", 1, 0, Lambda(  # tied to one another, since any of them may be picked
        lambda s, x, i: s.b(F.relu(s.a(x)).gather(1, i)), a=L(3, 6), b=L(6, 2)), (4, 3),
        torch.arange(24).reshape(4, 6) * 5 % 6),
    # powers: no scale crosses them
    Case("pow", 0, 4, Lambda(lambda s, x: s.b(relu2(s.a(x))), a=L(3, 4), b=L(4, 2)), (5, 3)),
    Case("square_in_place", 0, 4, Lambda(lambda s, x: s.b((s.a(x).relu() + 0).square_()), a=L(3, 4), b=L(4, 2)),
         (5, 3)),
    Case("product", 0, 4, Lambda(lambda s, x: s.b(F.relu(y := s.a(x)) * F.relu(y)), a=L(3, 4), b=L(4, 2)), (5, 3)),
    Case("cube", 0, 4, Lambda(lambda s, x: s.b(F.leaky_relu(s.a(x)) ** 3), a=L(3, 4), b=L(4, 2)), (5, 3)),
    Case("square_as_gate", 4, 4, Lambda(lambda s, x: s.b(s.up(x) * relu2(s.a(x))), a=L(3, 4), b=L(4, 2), up=L(3, 4)),
         (5, 3)),
    Case("inverse_twice", 0, 8, Lambda(  # a weight that leads from a channel to its inverse
        lambda s, x: s.c((y := s.a(x)) @ s.b(y).mT), a=L(3, 4), b=L(4, 4), c=L(5, 2)), (2, 5, 3)),
    Case("transformer", 8 * 5 + 12, 16, Lambda(
        _transformer, norm1=nn.LayerNorm(8), qkv=L(8, 24), out=L(8, 8), norm2=nn.LayerNorm(8), up=L(8, 12),
        down=L(12, 8), norm3=nn.LayerNorm(8), head=L(8, 3)), (2, 5, 8),
        ends=("qkv.weight", "qkv.bias", "norm1.weight", "norm1.bias")),
    # code for which a rule could assume too much
    Case("flipped_weight", 0, 8, tail(lambda s, h, x: h @ s.w.flip(0), w=(8, 5)), (3, 6)),
    Case("weight_by_tensor", 0, 8, tail(lambda s, h, x: h @ s.w[torch.tensor([3, 1, 2, 0, 7, 6, 5, 4])], w=(8, 5)),
         (3, 6)),
    Case("rounded_weight", 0, 8, tail(lambda s, h, x: h @ s.w.div(0.1, rounding_mode="floor"), w=(8, 5)), (3, 6)),
    Case("rolled_bias", 0, 8, tail(lambda s, h, x: s.fc2(F.relu(h + s.b.roll(1))), b=(8,)), (3, 6)),
    Case("flipped_gain", 8, 0, tail(lambda s, h, x: s.fc2(F.relu(h * s.b.flip(0))), b=(8,)), (3, 6)),
    Case("shuffled_kernel", 0, 8, tail(
        lambda s, h, x: F.conv2d(h[:, :, None, None], F.channel_shuffle(s.c, 2)).flatten(1), c=(4, 8, 1, 1)), (3, 6)),
    Case("random_order", 1, 0, tail(lambda s, h, x: s.fc2(h[:, torch.randperm(8)])), (3, 6)),
    Case("made_norm_weight", 0, 8, tail(
        lambda s, h, x: s.fc2(h) + F.layer_norm(x[:, :1].expand(-1, 8), (8,), h[0]).sum()), (3, 6)),
    Case("made_norm_bias", 0, 8, tail(
        lambda s, h, x: s.fc2(h) + F.layer_norm(s.fc1(x), (8,), None, h[0]).sum()), (3, 6)),
    Case("made_batch_norm", 0, 8, tail(
        lambda s, h, x: s.fc2(h) + F.batch_norm(torch.cat([x, x], 1)[:, :8], None, None, h[0], h[1], True).sum()),
        (3, 6)),
    Case("made_slope", 0, 8, tail(
        lambda s, h, x: s.fc2(h) + F.prelu(torch.cat([x, x], 1)[:, :8], h[0]).sum()), (3, 6)),
    Case("max_by_keyword", 2, 6, tail(lambda s, h, x: s.fc2(h) + torch.max(x, other=h[:, :6]).sin().sum()), (3, 6)),
    Case("integer_copy", 0, 8, tail(_int_copy), (3, 6)),
    Case("integer_sum", 0, 8, tail(lambda s, h, x: s.fc2(h.detach().sum(0, dtype=torch.long).double())), (3, 6)),
    Case("expanded_weight", 8, 0, tail(lambda s, h, x: F.linear(h, s.v.expand(5, 8)), v=(1, 8)), (3, 6)),
    Case("expanded_bias", 1, 0, tail(lambda s, h, x: s.fc2(F.relu(h + s.one.expand(8))), one=(1,)), (3, 6)),
    Case("expanded_gain", 2, 0, tail(lambda s, h, x: s.fc2(F.relu(h * s.one.expand(8))), one=(1,)), (3, 6)),
    Case("one_bias_for_all", 0, 16, tail(
        lambda s, h, x: s.fc2(F.relu(F.linear(h, s.w @ s.w.T, s.one))), w=(8, 5), one=(1,)), (3, 6)),
    Case("one_bias_own_weight", 0, 13, tail(
        lambda s, h, x: F.linear(F.relu(F.linear(h, s.w.t(), s.one)), s.w), w=(8, 5), one=(1,)), (3, 6)),
    Case("bias_by_row", 8, 0, tail(lambda s, h, x: F.relu(torch.addmm(s.b[:3, None], h, s.w)), b=(8,), w=(8, 5)),
         (3, 6)),
    Case("bias_without_axes", 1, 0, tail(lambda s, h, x: s.fc2(F.relu(torch.add(h, s.b))), b=()), (3, 6)),
    Case("bias_as_factor", 0, 8, tail(lambda s, h, x: s.fc2(F.relu(h * s.b + s.b)), b=(3, 8)), (3, 6)),
    Case("number_as_factor", 0, 8, tail(lambda s, h, x: s.fc2(F.relu(h + s.b) * s.b), b=()), (3, 6)),
    Case("entry_as_factor", 0, 8, tail(lambda s, h, x: s.fc2(h) * s.fc2.weight[0, 0]), (3, 6)),
    Case("boolean_factor", 8, 0, tail(lambda s, h, x: s.fc2(h * (torch.arange(8) > 2))), (3, 6)),
    Case("eight_bits", 0, 8, tail(lambda s, h, x: s.fc2(h.to(torch.float8_e4m3fn).to(h))), (3, 6)),
    Case("written_by_mask", 0, 8, tail(_written_by_mask), (3, 6)),
    Case("data_replaced", 0, 8, tail(_data_replaced, w=(5, 8)), (3, 6)),
    Case("lists_written", 0, 8, tail(_lists_written, w=(5, 8), v=(5,)), (3, 6)),
    Case("rows_by_number", 8, 0, tail(
        lambda s, h, x: s.fc2(h.gather(0, torch.tensor([0, 0, 2])[:, None].expand(-1, 8)))), (3, 6)),
    Case("added_to_a_part", 0, 8, tail(
        lambda s, h, x: s.fc2(h.scatter_add(0, torch.tensor([0, 2, 2])[:, None].expand(-1, 4), x[:, :4]))), (3, 6)),
    Case("empty_start", 8, 0, tail(lambda s, h, x: s.fc2(torch.cat([torch.empty(0), h], 1))), (3, 6)),
    Case("zeros_into_a_layer", 8, 8, tail(
        lambda s, h, x: s.fc2(h + F.linear(h.new_zeros(3, 5), s.w) * s.b), w=(8, 5), b=(8,)), (3, 6)),
    Case("zeros_made_other", 8, 0, tail(lambda s, h, x: s.fc2(h + F.linear(h.new_zeros(3, 5).add_(1), s.w)), w=(8, 5)),
         (3, 6)),
    Case("other_dtype", 0, 8, tail(lambda s, h, x: s.fc2(h) + h.view(torch.int64).sum() * 0), (3, 6)),
    Case("slice_relu_view", 4, 0, tail(lambda s, h, x: s.fc2(F.relu(s.fc1(x)[:, :4]).view(1, 12)[:, :8])), (3, 6)),
    Case("size_by_constants", 8, 0, tail(lambda s, h, x: s.fc2(h)[:, : torch.tensor(1) + torch.tensor(1)]), (3, 6)),
    # tensors made like a value, which freeze nothing
    Case("randn_like", 8, 0, tail(lambda s, h, x: s.fc2(h * torch.randn_like(h))), (3, 6)),
    Case("full_like", 8, 0, tail(lambda s, h, x: s.fc2(h * torch.full_like(h, 2.0))), (3, 6)),
    Case("empty_like", 8, 0, tail(lambda s, h, x: s.fc2(h * torch.empty_like(h).fill_(2.0))), (3, 6)),
    Case("new_ones", 8, 0, tail(lambda s, h, x: s.fc2(h * h.new_ones(h.shape))), (3, 6)),
    Case("drop_path", 8, 0, tail(lambda s, h, x: s.fc2(h * h.new_empty(len(h), 1).bernoulli_(0.9).div_(0.9))), (3, 6)),
    # zeros take the scale of the parameter that is added to them
    Case("zeros_joined", 0, 8, Lambda(_zeros_joined, a=L(5, 8), c=L(8, 3), p=(8,)), (2, 4, 5)),
    Case("zeros_written", 0, 8, Lambda(_zeros_written, a=L(5, 8), c=L(8, 3), p=(1,)), (2, 4, 5)),
    Case("zeros_maximum", 0, 8, Lambda(_zeros_maximum, a=L(5, 8), c=L(8, 3), p=(8,)), (2, 4, 5)),
    # embeddings of constant indices keep their scale
    Case("embedded_relu", 0, 6, embedded(lambda s, i: s.c(F.relu(s.e(i))) + s.d(F.relu(s.e(ZERO)))), IDS),
    Case("embedded_number", 0, 6, embedded(lambda s, i: s.c(F.relu(s.e(i))) + s.d(s.e(ZERO) * 0.5)), IDS),
    Case("embedded_gate", 0, 6, embedded(
        lambda s, i: s.c(F.relu(s.e(i) + s.e(IDS)) * torch.sigmoid(s.e(IDS))) + s.d(s.e(ZERO))), IDS),
    Case("embedded_order", 0, 6, embedded(
        lambda s, i: s.c(F.relu(s.e(i))[:, s.e(ZERO)[0].argsort()]) + s.d(s.e(i))), IDS),
    Case("embedded_weight", 0, 6, embedded(
        lambda s, i: s.c(F.relu(s.e(i))) + s.d(F.linear(s.e(ZERO), s.d.weight.new_ones(6, 6)))), IDS),
    # layers without a rule
    Case("buffer_as_weight", 0, 8, unruled(lambda s, x: F.linear(x, s.fixed)), (3, 5)),
    Case("einsum_of_a_view", 0, 8, unruled(
        lambda s, x: torch.einsum("bi,hoi->bho", x, s.w.view(2, 4, 5)).flatten(1), w=(8, 5)), (3, 5)),
    Case("computed_weight", 0, 8, unruled(lambda s, x: F.linear(x, s.w - s.w.mean()), w=(8, 5)), (3, 5)),
    # recurrent layers with ReLU are followed step by step
    Case("rnn", 4, 0, recurrent(L(4, 2)), (2, 5, 3)),
    Case("rnn_two_ways", 8, 0, recurrent(L(8, 2), bidirectional=True), (2, 5, 3)),
    Case("rnn_two_layers", 8, 0, recurrent(L(4, 2), num_layers=2, dropout=0.5, bias=False), (2, 5, 3)),
    Case("rnn_cell", 4, 0, Lambda(
        lambda s, x: s.o(s.r(x, s.r(x))), r=nn.RNNCell(3, 4, nonlinearity="relu"), o=L(4, 2)), (2, 3)),
    Case("lstm", 0, 8, unruled(lambda s, x: s.lstm(x)[0], lstm=nn.LSTM(5, 8)), (3, 5)),
]  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
