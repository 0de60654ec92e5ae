"""Products of stacked layers on a Hopper GPU that read each weight once to use and to update it, in Gluon.

Weights are (R, n, m), gradients g at a layer's outputs (R, B, n), its inputs a (R, B, m), of at most E examples. Tiles
come and go by TMA, which fills what lies outside with zeros and does not write it. Products are of TF32 by wgmma: it
takes operands from shared memory with the contracted axis contiguous; a left one that lies otherwise goes through
registers.
"""

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


@gluon.jit
def _swap(t, R: gl.constexpr, C: gl.constexpr):
    # Bits 2 and 4 of the rows' numbers change places: in registers a change of names only.
    return t.reshape((R // 32, 2, 2, 2, 4, C)).permute((0, 3, 2, 1, 4, 5)).reshape((R, C))


@gluon.jit
def _load_like(tile, t):
    return tile.load(t.type.layout)


@gluon.jit
def _operand(tile, R: gl.constexpr, C: gl.constexpr, lay: gl.constexpr):
    # A tile's transpose, (R, C), as left operand from registers. Its rows are swapped as above, which is what it takes
    # to read it from a buffer of swizzled rows of 128 bytes without conflicts of banks.
    like = _swap(gl.zeros([R, C], gl.float32, lay), R, C)
    return gl.convert_layout(_swap(_load_like(tile.permute((1, 0)), like), R, C), lay, assert_trivial=True)


@gluon.jit
def _turn(held, ROWS: gl.constexpr, E: gl.constexpr, WARPS: gl.constexpr):
    # What lies in a buffer as (E, ROWS) comes to lie in it as (ROWS, E).
    two: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    lanes: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [1, WARPS], [0, 1])
    there = held._reinterpret(gl.float32, [E, ROWS], two).permute((1, 0)).load(lanes)
    thread_barrier()
    held.store(there)
    fence_async_shared()
    thread_barrier()


@gluon.jit
def _fetch(x, at, full, to, pred, BYTES: gl.constexpr):
    mbarrier.expect(full, BYTES, pred=pred)
    tma.async_copy_global_to_shared(x, at, full, to, pred=pred)


@gluon.jit
def _slope(y, KIND: gl.constexpr):
    if KIND == 0:
        slope = gl.where(y > 0.0, 1.0, 0.0)
    elif KIND == 1:
        slope = 0.5 * (1.0 + gl.erf(y * 0.7071067811865476)) + y * gl.exp(-0.5 * y * y) * 0.3989422804014327
    else:
        gate = 1.0 / (1.0 + gl.exp(-y))
        slope = gate * (1.0 + y * (1.0 - gate))
    return slope


@gluon.jit
def _held(x, held, known):
    return gl.load(x + held, mask=known, other=0.0)


@gluon.jit
def _through(acc, sa, sz, gamma, beta, mean, rstd, factor, held, known, examples, KIND: gl.constexpr,
             NORM: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    # From the gradient at a layer's outputs, (units, examples), to the one before bias or BatchNorm and activation, as
    # in `layers`; what these hold takes its step. Gradients are zero where there is no example.
    if NORM:
        scale, shift, r = _held(gamma, held, known), _held(beta, held, known), _held(rstd, held, known)
        x = (_load_like(sz.permute((1, 0)), acc) * factor[:, None] - _held(mean, held, known)[:, None]) * r[:, None]
        acc = acc * _slope(x * scale[:, None] + shift[:, None], KIND)
        for_beta = gl.sum(acc, 1)
        for_gamma = gl.sum(acc * x, 1)
        acc = (scale * r)[:, None] * (acc - (for_beta[:, None] + x * for_gamma[:, None]) / examples)
        gl.store(gamma + held, scale - for_gamma, mask=known)
        gl.store(beta + held, shift - for_beta, mask=known)
    else:
        shift = gl.zeros_like(factor)
        if BIAS:
            shift = _held(beta, held, known)
        if KIND == 0:  # the slope is as well read off the outputs
            acc = acc * _slope(_load_like(sa, acc), KIND)
        else:
            acc = acc * _slope(_load_like(sz.permute((1, 0)), acc) * factor[:, None] + shift[:, None], KIND)
        if BIAS:
            gl.store(beta + held, shift - gl.sum(acc, 1), mask=known)
    return acc


@gluon.jit
def _put_below(acc, sa, sz, gamma, beta, mean, rstd, row, result, run, col, examples, m: gl.constexpr,
               M: gl.constexpr, E: gl.constexpr, KIND: gl.constexpr, NORM: gl.constexpr, BIAS: gl.constexpr,
               APART: gl.constexpr):  # fmt: skip
    # acc: (M, E), its rows in order.
    lay: gl.constexpr = acc.type.layout
    column = col + gl.arange(0, M, gl.SliceLayout(1, lay))
    known = column < m
    held = run * m + column
    factor = gl.full([M], 1.0, gl.float32, gl.SliceLayout(1, lay))
    if APART:
        factor = gl.load(row + held, mask=known, other=1.0)
    acc = _through(acc, sa, sz, gamma, beta, mean, rstd, factor, held, known, examples, KIND, NORM, BIAS)
    if APART:
        acc = acc / factor[:, None]
    example = gl.arange(0, E, gl.SliceLayout(0, lay))
    at = (run * examples + example)[None, :] * m + column[:, None]
    gl.store(result + at, acc, mask=(example < examples)[None, :] & known[:, None])


@gluon.jit
def down(g, a, w, z, gamma, beta, mean, rstd, row, result, examples, n: gl.constexpr, m: gl.constexpr, E: gl.constexpr,
         N: gl.constexpr, M: gl.constexpr, GS: gl.constexpr, WS: gl.constexpr, KIND: gl.constexpr, NORM: gl.constexpr,
         BIAS: gl.constexpr, APART: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """The gradient g W, then W -= g^T a; from there back through the layer below, which made z and from it a.

    M columns a program, tiles of N rows; GS, WS: buffers of g and W.
    """
    two: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    up: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E, 8])
    across: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, M, 8])
    run = gl.program_id(1)
    col = gl.program_id(0) * M
    count: gl.constexpr = (n + N - 1) // N
    sg = gl.allocate_shared_memory(gl.float32, [GS, E, N], two)
    sw = gl.allocate_shared_memory(gl.float32, [WS, N, M], two)
    sa = gl.allocate_shared_memory(gl.float32, [M, E], two)
    KEPT: gl.constexpr = NORM or KIND != 0
    sz = gl.allocate_shared_memory(gl.float32, [E, M], two) if KEPT else sa
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
        _fetch(g, [run, 0, s * N], full_g.index(s), sg.index(s), s < count, E * N * 4)
        if s < WS - 1:
            _fetch(w, [run, s * N, col], full_w.index(s), sw.index(s), s < count, N * M * 4)
    _fetch(a, [run, 0, col], full_a, sa._reinterpret(gl.float32, [E, M], two), True, M * E * 4)
    for s in gl.static_range(GS, WS - 1):
        _fetch(w, [run, s * N, col], full_w.index(s), sw.index(s), s < count, N * M * 4)
    if KEPT:
        _fetch(z, [run, 0, col], full_z, sz, True, M * E * 4)
    mbarrier.wait(full_a, 0)
    _turn(sa, M, E, WARPS)
    acc = gl.zeros([M, E], gl.float32, up)
    for k in range(count):
        tg = sg.index(k % GS)
        tw = sw.index(k % WS)
        mbarrier.wait(full_w.index(k % WS), (k // WS) & 1)
        mbarrier.wait(full_g.index(k % GS), (k // GS) & 1)
        wt = _operand(tw, M, N, gl.DotOperandLayout(0, up, 1))
        acc = warpgroup_mma(wt, tg.permute((1, 0)), acc, is_async=True)
        gt = _operand(tg, N, E, gl.DotOperandLayout(0, across, 1))
        d = gl.zeros([N, M], gl.float32, across)
        d = warpgroup_mma(gt, sa.permute((1, 0)), d, use_acc=False, is_async=True)
        # The tile stored last is out of its buffer: the load of one more.
        tma.store_wait(0)
        to = (k + WS - 1) % WS
        _fetch(w, [run, (k + WS - 1) * N, col], full_w.index(to), sw.index(to), k + WS - 1 < count, N * M * 4)
        now = _load_like(tw, _swap(gl.zeros([N, M], gl.float32, across), N, M))
        d, acc = warpgroup_mma_wait(0, deps=(d, acc))
        tw.store(now - _swap(d, N, M))
        fence_async_shared()
        tma.async_copy_shared_to_global(w, [run, k * N, col], tw)
        _fetch(g, [run, 0, (k + GS) * N], full_g.index(k % GS), tg, k + GS < count, E * N * 4)
    if KEPT:
        mbarrier.wait(full_z, 0)
    _put_below(_swap(acc, M, E), sa, sz, gamma, beta, mean, rstd, row, result, run, col, examples, m, M, E,
               KIND, NORM, BIAS, APART)  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def ahead(g, xT, x, w, result, squares, examples, n: gl.constexpr, m: gl.constexpr, E: gl.constexpr, N: gl.constexpr,
          M: gl.constexpr, SHARES: gl.constexpr, XS: gl.constexpr, WS: gl.constexpr, NEXT: gl.constexpr,
          WARPS: gl.constexpr):  # fmt: skip
    """W -= g^T x of inputs that come as xT, (R, m, E), and squares of its rows; then W x^T of the next, if NEXT.

    N rows a program, tiles of M columns; both results in SHARES, one for each part of the columns.
    """
    two: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E, 8])
    thin: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, M, 8])
    XBYTES: gl.constexpr = (2 if NEXT else 1) * M * E * 4
    run = gl.program_id(1)
    row = gl.program_id(0) * N
    tiles: gl.constexpr = (m + M - 1) // M
    first = tiles * gl.program_id(2) // SHARES
    count = tiles * (gl.program_id(2) + 1) // SHARES - first
    sg = gl.allocate_shared_memory(gl.float32, [N, E], two)
    sa = gl.allocate_shared_memory(gl.float32, [XS, M, E], two)
    sx = gl.allocate_shared_memory(gl.float32, [XS, E, M], two) if NEXT else sa
    sw = gl.allocate_shared_memory(gl.float32, [WS, N, M], two)
    full_g = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full_x = gl.allocate_shared_memory(gl.int64, [XS, 1], mbarrier.MBarrierLayout())
    full_w = gl.allocate_shared_memory(gl.int64, [WS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full_g, count=1)
    for s in gl.static_range(XS):
        mbarrier.init(full_x.index(s), count=1)
    for s in gl.static_range(WS):
        mbarrier.init(full_w.index(s), count=1)
    fence_async_shared()
    _fetch(g, [run, 0, row], full_g, sg._reinterpret(gl.float32, [E, N], two), True, N * E * 4)
    for s in gl.static_range(XS):
        _fetch(xT, [run, (first + s) * M, 0], full_x.index(s), sa.index(s), s < count, XBYTES)
        if NEXT:
            tma.async_copy_global_to_shared(x, [run, 0, (first + s) * M], full_x.index(s), sx.index(s), pred=s < count)
    for s in gl.static_range(WS - 1):
        _fetch(w, [run, row, (first + s) * M], full_w.index(s), sw.index(s), s < count, N * M * 4)
    mbarrier.wait(full_g, 0)
    _turn(sg, N, E, WARPS)
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
        # The tile stored last is out of its buffer: the load of one more.
        tma.store_wait(0)
        to, last = (k + WS - 1) % WS, first + k + WS - 1
        _fetch(w, [run, row, last * M], full_w.index(to), sw.index(to), k + WS - 1 < count, N * M * 4)
        tma.async_copy_shared_to_global(w, [run, row, (first + k) * M], tw)
        if NEXT:
            acc = warpgroup_mma_wait(0, deps=(acc,))
            thread_barrier()
        more, then = k + XS < count, (first + k + XS) * M
        _fetch(xT, [run, then, 0], full_x.index(k % XS), ta, more, XBYTES)
        if NEXT:
            tma.async_copy_global_to_shared(x, [run, 0, then], full_x.index(k % XS), sx.index(k % XS), pred=more)
    share = gl.program_id(2) * gl.num_programs(1) + run
    unit = row + gl.arange(0, N, gl.SliceLayout(1, thin))
    gl.store(squares + share * n + unit, gl.sum(square, 1), mask=unit < n)
    if NEXT:
        unit = row + gl.arange(0, N, gl.SliceLayout(1, wide))[:, None]
        example = gl.arange(0, E, gl.SliceLayout(0, wide))[None, :]
        gl.store(result + (share * examples + example) * n + unit, acc, mask=(example < examples) & (unit < n))
    tma.store_wait(0)
