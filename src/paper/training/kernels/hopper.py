"""Batches of five or more MLPs on a Hopper GPU: whole layers as kernels, in Triton and Gluon.

`torch_layers` defines what is computed. A program holds all examples of its units, so bias or BatchNorm and the
activation are the epilogue of the GEMM. Tile sizes are the best of a search on an H200 for the paper's shapes and nine
runs. They do not depend on the number of runs, so a run gives the same numbers in any batch. Microseconds for layers of
784, against cuBLAS: forward GEMM 12.5 against 14.1, backward GEMM with the update of its weight 24 against 48, update
of the first layer with the next step's first GEMM 25 against 44.

The Gluon kernels (backward pass) read each weight once, to use and to update it. Weights are (R, n, m), gradients g at
a layer's outputs (R, B, n), its inputs a (R, B, m), with at most E examples. TMA moves the tiles; outside a tensor it
reads zeros and writes nothing. GEMMs are TF32 by wgmma, which takes operands from shared memory with the contracted
axis contiguous; a left operand in another layout goes through registers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import thread_barrier
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from paper.training.kernels import torch_layers
from paper.training.kernels.torch_layers import Saved
from paper.training.kernels.triton_layers import KINDS, tile_offsets

EXAMPLES, LEAST = 128, 64  # largest batch, smallest width
MULTIPROCESSORS, RUNS = 132, 9  # the tiles are chosen for these
_EPS, _MOMENTUM = tl.constexpr(torch_layers.EPS), tl.constexpr(torch_layers.MOMENTUM)
_KINDS = {**KINDS, "error": 3}  # instead of an activation: the gradient of the mean square error


# ---- Triton kernels: gather, forward pass


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
def _increment(pointer, by, unit_mask):
    tl.store(pointer, tl.load(pointer, mask=unit_mask) + by, mask=unit_mask)


@triton.jit
def _epilogue(
    x, run, units_at, unit_mask, at, mask, gamma, beta, running_mean, running_var, row_scale, mean, rstd, z, a,
    target, rate, examples, n, KIND: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, DEFERRED: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    # Epilogue of a GEMM x, (examples, units), which is zero for missing examples. A bias comes as beta.
    if KEEP:
        tl.store(z + at, x, mask=mask)
    if DEFERRED:
        x *= tl.load(row_scale + units_at, mask=unit_mask, other=1.0)[None, :]
    if NORM:
        m = tl.sum(x, 0) / examples
        x = tl.where(mask, x - m[None, :], 0.0)
        var = tl.sum(x * x, 0) / examples
        r = 1.0 / tl.sqrt(var + _EPS)
        tl.store(mean + units_at, m, mask=unit_mask)
        tl.store(rstd + units_at, r, mask=unit_mask)
        _increment(
            running_mean + units_at, _MOMENTUM * (m - tl.load(running_mean + units_at, mask=unit_mask)), unit_mask
        )
        unbiased = var * (examples / (examples - 1))
        _increment(
            running_var + units_at, _MOMENTUM * (unbiased - tl.load(running_var + units_at, mask=unit_mask)), unit_mask
        )
        x *= (r * tl.load(gamma + units_at, mask=unit_mask, other=0.0))[None, :]
    if NORM or BIAS:
        x += tl.load(beta + units_at, mask=unit_mask, other=0.0)[None, :]
    if KIND == 3:
        x = (x - tl.load(target + at, mask=mask, other=0.0)) * (2.0 * tl.load(rate + run) / (examples * n))
        if BIAS:
            _increment(beta + units_at, -tl.sum(tl.where(mask, x, 0.0), 0), unit_mask)
    else:
        x = _activate(x, KIND)
    tl.store(a + at, x, mask=mask)


@triton.jit
def _forward(
    x, w, gamma, beta, running_mean, running_var, row_scale, mean, rstd, z, a, target, rate, examples,
    n: tl.constexpr, m: tl.constexpr, EXAMPLES: tl.constexpr, UNITS: tl.constexpr, M: tl.constexpr,
    KIND: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, DEFERRED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1)
    acc = tl.zeros((EXAMPLES, UNITS), tl.float32)
    for step in tl.range(0, (m + M - 1) // M, num_stages=5):
        u = x.load([run, 0, step * M]).reshape(EXAMPLES, M)
        v = w.load([run, tl.program_id(0) * UNITS, step * M]).reshape(UNITS, M)
        acc = tl.dot(u, tl.trans(v), acc, input_precision="tf32")
    units_at, unit_mask, at, mask = tile_offsets(run, tl.program_id(0), examples, n, EXAMPLES, UNITS)
    _epilogue(
        acc, run, units_at, unit_mask, at, mask, gamma, beta, running_mean, running_var, row_scale, mean, rstd, z, a,
        target, rate, examples, n, KIND, NORM, BIAS, DEFERRED, KEEP,
    )  # fmt: skip


@triton.jit
def _sum_partials(
    partials, gamma, beta, running_mean, running_var, row_scale, mean, rstd, z, a, runs, examples,
    n: tl.constexpr, EXAMPLES: tl.constexpr, UNITS: tl.constexpr, SPLITS: tl.constexpr,
    KIND: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, DEFERRED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1)
    units_at, unit_mask, at, mask = tile_offsets(run, tl.program_id(0), examples, n, EXAMPLES, UNITS)
    x = tl.load(partials + at, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        x += tl.load(partials + split * runs * examples * n + at, mask=mask, other=0.0)
    _epilogue(
        x, run, units_at, unit_mask, at, mask, gamma, beta, running_mean, running_var, row_scale, mean, rstd, z, a,
        a, a, examples, n, KIND, NORM, BIAS, DEFERRED, KEEP,
    )  # fmt: skip


@triton.jit
def _gather(
    images, index, scale, shift, x, transposed, examples, n: tl.constexpr, EXAMPLES: tl.constexpr, UNITS: tl.constexpr
):
    run = tl.program_id(1)
    units_at, unit_mask, at, mask = tile_offsets(run, tl.program_id(0), examples, n, EXAMPLES, UNITS)
    example, unit = tl.arange(0, EXAMPLES), units_at - run * n
    number = tl.load(index + run * examples + example, mask=example < examples, other=0)
    pixel = tl.load(images + number[:, None] * n + unit[None, :], mask=mask, other=0).to(tl.float32)
    factor = tl.load(scale + unit, mask=unit_mask, other=0.0)
    summand = tl.load(shift + unit, mask=unit_mask, other=0.0)
    value = tl.where(mask, pixel * factor[None, :] + summand[None, :], 0.0)
    tl.store(x + at, value, mask=mask)
    tl.store(transposed + units_at[:, None] * EXAMPLES + example[None, :], tl.trans(value), mask=unit_mask[:, None])


# ---- Gluon kernels: backward pass


@gluon.jit
def _swap_rows(t, R: gl.constexpr, C: gl.constexpr):
    # Swaps bits 2 and 4 of the row index: in registers only a renaming.
    return t.reshape((R // 32, 2, 2, 2, 4, C)).permute((0, 3, 2, 1, 4, 5)).reshape((R, C))


@gluon.jit
def _load_like(tile, t):
    return tile.load(t.type.layout)


@gluon.jit
def _transposed_operand(tile, R: gl.constexpr, C: gl.constexpr, lay: gl.constexpr):
    # A tile's transpose, (R, C), as left operand in registers. Its rows are swapped as above, so that it is read from a
    # buffer of swizzled rows of 128 bytes without bank conflicts.
    like = _swap_rows(gl.zeros([R, C], gl.float32, lay), R, C)
    return gl.convert_layout(_swap_rows(_load_like(tile.permute((1, 0)), like), R, C), lay, assert_trivial=True)


@gluon.jit
def _transpose(buffer, ROWS: gl.constexpr, E: gl.constexpr, WARPS: gl.constexpr):
    # Transposes a buffer in place, from (E, ROWS) to (ROWS, E).
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    lanes: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [1, WARPS], [0, 1])
    tile = buffer._reinterpret(gl.float32, [E, ROWS], swizzled).permute((1, 0)).load(lanes)
    thread_barrier()
    buffer.store(tile)
    fence_async_shared()
    thread_barrier()


@gluon.jit
def _load_tile(x, at, full, slot, pred, BYTES: gl.constexpr):
    mbarrier.expect(full, BYTES, pred=pred)
    tma.async_copy_global_to_shared(x, at, full, slot, pred=pred)


@gluon.jit
def _gluon_slope(y, KIND: gl.constexpr):
    if KIND == 0:
        slope = gl.where(y > 0.0, 1.0, 0.0)
    elif KIND == 1:
        slope = 0.5 * (1.0 + gl.erf(y * 0.7071067811865476)) + y * gl.exp(-0.5 * y * y) * 0.3989422804014327
    else:
        gate = 1.0 / (1.0 + gl.exp(-y))
        slope = gate * (1.0 + y * (1.0 - gate))
    return slope


@gluon.jit
def _load_per_unit(x, units_at, unit_mask):
    return gl.load(x + units_at, mask=unit_mask, other=0.0)


@gluon.jit
def _activation_backward(acc, sa, sz, gamma, beta, mean, rstd, factor, units_at, unit_mask, examples,
                         KIND: gl.constexpr, NORM: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    # From the gradient at a layer's outputs, (units, examples), to the one before bias or BatchNorm and activation, as
    # in `torch_layers`; their parameters are updated. Gradients of missing examples are zero.
    if NORM:
        scale = _load_per_unit(gamma, units_at, unit_mask)
        shift = _load_per_unit(beta, units_at, unit_mask)
        r = _load_per_unit(rstd, units_at, unit_mask)
        m = _load_per_unit(mean, units_at, unit_mask)
        x = (_load_like(sz.permute((1, 0)), acc) * factor[:, None] - m[:, None]) * r[:, None]
        acc = acc * _gluon_slope(x * scale[:, None] + shift[:, None], KIND)
        grad_beta = gl.sum(acc, 1)
        grad_gamma = gl.sum(acc * x, 1)
        acc = (scale * r)[:, None] * (acc - (grad_beta[:, None] + x * grad_gamma[:, None]) / examples)
        gl.store(gamma + units_at, scale - grad_gamma, mask=unit_mask)
        gl.store(beta + units_at, shift - grad_beta, mask=unit_mask)
    else:
        shift = gl.zeros_like(factor)
        if BIAS:
            shift = _load_per_unit(beta, units_at, unit_mask)
        if KIND == 0:  # the slope can be read from the outputs
            acc = acc * _gluon_slope(_load_like(sa, acc), KIND)
        else:
            acc = acc * _gluon_slope(_load_like(sz.permute((1, 0)), acc) * factor[:, None] + shift[:, None], KIND)
        if BIAS:
            gl.store(beta + units_at, shift - gl.sum(acc, 1), mask=unit_mask)
    return acc


@gluon.jit
def _backward_epilogue(acc, sa, sz, gamma, beta, mean, rstd, row_scale, result, run, col, examples, m: gl.constexpr,
                       M: gl.constexpr, E: gl.constexpr, KIND: gl.constexpr, NORM: gl.constexpr, BIAS: gl.constexpr,
                       DEFERRED: gl.constexpr):  # fmt: skip
    # acc: (M, E), its rows in order.
    lay: gl.constexpr = acc.type.layout
    column = col + gl.arange(0, M, gl.SliceLayout(1, lay))
    unit_mask = column < m
    units_at = run * m + column
    factor = gl.full([M], 1.0, gl.float32, gl.SliceLayout(1, lay))
    if DEFERRED:
        factor = gl.load(row_scale + units_at, mask=unit_mask, other=1.0)
    acc = _activation_backward(
        acc, sa, sz, gamma, beta, mean, rstd, factor, units_at, unit_mask, examples, KIND, NORM, BIAS
    )
    if DEFERRED:
        acc = acc / factor[:, None]
    example = gl.arange(0, E, gl.SliceLayout(0, lay))
    at = (run * examples + example)[None, :] * m + column[:, None]
    gl.store(result + at, acc, mask=(example < examples)[None, :] & unit_mask[:, None])


@gluon.jit
def _backward(g, a, w, z, gamma, beta, mean, rstd, row_scale, result, examples, n: gl.constexpr, m: gl.constexpr,
              E: gl.constexpr, N: gl.constexpr, M: gl.constexpr, GS: gl.constexpr, WS: gl.constexpr, KIND: gl.constexpr,
              NORM: gl.constexpr, BIAS: gl.constexpr, DEFERRED: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """The gradient g W, then W -= g^T a, then the backward pass of the layer below (pre-activations z, outputs a).

    A program has M columns, in tiles of N rows; GS and WS are the numbers of buffers of g and W.
    """
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    wide_rows: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E, 8])
    wide_columns: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, M, 8])
    run = gl.program_id(1)
    col = gl.program_id(0) * M
    count: gl.constexpr = (n + N - 1) // N
    sg = gl.allocate_shared_memory(gl.float32, [GS, E, N], swizzled)
    sw = gl.allocate_shared_memory(gl.float32, [WS, N, M], swizzled)
    sa = gl.allocate_shared_memory(gl.float32, [M, E], swizzled)
    KEPT: gl.constexpr = NORM or KIND != 0
    sz = gl.allocate_shared_memory(gl.float32, [E, M], swizzled) if KEPT else sa
    full_g = gl.allocate_shared_memory(gl.int64, [GS, 1], mbarrier.MBarrierLayout())
    full_w = gl.allocate_shared_memory(gl.int64, [WS, 1], mbarrier.MBarrierLayout())
    full_a = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full_z = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(GS):
        mbarrier.init(full_g.index(s), count=1)
    for s in gl.static_range(WS):
        mbarrier.init(full_w.index(s), count=1)
    mbarrier.init(full_a, count=1)
    mbarrier.init(full_z, count=1)
    fence_async_shared()
    for s in gl.static_range(GS):
        _load_tile(g, [run, 0, s * N], full_g.index(s), sg.index(s), s < count, E * N * 4)
        if s < WS - 1:
            _load_tile(w, [run, s * N, col], full_w.index(s), sw.index(s), s < count, N * M * 4)
    _load_tile(a, [run, 0, col], full_a, sa._reinterpret(gl.float32, [E, M], swizzled), True, M * E * 4)
    for s in gl.static_range(GS, WS - 1):
        _load_tile(w, [run, s * N, col], full_w.index(s), sw.index(s), s < count, N * M * 4)
    if KEPT:
        _load_tile(z, [run, 0, col], full_z, sz, True, M * E * 4)
    mbarrier.wait(full_a, 0)
    _transpose(sa, M, E, WARPS)
    acc = gl.zeros([M, E], gl.float32, wide_rows)
    for k in range(count):
        tg = sg.index(k % GS)
        tw = sw.index(k % WS)
        mbarrier.wait(full_w.index(k % WS), (k // WS) & 1)
        mbarrier.wait(full_g.index(k % GS), (k // GS) & 1)
        wt = _transposed_operand(tw, M, N, gl.DotOperandLayout(0, wide_rows, 1))
        acc = warpgroup_mma(wt, tg.permute((1, 0)), acc, is_async=True)
        gt = _transposed_operand(tg, N, E, gl.DotOperandLayout(0, wide_columns, 1))
        d = gl.zeros([N, M], gl.float32, wide_columns)
        d = warpgroup_mma(gt, sa.permute((1, 0)), d, use_acc=False, is_async=True)
        # The previous tile is stored, so its buffer is free for the next load.
        tma.store_wait(0)
        slot = (k + WS - 1) % WS
        _load_tile(w, [run, (k + WS - 1) * N, col], full_w.index(slot), sw.index(slot), k + WS - 1 < count, N * M * 4)
        now = _load_like(tw, _swap_rows(gl.zeros([N, M], gl.float32, wide_columns), N, M))
        d, acc = warpgroup_mma_wait(0, deps=(d, acc))
        tw.store(now - _swap_rows(d, N, M))
        fence_async_shared()
        tma.async_copy_shared_to_global(w, [run, k * N, col], tw)
        _load_tile(g, [run, 0, (k + GS) * N], full_g.index(k % GS), tg, k + GS < count, E * N * 4)
    if KEPT:
        mbarrier.wait(full_z, 0)
    _backward_epilogue(_swap_rows(acc, M, E), sa, sz, gamma, beta, mean, rstd, row_scale, result, run, col, examples, m,
                       M, E, KIND, NORM, BIAS, DEFERRED)  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def _update_and_prefetch(g, xT, x, w, result, squares, examples, n: gl.constexpr, m: gl.constexpr, E: gl.constexpr,
                         N: gl.constexpr, M: gl.constexpr, SPLITS: gl.constexpr, XS: gl.constexpr, WS: gl.constexpr,
                         NEXT: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """W -= g^T x of transposed inputs xT, (R, m, E), and sums of squares of its rows; then, if NEXT, W x^T of the next.

    A program has N rows, in tiles of M columns; the columns are divided into SPLITS parts with a partial result each.
    """
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E, 8])
    thin: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, M, 8])
    XBYTES: gl.constexpr = (2 if NEXT else 1) * M * E * 4
    run = gl.program_id(1)
    first_row = gl.program_id(0) * N
    tiles: gl.constexpr = (m + M - 1) // M
    first = tiles * gl.program_id(2) // SPLITS
    count = tiles * (gl.program_id(2) + 1) // SPLITS - first
    sg = gl.allocate_shared_memory(gl.float32, [N, E], swizzled)
    sa = gl.allocate_shared_memory(gl.float32, [XS, M, E], swizzled)
    sx = gl.allocate_shared_memory(gl.float32, [XS, E, M], swizzled) if NEXT else sa
    sw = gl.allocate_shared_memory(gl.float32, [WS, N, M], swizzled)
    full_g = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full_x = gl.allocate_shared_memory(gl.int64, [XS, 1], mbarrier.MBarrierLayout())
    full_w = gl.allocate_shared_memory(gl.int64, [WS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full_g, count=1)
    for s in gl.static_range(XS):
        mbarrier.init(full_x.index(s), count=1)
    for s in gl.static_range(WS):
        mbarrier.init(full_w.index(s), count=1)
    fence_async_shared()
    _load_tile(g, [run, 0, first_row], full_g, sg._reinterpret(gl.float32, [E, N], swizzled), True, N * E * 4)
    for s in gl.static_range(XS):
        _load_tile(xT, [run, (first + s) * M, 0], full_x.index(s), sa.index(s), s < count, XBYTES)
        if NEXT:
            tma.async_copy_global_to_shared(x, [run, 0, (first + s) * M], full_x.index(s), sx.index(s), pred=s < count)
    for s in gl.static_range(WS - 1):
        _load_tile(w, [run, first_row, (first + s) * M], full_w.index(s), sw.index(s), s < count, N * M * 4)
    mbarrier.wait(full_g, 0)
    _transpose(sg, N, E, WARPS)
    acc = gl.zeros([N, E], gl.float32, wide)
    square = gl.zeros([N, M], gl.float32, thin)
    for k in range(count):
        tw = sw.index(k % WS)
        ta = sa.index(k % XS)
        mbarrier.wait(full_x.index(k % XS), (k // XS) & 1)
        d = warpgroup_mma(sg, ta.permute((1, 0)), gl.zeros([N, M], gl.float32, thin), use_acc=False, is_async=True)
        mbarrier.wait(full_w.index(k % WS), (k // WS) & 1)
        now = tw.load(thin)
        d = warpgroup_mma_wait(0, deps=(d,))
        now = now - d
        tw.store(now)
        fence_async_shared()
        thread_barrier()
        if NEXT:
            acc = warpgroup_mma(tw, sx.index(k % XS).permute((1, 0)), acc, is_async=True)
        square += now * now
        # The previous tile is stored, so its buffer is free for the next load.
        tma.store_wait(0)
        slot, ahead_tile = (k + WS - 1) % WS, first + k + WS - 1
        _load_tile(
            w, [run, first_row, ahead_tile * M], full_w.index(slot), sw.index(slot), k + WS - 1 < count, N * M * 4
        )
        tma.async_copy_shared_to_global(w, [run, first_row, (first + k) * M], tw)
        if NEXT:
            acc = warpgroup_mma_wait(0, deps=(acc,))
            thread_barrier()
        has_more, following = k + XS < count, (first + k + XS) * M
        _load_tile(xT, [run, following, 0], full_x.index(k % XS), ta, has_more, XBYTES)
        if NEXT:
            tma.async_copy_global_to_shared(
                x, [run, 0, following], full_x.index(k % XS), sx.index(k % XS), pred=has_more
            )
    split = gl.program_id(2) * gl.num_programs(1) + run
    unit = first_row + gl.arange(0, N, gl.SliceLayout(1, thin))
    gl.store(squares + split * n + unit, gl.sum(square, 1), mask=unit < n)
    if NEXT:
        unit = first_row + gl.arange(0, N, gl.SliceLayout(1, wide))[:, None]
        example = gl.arange(0, E, gl.SliceLayout(0, wide))[None, :]
        gl.store(result + (split * examples + example) * n + unit, acc, mask=(example < examples) & (unit < n))
    tma.store_wait(0)


# ---- what `batched_mlps` calls


def fits(weight: Tensor, examples: int) -> bool:
    """Whether a layer is float32 and wide enough, its rows aligned to 16 bytes, and the batch small enough."""
    n, m = weight.shape[1:]
    return weight.dtype == torch.float32 and examples <= EXAMPLES and min(n, m) >= LEAST and n % 4 == m % 4 == 0


def gather(images: Tensor, index: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """As `torch_layers.gather`, (R, B, n), and transposed as (R, n, 128), with zeros for missing examples."""
    (runs, examples), n = index.shape, scale.shape[0]
    x = torch.empty(runs, examples, n, device=images.device)
    transposed = torch.empty(runs, n, EXAMPLES, device=images.device)
    _gather[(triton.cdiv(n, 32), runs)](  # type: ignore[index]
        images, index, scale, shift, x, transposed, examples, n, EXAMPLES=EXAMPLES, UNITS=32
    )
    return x, transposed


def forward(
    x: Tensor,
    weight: Tensor,
    norm: list[Tensor] | None,
    bias: Tensor | None,
    kind: str,
    row_scale: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Saved | Tensor]:
    """Forward pass of a hidden layer, as `torch_layers.norm_forward` or `plain_forward`; z is stored if `keep`."""
    runs, examples, _ = x.shape
    a, saved, arguments, flags = _buffers(runs, examples, weight.shape[1], norm, bias, kind, row_scale, keep, x.device)
    _launch_forward(x, weight, arguments, x, x, flags)
    return a, saved


def mse_gradient(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, rate: Tensor) -> Tensor:
    """As `torch_layers.mse_gradient`, from the inputs x of the last layer."""
    runs, examples, _ = x.shape
    a, _, arguments, flags = _buffers(runs, examples, weight.shape[1], None, bias, "error", None, False, x.device)
    _launch_forward(x, weight, arguments, target, rate, flags)
    return a


def forward_from_partials(
    partials: Tensor, norm: list[Tensor] | None, bias: Tensor | None, kind: str, row_scale: Tensor | None, keep: bool
) -> tuple[Tensor, Saved | Tensor]:
    """As `forward`, from split-K partials (S, R, B, n) of the GEMM."""
    count, runs, examples, n = partials.shape
    a, saved, arguments, flags = _buffers(runs, examples, n, norm, bias, kind, row_scale, keep, partials.device)
    _sum_partials[(triton.cdiv(n, 32), runs)](  # type: ignore[index]
        partials, *arguments, runs, examples, n, EXAMPLES=EXAMPLES, UNITS=32, SPLITS=count, **flags
    )
    return a, saved


def backward(
    grad: Tensor, weight: Tensor, a: Tensor, saved: Any, norm: list[Tensor] | None, bias: Tensor | None, kind: str,
    row_scale: Tensor | None,
) -> Tensor:  # fmt: skip
    """Backward pass of a weight, which is updated, and of the hidden layer below it.

    The latter as `torch_layers.norm_backward` or `plain_backward`; a and saved are the results of its `forward`.
    """
    runs, n, m = weight.shape
    z, mean, rstd = saved if norm else (saved, a, a)
    gamma, beta = norm[:2] if norm else (a, a if bias is None else bias)
    result = torch.empty_like(a)
    _backward[(triton.cdiv(m, 64), runs, 1)](  # type: ignore[index]
        _gluon_tile(grad, EXAMPLES, 64), _gluon_tile(a, EXAMPLES, 64), _gluon_tile(weight, 64, 64),
        _gluon_tile(z, EXAMPLES, 64), gamma, beta, mean, rstd, a if row_scale is None else row_scale, result,
        grad.shape[1], n, m, E=EXAMPLES, N=64, M=64, GS=2, WS=3, KIND=KINDS[kind], NORM=norm is not None,
        BIAS=bias is not None, DEFERRED=row_scale is not None, WARPS=4, num_warps=4,
    )  # fmt: skip
    return result


def first_layer_step(
    grad: Tensor, transposed: Tensor, next_x: Tensor | None, weight: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Update the first layer from its transposed inputs, and prefetch the GEMM of the next inputs, if there are some.

    Returns:
        Split-K partials (S, R, B, n) of that GEMM, and partials (S, R, n) of the squared norms of the new rows.
    """
    (runs, n, m), examples = weight.shape, grad.shape[1] if next_x is None else next_x.shape[1]
    count = split_k(n, m)
    squares = torch.empty(count, runs, n, device=weight.device)
    product = squares if next_x is None else torch.empty(count, runs, examples, n, device=weight.device)
    x = grad if next_x is None else next_x
    _update_and_prefetch[(triton.cdiv(n, 128), runs, count)](  # type: ignore[index]
        _gluon_tile(grad, EXAMPLES, 128), _gluon_tile(transposed, 32, EXAMPLES), _gluon_tile(x, EXAMPLES, 32),
        _gluon_tile(weight, 128, 32), product, squares, examples, n, m, E=EXAMPLES, N=128, M=32, SPLITS=count, XS=3,
        WS=3, NEXT=next_x is not None, WARPS=8, num_warps=8,
    )  # fmt: skip
    return None if next_x is None else product, squares


def split_k(n: int, m: int) -> int:
    """Parts of the first layer's columns, so that programs of 128 rows of nine runs fill the device once."""
    return max(1, min(4, m // 32, MULTIPROCESSORS // (RUNS * triton.cdiv(n, 128))))


def _buffers(
    runs: int, examples: int, n: int, norm: list[Tensor] | None, bias: Tensor | None, kind: str,
    row_scale: Tensor | None, keep: bool, device: torch.device,
) -> tuple[Tensor, Saved | Tensor, list[Tensor], dict[str, int]]:  # fmt: skip
    """Empty activations and saved tensors, and the arguments of the kernels that fill them."""
    a = torch.empty(runs, examples, n, device=device)
    z = torch.empty_like(a) if keep else a
    mean, rstd = torch.empty(2, runs, 1, n, device=device) if norm else (a, a)
    gamma, beta, *running = norm or (a, a if bias is None else bias, a, a)
    arguments = [gamma, beta, *running, a if row_scale is None else row_scale, mean, rstd, z, a]
    flags = {"NORM": norm is not None, "BIAS": bias is not None, "DEFERRED": row_scale is not None, "KEEP": keep}
    return a, (z, mean, rstd) if norm else z, arguments, {"KIND": _KINDS[kind], **flags}


def _launch_forward(
    x: Tensor, weight: Tensor, arguments: list[Tensor], target: Tensor, rate: Tensor, flags: dict[str, int]
) -> None:
    runs, n, m = weight.shape
    operands = [
        TensorDescriptor(t, list(t.shape), list(t.stride()), [1, rows, 32])
        for t, rows in ((x, EXAMPLES), (weight, LEAST))
    ]
    tiles = {"EXAMPLES": EXAMPLES, "UNITS": LEAST, "M": 32, "num_warps": 4}
    _forward[(triton.cdiv(n, LEAST), runs)](  # type: ignore[index]
        *operands, *arguments, target, rate, x.shape[1], n, m, **tiles, **flags
    )


def _gluon_tile(t: Tensor, rows: int, columns: int) -> GluonTensorDescriptor:
    return GluonTensorDescriptor(
        t, list(t.shape), list(t.stride()), [1, rows, columns], gl.NVMMASharedLayout(128, 32, rank=3)
    )
