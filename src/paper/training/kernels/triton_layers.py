"""Batched MLPs on a GPU: backward pass of a hidden layer and ENorm as Triton kernels; the forward pass is compiled.

`torch_layers` defines what is computed. As compiled by torch, a backward pass takes 11.6 us for 9 networks, 128
examples and 500 units on an H200, since sums over the examples take a pass of their own. Here a program holds all
examples of some units (8.4 us). ENorm is one kernel per layer: a program reads all weights that enter and leave its
units.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper.training.kernels import torch_layers
from paper.training.kernels.torch_layers import Saved

UNITS, ENTRIES = 32, 8192  # of one program, at most
ROWS = 8  # units of one ENorm program: reads columns of 32 bytes, and fills the GPU from three runs on
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
def tile_offsets(run, block, examples, units, EXAMPLES: tl.constexpr, UNITS: tl.constexpr):
    """Offsets of a block of units in per-unit arrays and in (run, example, unit) arrays, with their masks."""
    unit = block * UNITS + tl.arange(0, UNITS)
    example = tl.arange(0, EXAMPLES)[:, None]
    unit_mask = unit < units
    at = (run * examples + example) * units + unit[None, :]
    return run * units + unit, unit_mask, at, (example < examples) & unit_mask[None, :]


@triton.jit
def _norm_backward_kernel(
    grad, z, mean, rstd, gamma, beta, row_scale, result, examples, units,
    EXAMPLES: tl.constexpr, UNITS: tl.constexpr, KIND: tl.constexpr, DEFERRED: tl.constexpr,
):  # fmt: skip
    units_at, unit_mask, at, mask = tile_offsets(tl.program_id(0), tl.program_id(1), examples, units, EXAMPLES, UNITS)
    m = tl.load(mean + units_at, mask=unit_mask, other=0.0)[None, :]
    r = tl.load(rstd + units_at, mask=unit_mask, other=0.0)[None, :]
    scale = tl.load(gamma + units_at, mask=unit_mask, other=0.0)
    shift = tl.load(beta + units_at, mask=unit_mask, other=0.0)
    x = tl.load(z + at, mask=mask, other=0.0)
    factor = 1.0
    if DEFERRED:
        factor = tl.load(row_scale + units_at, mask=unit_mask, other=1.0)[None, :]
    x *= factor
    x = tl.where(mask, (x - m) * r, 0.0)
    grad_z = tl.load(grad + at, mask=mask, other=0.0) * _slope(x * scale[None, :] + shift[None, :], KIND)
    grad_beta = tl.sum(grad_z, 0)
    grad_gamma = tl.sum(grad_z * x, 0)
    grad_z = scale[None, :] * r * (grad_z - (grad_beta[None, :] + x * grad_gamma[None, :]) / examples)
    grad_z /= factor
    tl.store(result + at, grad_z, mask=mask)
    tl.store(beta + units_at, shift - grad_beta, mask=unit_mask)
    tl.store(gamma + units_at, scale - grad_gamma, mask=unit_mask)


@triton.jit
def _plain_backward_kernel(
    grad, z, bias, row_scale, result, examples, units,
    EXAMPLES: tl.constexpr, UNITS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, DEFERRED: tl.constexpr,
):  # fmt: skip
    units_at, unit_mask, at, mask = tile_offsets(tl.program_id(0), tl.program_id(1), examples, units, EXAMPLES, UNITS)
    x = tl.load(z + at, mask=mask, other=0.0)
    factor = 1.0
    if DEFERRED:
        factor = tl.load(row_scale + units_at, mask=unit_mask, other=1.0)[None, :]
    x *= factor
    if BIAS:
        x += tl.load(bias + units_at, mask=unit_mask, other=0.0)[None, :]
    grad_z = tl.load(grad + at, mask=mask, other=0.0) * _slope(x, KIND)
    if BIAS:
        tl.store(bias + units_at, tl.load(bias + units_at, mask=unit_mask) - tl.sum(grad_z, 0), mask=unit_mask)
    grad_z /= factor
    tl.store(result + at, grad_z, mask=mask)


@triton.jit
def _weight_tile(weight, run, unit, first, n, m, BLOCK: tl.constexpr):
    # Pointers to some columns of a program's rows, with their mask.
    column = first + tl.arange(0, BLOCK)[None, :]
    return weight + (run * n + unit[:, None]) * m + column, (unit[:, None] < n) & (column < m)


@triton.jit
def _squared_scales(sq_scale_below, run, first, m, BLOCK: tl.constexpr):
    # Squared scales of the units below.
    column = first + tl.arange(0, BLOCK)
    return tl.load(sq_scale_below + run * m + column, mask=column < m, other=1.0)[None, :]


@triton.jit
def _enorm_kernel(
    weight, above, bias, row_scale, squares, split_stride, sq_scale_below, scales,
    n: tl.constexpr, m: tl.constexpr, outputs: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr,
    ABOVE: tl.constexpr, SPLITS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, BIAS: tl.constexpr, DEFERRED: tl.constexpr,
):  # fmt: skip
    # Weights are (n, m), those above (outputs, n). FIRST: there are no scales from below. LAST: only those from below
    # are applied. SPLITS: number of given partial sums of squares of the rows.
    run = tl.program_id(0).to(tl.int64)  # offsets of all weights may exceed int32
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    unit_mask = unit < n
    units_at = run * n + unit
    factor = tl.full((UNITS,), 1.0, tl.float32)
    deferred = factor
    if not LAST:
        sq_in = tl.zeros((UNITS,), tl.float32)
        for split in tl.static_range(SPLITS):
            sq_in += tl.load(squares + split * split_stride + units_at, mask=unit_mask, other=0.0)
        for first in tl.static_range(0, 0 if SPLITS else m, BLOCK):
            at, mask = _weight_tile(weight, run, unit, first, n, m, BLOCK)
            w = tl.load(at, mask=mask, other=0.0)
            if FIRST:
                sq_in += tl.sum(w * w, 1)
            else:
                sq_in += tl.sum(w * w / _squared_scales(sq_scale_below, run, first, m, BLOCK), 1)
        if DEFERRED:
            deferred = tl.load(row_scale + units_at, mask=unit_mask, other=1.0)
            sq_in *= deferred * deferred
        sq_out = tl.zeros((UNITS,), tl.float32)
        for first in tl.static_range(0, outputs, ABOVE):
            output = first + tl.arange(0, ABOVE)[:, None]
            at = above + (run * outputs + output) * n + unit[None, :]
            w = tl.load(at, mask=(output < outputs) & unit_mask[None, :], other=0.0)
            sq_out += tl.sum(w * w, 0)
        ratio = sq_out / sq_in
        scale = tl.sqrt(tl.where((ratio > 0.0) & (ratio < float("inf")), ratio, 1.0))
        tl.store(scales + units_at, scale, mask=unit_mask)
        factor = tl.sqrt(scale)
        if BIAS:
            tl.store(bias + units_at, tl.load(bias + units_at, mask=unit_mask) * factor, mask=unit_mask)
    if DEFERRED:
        tl.store(row_scale + units_at, deferred * factor, mask=unit_mask)
    else:
        for first in tl.static_range(0, m, BLOCK):
            at, mask = _weight_tile(weight, run, unit, first, n, m, BLOCK)
            w = tl.load(at, mask=mask, other=0.0) * factor[:, None]
            if not FIRST:
                w /= tl.sqrt(_squared_scales(sq_scale_below, run, first, m, BLOCK))
            tl.store(at, w, mask=mask)


def _tile(examples: int) -> dict[str, int]:
    rows = triton.next_power_of_2(examples)
    return {"EXAMPLES": rows, "UNITS": max(1, min(UNITS, ENTRIES // rows))}


def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str, row_scale: Tensor | None = None) -> Tensor:
    """As `torch_layers.norm_backward`."""
    z, mean, rstd = saved
    runs, examples, units = z.shape
    result, tile = torch.empty_like(z), _tile(examples)
    _norm_backward_kernel[(runs, triton.cdiv(units, tile["UNITS"]))](  # type: ignore[index]
        grad, z, mean, rstd, norm[0], norm[1], mean if row_scale is None else row_scale, result, examples, units,
        KIND=KINDS[kind], DEFERRED=row_scale is not None, **tile,
    )  # fmt: skip
    return result


def plain_backward(grad: Tensor, z: Tensor, bias: Tensor | None, kind: str, row_scale: Tensor | None = None) -> Tensor:
    """As `torch_layers.plain_backward`."""
    runs, examples, units = z.shape
    result, tile = torch.empty_like(z), _tile(examples)
    _plain_backward_kernel[(runs, triton.cdiv(units, tile["UNITS"]))](  # type: ignore[index]
        grad, z, z if bias is None else bias, z if row_scale is None else row_scale, result, examples, units,
        KIND=KINDS[kind], BIAS=bias is not None, DEFERRED=row_scale is not None, **tile,
    )  # fmt: skip
    return result


def norm_forward(z: Tensor, norm: list[Tensor], kind: str, row_scale: Tensor | None = None) -> tuple[Tensor, Saved]:
    """As `torch_layers.norm_forward`, compiled."""
    return torch_layers.compiled(torch_layers.norm_forward, z.device)(z, norm, kind, row_scale)


def plain_forward(z: Tensor, bias: Tensor | None, kind: str, row_scale: Tensor | None = None) -> Tensor:
    """As `torch_layers.plain_forward`, compiled."""
    return torch_layers.compiled(torch_layers.plain_forward, z.device)(z, bias, kind, row_scale)


def enorm_cycle(
    weights: list[Tensor],
    biases: list[Tensor | None],
    row_scale: Tensor | None = None,
    squares: Tensor | None = None,
    done: Callable[[int], None] = lambda layer: None,
) -> None:
    """As `torch_layers.enorm_cycle`, for contiguous matrices: one launch per layer.

    Args:
        weights: (R, n, m) of each layer.
        biases: (R, 1, n) of each layer, or None.
        row_scale: deferred factors (R, 1, n) of the first layer's rows.
        squares: partial sums of squares of these rows, (S, R, n); computed here if not given.
        done: called with each layer once all kernels that change it are launched.
    """
    sq_scale_below = weights[0]
    for layer, weight in enumerate(weights[:-1] if len(weights) > 2 else []):
        (runs, n, m), above, bias = weight.shape, weights[layer + 1], biases[layer]
        partials, deferred = squares if layer == 0 else None, layer == 0 and row_scale is not None
        n_splits, split_stride = (0, 0) if partials is None else (len(partials), partials.stride(0))
        scales = torch.empty(runs, n, device=weight.device)
        _enorm_kernel[(runs, triton.cdiv(n, ROWS))](  # type: ignore[index]
            weight, above, weight if bias is None else bias, row_scale if deferred else weight,
            weight if partials is None else partials, split_stride, sq_scale_below, scales,
            n, m, above.shape[1], UNITS=ROWS, BLOCK=_block(m), ABOVE=_block(above.shape[1]), SPLITS=n_splits,
            FIRST=layer == 0, LAST=layer == len(weights) - 2, BIAS=bias is not None, DEFERRED=deferred, num_warps=8,
        )  # fmt: skip
        done(layer)
        sq_scale_below = scales


def _block(entries: int) -> int:
    return min(ENTRIES // ROWS, triton.next_power_of_2(entries))
