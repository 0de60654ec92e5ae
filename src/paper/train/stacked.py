"""Forward and back through one hidden layer of stacked networks on a GPU; `layers` says what they compute.

The ways back are a Triton kernel each. Compiled from there they take 11.6 us for 9 networks, 128 examples and 500 units
on an H200, since sums over the examples are made in one pass and used in a second. Here a program holds all examples of
a few units. ENorm is a kernel a layer, where a program has all that enters and leaves a few units.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper.train import layers
from paper.train.layers import Saved

UNITS, ENTRIES = 32, 8192  # of one program, at most
ROWS = 8  # of ENorm's programs: columns of 32 bytes, and enough programs for three runs
KINDS = {"relu": 0, "gelu": 1, "silu": 2}


@triton.jit
def _slope(z, KIND: tl.constexpr):
    if KIND == 0:
        slope = tl.where(z > 0.0, 1.0, 0.0)
    elif KIND == 1:
        slope = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    else:
        gate = 1.0 / (1.0 + tl.exp(-z))
        slope = gate * (1.0 + z * (1.0 - gate))
    return slope


@triton.jit
def _tile_of(run, block, examples, units, EXAMPLES: tl.constexpr, UNITS: tl.constexpr):
    # Places of a block of units in what is held for each unit, and of its entries in a map; which of them exist.
    unit = block * UNITS + tl.arange(0, UNITS)
    example = tl.arange(0, EXAMPLES)[:, None]
    known = unit < units
    at = (run * examples + example) * units + unit[None, :]
    return run * units + unit, known, at, (example < examples) & known[None, :]


@triton.jit
def _norm(
    grad, z, mean, rstd, gamma, beta, row, result, examples, units,
    EXAMPLES: tl.constexpr, UNITS: tl.constexpr, KIND: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    held, known, at, there = _tile_of(tl.program_id(0), tl.program_id(1), examples, units, EXAMPLES, UNITS)
    m = tl.load(mean + held, mask=known, other=0.0)[None, :]
    r = tl.load(rstd + held, mask=known, other=0.0)[None, :]
    scale = tl.load(gamma + held, mask=known, other=0.0)
    shift = tl.load(beta + held, mask=known, other=0.0)
    x = tl.load(z + at, mask=there, other=0.0)
    factor = 1.0
    if APART:
        factor = tl.load(row + held, mask=known, other=1.0)[None, :]
    x *= factor
    x = tl.where(there, (x - m) * r, 0.0)
    back = tl.load(grad + at, mask=there, other=0.0) * _slope(x * scale[None, :] + shift[None, :], KIND)
    for_beta = tl.sum(back, 0)
    for_gamma = tl.sum(back * x, 0)
    back = scale[None, :] * r * (back - (for_beta[None, :] + x * for_gamma[None, :]) / examples)
    back /= factor
    tl.store(result + at, back, mask=there)
    tl.store(beta + held, shift - for_beta, mask=known)
    tl.store(gamma + held, scale - for_gamma, mask=known)


@triton.jit
def _plain(
    grad, z, bias, row, result, examples, units,
    EXAMPLES: tl.constexpr, UNITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    held, known, at, there = _tile_of(tl.program_id(0), tl.program_id(1), examples, units, EXAMPLES, UNITS)
    x = tl.load(z + at, mask=there, other=0.0)
    factor = 1.0
    if APART:
        factor = tl.load(row + held, mask=known, other=1.0)[None, :]
    x *= factor
    if BIAS:
        x += tl.load(bias + held, mask=known, other=0.0)[None, :]
    back = tl.load(grad + at, mask=there, other=0.0) * _slope(x, KIND)
    if BIAS:
        tl.store(bias + held, tl.load(bias + held, mask=known) - tl.sum(back, 0), mask=known)
    back /= factor
    tl.store(result + at, back, mask=there)


@triton.jit
def _weights_of(weight, run, unit, first, n, m, BLOCK: tl.constexpr):
    # Places of some columns of a program's rows, and which of them exist.
    column = first + tl.arange(0, BLOCK)[None, :]
    return weight + (run * n + unit[:, None]) * m + column, (unit[:, None] < n) & (column < m)


@triton.jit
def _squares_of(before, run, first, m, BLOCK: tl.constexpr):
    # Squares of the scales of units below.
    column = first + tl.arange(0, BLOCK)
    return tl.load(before + run * m + column, mask=column < m, other=1.0)[None, :]


@triton.jit
def _balance(
    weight, above, bias, row, squares, between, before, scales,
    n: tl.constexpr, m: tl.constexpr, leave: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr,
    ABOVE: tl.constexpr, SHARES: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, BIAS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    # Weights are (n, m), those above (leave, n). FIRST: no scales from below; LAST: these alone. SHARES of the sums of
    # squares of the rows, if any, are there.
    run = tl.program_id(0).to(tl.int64)  # all weights together may be more than int32 can count
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    known = unit < n
    held = run * n + unit
    factor = tl.full((UNITS,), 1.0, tl.float32)
    lacking = factor
    if not LAST:
        entering = tl.zeros((UNITS,), tl.float32)
        for share in tl.static_range(SHARES):
            entering += tl.load(squares + share * between + held, mask=known, other=0.0)
        for first in tl.static_range(0, 0 if SHARES else m, BLOCK):
            at, there = _weights_of(weight, run, unit, first, n, m, BLOCK)
            w = tl.load(at, mask=there, other=0.0)
            if FIRST:
                entering += tl.sum(w * w, 1)
            else:
                entering += tl.sum(w * w / _squares_of(before, run, first, m, BLOCK), 1)
        if APART:
            lacking = tl.load(row + held, mask=known, other=1.0)
            entering *= lacking * lacking
        leaving = tl.zeros((UNITS,), tl.float32)
        for first in tl.static_range(0, leave, ABOVE):
            place = first + tl.arange(0, ABOVE)[:, None]
            at = above + (run * leave + place) * n + unit[None, :]
            w = tl.load(at, mask=(place < leave) & known[None, :], other=0.0)
            leaving += tl.sum(w * w, 0)
        ratio = leaving / entering
        scale = tl.sqrt(tl.where((ratio > 0.0) & (ratio < float("inf")), ratio, 1.0))
        tl.store(scales + held, scale, mask=known)
        factor = tl.sqrt(scale)
        if BIAS:
            tl.store(bias + held, tl.load(bias + held, mask=known) * factor, mask=known)
    if APART:
        tl.store(row + held, lacking * factor, mask=known)
    else:
        for first in tl.static_range(0, m, BLOCK):
            at, there = _weights_of(weight, run, unit, first, n, m, BLOCK)
            w = tl.load(at, mask=there, other=0.0) * factor[:, None]
            if not FIRST:
                w /= tl.sqrt(_squares_of(before, run, first, m, BLOCK))
            tl.store(at, w, mask=there)


def _tile(examples: int) -> dict[str, int]:
    rows = triton.next_power_of_2(examples)
    return {"EXAMPLES": rows, "UNITS": max(1, min(UNITS, ENTRIES // rows))}


def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str, row: Tensor | None = None) -> Tensor:
    """As `layers.norm_backward`."""
    z, mean, rstd = saved
    runs, examples, units = z.shape
    result, tile = torch.empty_like(z), _tile(examples)
    _norm[(runs, triton.cdiv(units, tile["UNITS"]))](  # type: ignore[index]
        grad, z, mean, rstd, norm[0], norm[1], mean if row is None else row, result, examples, units,
        KIND=KINDS[kind], APART=row is not None, **tile,
    )  # fmt: skip
    return result


def plain_backward(grad: Tensor, z: Tensor, bias: Tensor | None, kind: str, row: Tensor | None = None) -> Tensor:
    """As `layers.plain_backward`."""
    runs, examples, units = z.shape
    result, tile = torch.empty_like(z), _tile(examples)
    _plain[(runs, triton.cdiv(units, tile["UNITS"]))](  # type: ignore[index]
        grad, z, z if bias is None else bias, z if row is None else row, result, examples, units,
        KIND=KINDS[kind], BIAS=bias is not None, APART=row is not None, **tile,
    )  # fmt: skip
    return result


def norm_forward(z: Tensor, norm: list[Tensor], kind: str, row: Tensor | None = None) -> tuple[Tensor, Saved]:
    """As `layers.norm_forward`, compiled."""
    return layers.fused(layers.norm_forward, z.device)(z, norm, kind, row)


def plain_forward(z: Tensor, bias: Tensor | None, kind: str, row: Tensor | None = None) -> Tensor:
    """As `layers.plain_forward`, compiled."""
    return layers.fused(layers.plain_forward, z.device)(z, bias, kind, row)


def balance(
    weights: list[Tensor],
    biases: list[Tensor | None],
    row: Tensor | None = None,
    squares: Tensor | None = None,
    done: Callable[[int], None] = lambda layer: None,
) -> None:
    """As `layers.balance`, for matrices, each contiguous: a launch a layer.

    Args:
        weights: (R, n, m) of each layer.
        biases: (R, 1, n) of each layer, or None.
        row: factors (R, 1, n) of the first layer's rows.
        squares: (S, R, n), which add up to the sums of squares of these rows; found here if not given.
        done: told of each layer when all that changes it is launched.
    """
    before = weights[0]
    for layer, weight in enumerate(weights[:-1] if len(weights) > 2 else []):
        (runs, n, m), above, bias = weight.shape, weights[layer + 1], biases[layer]
        given, apart = squares if layer == 0 else None, layer == 0 and row is not None
        shares, between = (0, 0) if given is None else (len(given), given.stride(0))
        scales = torch.empty(runs, n, device=weight.device)
        _balance[(runs, triton.cdiv(n, ROWS))](  # type: ignore[index]
            weight, above, weight if bias is None else bias, row if apart else weight,
            weight if given is None else given, between, before, scales,
            n, m, above.shape[1], UNITS=ROWS, BLOCK=_block(m), ABOVE=_block(above.shape[1]), SHARES=shares,
            FIRST=layer == 0, LAST=layer == len(weights) - 2, BIAS=bias is not None, APART=apart, num_warps=8,
        )  # fmt: skip
        done(layer)
        before = scales


def _block(entries: int) -> int:
    return min(ENTRIES // ROWS, triton.next_power_of_2(entries))
