"""Whole layers of stacked networks in one kernel, on a Hopper GPU; `layers` says what they compute.

A program has all examples of its units, so that bias or BatchNorm and the activation follow the product in it. Tiles
are the best of a trial on an H200, for the paper's shapes and nine runs; they do not depend on the number of runs, so
that a run is the same in any company that `stack` leaves to these kernels. Microseconds there for layers of 784,
against cuBLAS: a product up 12.5 against 14.1, a product down with the update of its weight 24 against 48, the first
layer's update with the next first product 25 against 44.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Glided
from triton.tools.tensor_descriptor import TensorDescriptor

from paper.train import glide, layers
from paper.train.layers import Saved
from paper.train.stacked import KINDS, _tile_of

EXAMPLES, LEAST = 128, 64  # at most so many examples, at least so wide layers
MULTIPROCESSORS, RUNS = 132, 9  # that tiles are chosen for
_EPS, _MOMENTUM = tl.constexpr(layers.EPS), tl.constexpr(layers.MOMENTUM)
_KINDS = {**KINDS, "error": 3}  # in place of an activation: the gradient of the mean square error


@triton.jit
def _activate(y, KIND: tl.constexpr):
    if KIND == 0:
        a = tl.where(y <= 0.0, 0.0, y)  # lets NaN through
    elif KIND == 1:
        a = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    else:
        a = y / (1.0 + tl.exp(-y))
    return a


@triton.jit
def _step(place, by, known):
    tl.store(place, tl.load(place, mask=known) + by, mask=known)


@triton.jit
def _put(
    x, run, held, known, at, there, gamma, beta, running_mean, running_var, row, mean, rstd, z, a, target, rate,
    examples, n, KIND: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, APART: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    # What follows a product x, (examples, units), which is zero for examples that are not there. A bias comes as beta.
    if KEEP:
        tl.store(z + at, x, mask=there)
    if APART:
        x *= tl.load(row + held, mask=known, other=1.0)[None, :]
    if NORM:
        m = tl.sum(x, 0) / examples
        x = tl.where(there, x - m[None, :], 0.0)
        var = tl.sum(x * x, 0) / examples
        r = 1.0 / tl.sqrt(var + _EPS)
        tl.store(mean + held, m, mask=known)
        tl.store(rstd + held, r, mask=known)
        _step(running_mean + held, _MOMENTUM * (m - tl.load(running_mean + held, mask=known)), known)
        unbiased = var * (examples / (examples - 1))
        _step(running_var + held, _MOMENTUM * (unbiased - tl.load(running_var + held, mask=known)), known)
        x *= (r * tl.load(gamma + held, mask=known, other=0.0))[None, :]
    if NORM or BIAS:
        x += tl.load(beta + held, mask=known, other=0.0)[None, :]
    if KIND == 3:
        x = (x - tl.load(target + at, mask=there, other=0.0)) * (2.0 * tl.load(rate + run) / (examples * n))
        if BIAS:
            _step(beta + held, -tl.sum(tl.where(there, x, 0.0), 0), known)
    else:
        x = _activate(x, KIND)
    tl.store(a + at, x, mask=there)


@triton.jit
def _up(
    x, w, gamma, beta, running_mean, running_var, row, mean, rstd, z, a, target, rate, examples,
    n: tl.constexpr, m: tl.constexpr, EXAMPLES: tl.constexpr, UNITS: tl.constexpr, M: tl.constexpr,
    KIND: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, APART: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1)
    acc = tl.zeros((EXAMPLES, UNITS), tl.float32)
    for step in tl.range(0, (m + M - 1) // M, num_stages=5):
        u = x.load([run, 0, step * M]).reshape(EXAMPLES, M)
        v = w.load([run, tl.program_id(0) * UNITS, step * M]).reshape(UNITS, M)
        acc = tl.dot(u, tl.trans(v), acc, input_precision="tf32")
    held, known, at, there = _tile_of(run, tl.program_id(0), examples, n, EXAMPLES, UNITS)
    _put(
        acc, run, held, known, at, there, gamma, beta, running_mean, running_var, row, mean, rstd, z, a, target, rate,
        examples, n, KIND, NORM, BIAS, APART, KEEP,
    )  # fmt: skip


@triton.jit
def _finish(
    shares, gamma, beta, running_mean, running_var, row, mean, rstd, z, a, runs, examples,
    n: tl.constexpr, EXAMPLES: tl.constexpr, UNITS: tl.constexpr, SHARES: tl.constexpr,
    KIND: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, APART: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1)
    held, known, at, there = _tile_of(run, tl.program_id(0), examples, n, EXAMPLES, UNITS)
    x = tl.load(shares + at, mask=there, other=0.0)
    for share in tl.static_range(1, SHARES):
        x += tl.load(shares + share * runs * examples * n + at, mask=there, other=0.0)
    _put(
        x, run, held, known, at, there, gamma, beta, running_mean, running_var, row, mean, rstd, z, a, a, a,
        examples, n, KIND, NORM, BIAS, APART, KEEP,
    )  # fmt: skip


@triton.jit
def _fetch(
    images, index, scale, shift, x, turned, examples, n: tl.constexpr, EXAMPLES: tl.constexpr, UNITS: tl.constexpr
):
    run = tl.program_id(1)
    held, known, at, there = _tile_of(run, tl.program_id(0), examples, n, EXAMPLES, UNITS)
    example, unit = tl.arange(0, EXAMPLES), held - run * n
    number = tl.load(index + run * examples + example, mask=example < examples, other=0)
    pixel = tl.load(images + number[:, None] * n + unit[None, :], mask=there, other=0).to(tl.float32)
    by, more = tl.load(scale + unit, mask=known, other=0.0), tl.load(shift + unit, mask=known, other=0.0)
    value = tl.where(there, pixel * by[None, :] + more[None, :], 0.0)
    tl.store(x + at, value, mask=there)
    tl.store(turned + held[:, None] * EXAMPLES + example[None, :], tl.trans(value), mask=known[:, None])


def fits(weight: Tensor, examples: int) -> bool:
    """Whether a layer of float32 is wide enough, with rows at multiples of 16 bytes, and the batch small enough."""
    n, m = weight.shape[1:]
    return weight.dtype == torch.float32 and examples <= EXAMPLES and min(n, m) >= LEAST and n % 4 == m % 4 == 0


def fetch(images: Tensor, index: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """As `layers.fetch`, (R, B, n), and once more as (R, n, 128), where examples that are not there are zero."""
    (runs, examples), n = index.shape, scale.shape[0]
    x = torch.empty(runs, examples, n, device=images.device)
    turned = torch.empty(runs, n, EXAMPLES, device=images.device)
    _fetch[(triton.cdiv(n, 32), runs)](  # type: ignore[index]
        images, index, scale, shift, x, turned, examples, n, EXAMPLES=EXAMPLES, UNITS=32
    )
    return x, turned


def forward(
    x: Tensor, weight: Tensor, norm: list[Tensor] | None, bias: Tensor | None, kind: str, row: Tensor | None, keep: bool
) -> tuple[Tensor, Saved | Tensor]:
    """Through a hidden layer: what `layers.norm_forward` or `layers.plain_forward` give, z only if it is to be kept."""
    runs, examples, _ = x.shape
    a, saved, held, how = _held(runs, examples, weight.shape[1], norm, bias, kind, row, keep, x.device)
    _launch_up(x, weight, held, x, x, how)
    return a, saved


def rebuild_gradient(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, rate: Tensor) -> Tensor:
    """As `layers.rebuild_gradient`, of the outputs of the last layer for its inputs x."""
    runs, examples, _ = x.shape
    a, _, held, how = _held(runs, examples, weight.shape[1], None, bias, "error", None, False, x.device)
    _launch_up(x, weight, held, target, rate, how)
    return a


def finish(
    shares: Tensor, norm: list[Tensor] | None, bias: Tensor | None, kind: str, row: Tensor | None, keep: bool
) -> tuple[Tensor, Saved | Tensor]:
    """As `forward`, where the product is there, in shares (S, R, B, n)."""
    count, runs, examples, n = shares.shape
    a, saved, held, how = _held(runs, examples, n, norm, bias, kind, row, keep, shares.device)
    _finish[(triton.cdiv(n, 32), runs)](  # type: ignore[index]
        shares, *held, runs, examples, n, EXAMPLES=EXAMPLES, UNITS=32, SHARES=count, **how
    )
    return a, saved


def backward(
    grad: Tensor, weight: Tensor, a: Tensor, saved: Any, norm: list[Tensor] | None, bias: Tensor | None, kind: str,
    row: Tensor | None,
) -> Tensor:  # fmt: skip
    """From the gradient at a layer's outputs through its weight, which takes its step, and the hidden layer below.

    Below as `layers.norm_backward` or `layers.plain_backward`; a, saved: what `forward` gave there.
    """
    runs, n, m = weight.shape
    z, mean, rstd = saved if norm else (saved, a, a)
    gamma, beta = norm[:2] if norm else (a, a if bias is None else bias)
    result = torch.empty_like(a)
    glide.down[(triton.cdiv(m, 64), runs, 1)](  # type: ignore[index]
        _glided(grad, EXAMPLES, 64), _glided(a, EXAMPLES, 64), _glided(weight, 64, 64), _glided(z, EXAMPLES, 64),
        gamma, beta, mean, rstd, a if row is None else row, result, grad.shape[1], n, m, E=EXAMPLES, N=64, M=64, GS=2,
        WS=3, KIND=KINDS[kind], NORM=norm is not None, BIAS=bias is not None, APART=row is not None, WARPS=4,
        num_warps=4,
    )  # fmt: skip
    return result


def first(grad: Tensor, turned: Tensor, then: Tensor | None, weight: Tensor) -> tuple[Tensor | None, Tensor]:
    """The first layer's step, from its inputs as `fetch` turns them, and the product for the next inputs, if any.

    Returns:
        Shares (S, R, B, n) of the product, and shares (S, R, n) of the sums of squares of the new weight's rows.
    """
    (runs, n, m), examples = weight.shape, grad.shape[1] if then is None else then.shape[1]
    count = shares(n, m)
    squares = torch.empty(count, runs, n, device=weight.device)
    product = squares if then is None else torch.empty(count, runs, examples, n, device=weight.device)
    x = grad if then is None else then
    glide.ahead[(triton.cdiv(n, 128), runs, count)](  # type: ignore[index]
        _glided(grad, EXAMPLES, 128), _glided(turned, 32, EXAMPLES), _glided(x, EXAMPLES, 32), _glided(weight, 128, 32),
        product, squares, examples, n, m, E=EXAMPLES, N=128, M=32, SHARES=count, XS=3, WS=3, NEXT=then is not None,
        WARPS=8, num_warps=8,
    )  # fmt: skip
    return None if then is None else product, squares


def shares(n: int, m: int) -> int:
    """Parts of the first layer's columns, so that programs of 128 rows of nine runs fill the device once."""
    return max(1, min(4, m // 32, MULTIPROCESSORS // (RUNS * triton.cdiv(n, 128))))


def _held(
    runs: int, examples: int, n: int, norm: list[Tensor] | None, bias: Tensor | None, kind: str, row: Tensor | None,
    keep: bool, device: torch.device,
) -> tuple[Tensor, Saved | Tensor, list[Tensor], dict[str, int]]:  # fmt: skip
    """The activations and what is kept, to be filled; arguments of a kernel that does so."""
    a = torch.empty(runs, examples, n, device=device)
    z = torch.empty_like(a) if keep else a
    mean, rstd = torch.empty(2, runs, 1, n, device=device) if norm else (a, a)
    gamma, beta, *running = norm or (a, a if bias is None else bias, a, a)
    held = [gamma, beta, *running, a if row is None else row, mean, rstd, z, a]
    flags = {"NORM": norm is not None, "BIAS": bias is not None, "APART": row is not None, "KEEP": keep}
    return a, (z, mean, rstd) if norm else z, held, {"KIND": _KINDS[kind], **flags}


def _launch_up(
    x: Tensor, weight: Tensor, held: list[Tensor], target: Tensor, rate: Tensor, how: dict[str, int]
) -> None:
    runs, n, m = weight.shape
    given, matrix = (
        TensorDescriptor(t, list(t.shape), list(t.stride()), [1, rows, 32])
        for t, rows in ((x, EXAMPLES), (weight, LEAST))
    )
    _up[(triton.cdiv(n, LEAST), runs)](  # type: ignore[index]
        given, matrix, *held, target, rate, x.shape[1], n, m, EXAMPLES=EXAMPLES, UNITS=LEAST, M=32, num_warps=4, **how
    )


def _glided(t: Tensor, rows: int, columns: int) -> Glided:
    return Glided(t, list(t.shape), list(t.stride()), [1, rows, columns], NVMMASharedLayout(128, 32, rank=3))
