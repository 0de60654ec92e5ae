"""Attention, gates, experts and cut parameters: how many units are free, and that their scales keep the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import Lambda, assert_function_kept, random_scales

L = nn.Linear
ADJACENCY = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64), -1)
MASK = torch.arange(6) < 2


def _qkv(s: Any, x: Tensor) -> list[Tensor]:
    return [layer(x).unflatten(-1, (-1, 3)).transpose(1, 2) for layer in (s.q, s.k, s.v)]


def _sdpa(s: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(s, x)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return s.o(y.transpose(1, 2).flatten(2))


def _matmul(s: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(s, x)
    scores = (q @ k.transpose(-1, -2) / 3**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    return s.o((F.dropout(scores.softmax(-1), 0.0) @ v).transpose(1, 2).flatten(2))


def _rotary(s: Any, x: Tensor) -> Tensor:
    q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (s.q, s.k, s.v))
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
    pieces = zip(s.w.chunk(3, 0), s.b.unbind(0), strict=True)
    q, k, v = (F.linear(x, w, b) for w, b in pieces)
    return s.o(F.scaled_dot_product_attention(q, k, v))


def _stacked(s: Any, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w) for w in s.w.unbind(0))
    y = F.scaled_dot_product_attention(q, k, v)
    halves = [F.relu(F.linear(y, s.o[part], s.c[part])) for part in (slice(0, 6), slice(6, 12))]
    return F.linear(halves[0] + halves[1], s.h)


def _overlapping(s: Any, x: Tensor) -> Tensor:
    return s.o(F.relu(F.linear(x, s.w[:6])) + F.relu(F.linear(x, s.w[1:])))  # seven rows, all tied to one another


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


def _pruned(s: Any, x: Tensor) -> Tensor:
    mask = (torch.arange(18).reshape(6, 3) % 2 == 0).to(x.dtype)
    return F.linear(F.relu(F.linear(x, s.a * mask)), 0.5 * s.b / 3)


# name: (network, shapes of its inputs, free units)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], int]] = {
    "sdpa": (lambda: Lambda(_sdpa, q=L(6, 6), k=L(6, 6), v=L(6, 6), o=L(6, 2)), ((2, 5, 6),), 12),
    "grouped_query": (lambda: Lambda(_sdpa, q=L(6, 12), k=L(6, 6), v=L(6, 6), o=L(12, 2)), ((2, 5, 6),), 12),
    "matmul": (lambda: Lambda(_matmul, q=L(6, 6), k=L(6, 6), v=L(6, 6), o=L(6, 2)), ((2, 5, 6),), 12),
    "rotary": (lambda: Lambda(_rotary, q=L(6, 8), k=L(6, 8), v=L(6, 8), o=L(8, 2)), ((2, 5, 6),), 4 + 8),
    "einsum": (
        lambda: Lambda(_einsum, wq=(6, 2, 3), wk=(6, 2, 3), wv=(6, 2, 3), wo=(2, 3, 6)), ((2, 5, 6),), 12
    ),
    "baddbmm": (lambda: Lambda(_baddbmm, q=L(6, 4), k=L(6, 4), v=L(6, 4), o=L(4, 3)), ((2, 5, 6),), 8),
    "multihead": (
        lambda: Lambda(lambda s, x, y: s.a(x, y, y)[0], a=nn.MultiheadAttention(6, 2, batch_first=True)),
        ((2, 5, 6), (2, 4, 6)),
        12,
    ),
    "chunks": (lambda: Lambda(_chunks, w=(12, 6), b=(3, 4), o=L(4, 3)), ((2, 5, 6),), 8),
    "stacked": (lambda: Lambda(_stacked, w=(3, 6, 6), o=(12, 6), c=(12,), h=(2, 6)), ((2, 5, 6),), 6 + 6 + 6),
    "overlapping": (lambda: Lambda(_overlapping, w=(7, 3), o=L(6, 2)), ((4, 3),), 1),
    "strided": (
        lambda: Lambda(lambda s, x: s.o(F.relu(F.linear(x, s.w[::2]))), w=(6, 3), o=L(3, 2)), ((4, 3),), 0
    ),
    "gated": (
        lambda: Lambda(lambda s, x: s.o(F.silu(s.g(x)) * s.u(x)), g=L(3, 6), u=L(3, 6), o=L(6, 2)), ((4, 3),), 6
    ),
    "one_plus_gain": (lambda: Lambda(_gain, a=L(3, 6), w=(6,), b=L(6, 2)), ((4, 3),), 6),
    "masked_to_zero": (
        lambda: Lambda(lambda s, x: s.b(F.relu(s.a(x)).masked_fill(MASK, 0.0)), a=L(3, 6), b=L(6, 2)), ((4, 3),), 6
    ),
    "masked_to_one": (
        lambda: Lambda(lambda s, x: s.b(F.relu(s.a(x)).masked_fill(MASK, 1.0)), a=L(3, 6), b=L(6, 2)), ((4, 3),), 0
    ),
    "unfold": (
        lambda: Lambda(
            lambda s, x: s.b(F.unfold(F.relu(s.a(x)), 3, padding=1).transpose(1, 2)), a=nn.Conv2d(3, 4, 1), b=L(36, 2)
        ),
        ((2, 3, 5, 5),),
        4,
    ),
    "fold": (
        lambda: Lambda(
            lambda s, x: s.b(F.fold(F.unfold(F.relu(s.a(x)), 2), (5, 5), 2)), a=nn.Conv2d(3, 4, 1),
            b=nn.Conv2d(4, 2, 1),
        ),
        ((2, 3, 5, 5),),
        4,
    ),
    "pruned": (lambda: Lambda(_pruned, a=(6, 3), b=(2, 6)), ((4, 3),), 6),
    "lora": (
        lambda: Lambda(
            lambda s, x: s.o(F.relu(s.w(x) + 0.3 * s.b(s.a(x)))), w=L(4, 6), a=L(4, 2), b=L(2, 6, bias=False), o=L(6, 2)
        ),
        ((5, 4),),
        6 + 2,
    ),
    "recurrent": (lambda: _recurrent(lambda x: x.new_zeros(len(x), 8)), ((2, 4, 5),), 8),
    "recurrent_expanded": (lambda: _recurrent(lambda x: torch.zeros(1, 8).to(x).expand(2, 8)), ((2, 4, 5),), 8),
    "recurrent_repeated": (
        lambda: _recurrent(lambda x: torch.zeros_like(x[:, 0, :1]).repeat(1, 8)), ((2, 4, 5),), 8
    ),
    "graph_convolution": (
        lambda: Lambda(lambda s, x: ADJACENCY @ s.b(F.relu(ADJACENCY @ s.a(x))), a=L(3, 6), b=L(6, 2)), ((4, 3),), 6
    ),
}  # fmt: skip


def _inputs(shapes: tuple[tuple[int, ...], ...]) -> tuple[Tensor, ...]:
    draws = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize("name", CASES)
def test_scales_keep_the_function(name: str) -> None:
    torch.manual_seed(0)
    build, shapes, units = CASES[name]
    model, x = build().double(), _inputs(shapes)
    graph = pathcond.extract_graph(model, x)
    assert graph.units == units, [str(entry) for entry in graph.frozen]
    assert_function_kept(model, x, graph)
    g = pathcond.compute_diag_g(model, x, graph=graph)
    assert all(bool((g[name] > 0).any()) and bool(g[name].isfinite().all()) for name in graph.params)


INDEXED: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], int]] = {
    "embedding_bag": (
        lambda: Lambda(lambda s, i: s.b(F.relu(s.e(i))), e=nn.EmbeddingBag(7, 5), b=L(5, 2)),
        (torch.arange(12).reshape(3, 4) % 7,), 5,
    ),
    "tied": (  # one use has scales along columns, the other along rows: those of the embedding are one, the output's
        lambda: Lambda(lambda s, i: F.linear(s.c(F.relu(s.b(s.a(i)))), s.a.weight), a=nn.Embedding(7, 4), b=L(4, 6),
                    c=L(6, 4)),
        (torch.tensor([1, 3, 2]),), 6,
    ),
    "rows": (
        lambda: Lambda(lambda s, x, i: s.b(F.relu(s.a(x))[i // 2]), a=L(3, 6), b=L(6, 2)),
        (torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 4, 2])), 6,
    ),
    "channels": (  # tied to one another, since any of them may be picked
        lambda: Lambda(lambda s, x, i: s.b(F.relu(s.a(x)).gather(1, i)), a=L(3, 6), b=L(6, 2)),
        (torch.randn(4, 3, dtype=torch.float64), torch.arange(24).reshape(4, 6) * 5 % 6), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_indices_that_are_an_input(name: str) -> None:
    torch.manual_seed(0)
    build, x, units = INDEXED[name]
    model = build().double()
    graph = pathcond.extract_graph(model, x)
    assert graph.units == units
    assert_function_kept(model, x, graph)
    assert pathcond.compute_diag_g(model, x, graph=graph).keys() == dict(model.named_parameters()).keys()


def test_a_gain_with_an_offset_is_saved_and_undone(tmp_path: Any) -> None:
    pytest.importorskip("safetensors")
    torch.manual_seed(0)
    model, x = CASES["one_plus_gain"][0]().double(), _inputs(((4, 3),))
    before = model(*x)
    report = pathcond.rescale_(model, x)
    assert report.moved > 0
    report.save(tmp_path / "scales.safetensors")
    again = CASES["one_plus_gain"][0]().double()
    again.load_state_dict(model.state_dict())
    loaded = pathcond.load_scales(tmp_path / "scales.safetensors")
    pathcond.apply_scales_(again, pathcond.Scales(loaded.graph, -loaded.u))
    report.undo_(model)
    for rescaled in (model, again):
        assert torch.allclose(before, rescaled(*x), rtol=1e-9)


def test_keys_have_the_inverse_scales_of_queries() -> None:
    torch.manual_seed(0)
    model, x = CASES["sdpa"][0]().double(), _inputs(((2, 5, 6),))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    graph = pathcond.extract_graph(model, x)
    u = random_scales(graph)
    assert torch.equal(graph.by_module(u)["k"], -graph.by_module(u)["q"])
    for factor in (100.0, -100.0):  # too large but for logarithms
        pathcond.apply_scales_(model, graph, factor * u, force=True)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], rtol=1e-9, atol=0)


# ---- experts


def _experts(s: Any, x: Tensor, moved: bool = False, degree: int = 1) -> Tensor:
    chosen, order = s.router(x).argmax(-1).sort()
    offs = F.one_hot(chosen, 3).sum(0).cumsum(0).to(torch.int32)
    y = F.relu(F.grouped_mm(x[order], s.up, offs=offs))
    y = y**degree if degree > 1 else y
    return F.grouped_mm(y.flip(0) if moved else y, s.down, offs=offs)


@pytest.mark.parametrize(("moved", "degree", "units"), [(False, 1, 3 * 8), (True, 1, 8), (False, 2, 8)])
def test_experts_have_scales_of_their_own_while_rows_stay_in_place(moved: bool, degree: int, units: int) -> None:
    """They share them where rows move, and behind a squared ReLU."""
    torch.manual_seed(0)
    model = Lambda(lambda s, x: _experts(s, x, moved, degree), router=L(4, 3), up=(3, 4, 8), down=(3, 8, 4))
    x = (torch.randn(12, 4),)
    graph = pathcond.extract_graph(model, x)
    assert graph.units == units
    assert_function_kept(model, x, graph, 1e-5)
