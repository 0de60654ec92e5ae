"""Kernels, with their ways back, for what stands between the convolutions of a network, channels last.

On an H200 a third of a step went there (torch 2.11 compiled, bfloat16, batch 128, maps of 32x32 with 128 channels that
can be read in 8 us): statistics of BatchNorm 70 us, its way back 46 us, that of max-pool 160 us, sums for biases 26 us.
Here BatchNorm, ReLU and max-pool are one operation whose way back starts from the pooled map; a bias with its
ReLU is another.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # channels a program takes at once
ENTRIES = 4096  # of a map that a program holds at once
PROGRAMS = 512  # that sum a map


@triton.jit
def _sums(x, total, square, pixels, C: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    # Of each channel, the sum and the sum of squares over the pixels of one program.
    channel = tl.arange(0, C)[None, :]
    first = tl.zeros((BLOCK, C), tl.float32)
    second = tl.zeros((BLOCK, C), tl.float32)
    for step in range(STEPS):
        pixel = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + pixel[:, None] * C + channel, mask=pixel[:, None] < pixels, other=0.0).to(tl.float32)
        first += value
        second += value * value
    at = tl.program_id(0) * C + tl.arange(0, C)
    tl.store(total + at, tl.sum(first, 0))
    tl.store(square + at, tl.sum(second, 0))


@triton.jit
def _pool(
    x, mean, scale, beta, out, place, chosen, pixels, height, width, rows, columns,
    C: tl.constexpr, BLOCK: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    # Output pixels: the largest of a 3x3 window around (2i, 2j), normalised, then ReLU; which of its nine cells it was,
    # and what stood there.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    j = pixel % columns
    i = (pixel // columns) % rows
    n = pixel // (columns * rows)
    channel = tl.arange(0, C)[None, :]
    m = tl.load(mean + channel)
    s = tl.load(scale + channel)
    b = tl.load(beta + channel)
    best = tl.full((BLOCK, C), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK, C), tl.int32)
    found = tl.zeros((BLOCK, C), tl.float32)
    for cell in tl.static_range(9):
        h = 2 * i - 1 + cell // 3
        w = 2 * j - 1 + cell % 3
        inside = (there & (h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        at = ((n * height + h) * width + w)[:, None] * C + channel
        raw = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        value = ((raw - m) * s + b).to(out.dtype.element_ty).to(tl.float32)
        larger = inside & ((value > best) | (value != value))
        best = tl.where(larger, value, best)
        where = tl.where(larger, cell, where)
        found = tl.where(larger, raw, found)
    at = pixel[:, None] * C + channel
    tl.store(out + at, tl.where(best < 0.0, 0.0, best).to(out.dtype.element_ty), mask=there[:, None])
    if TRAIN:
        tl.store(place + at, where.to(tl.int8), mask=there[:, None])
        tl.store(chosen + at, found.to(chosen.dtype.element_ty), mask=there[:, None])


@triton.jit
def _pool_sums(
    grad, chosen, mean, rstd, gamma, beta, total, product, pixels,
    C: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    # Of each channel, the sum of the gradients that pass the ReLU, and of their products with the normalised value.
    channel = tl.arange(0, C)[None, :]
    m = tl.load(mean + channel)
    r = tl.load(rstd + channel)
    s = r * tl.load(gamma + channel)
    b = tl.load(beta + channel)
    first = tl.zeros((BLOCK, C), tl.float32)
    second = tl.zeros((BLOCK, C), tl.float32)
    for step in range(STEPS):
        pixel = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        there = pixel[:, None] < pixels
        at = pixel[:, None] * C + channel
        raw = tl.load(chosen + at, mask=there, other=0.0).to(tl.float32) - m
        value = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        value = tl.where(raw * s + b > 0.0, value, 0.0)
        first += value
        second += value * raw * r
    at = tl.program_id(0) * C + tl.arange(0, C)
    tl.store(total + at, tl.sum(first, 0))
    tl.store(product + at, tl.sum(second, 0))


@triton.jit
def _pool_back(
    grad, place, x, mean, rstd, gamma, beta, total, product, result, pixels, height, width, rows, columns,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Input pixels: the gradients of the windows, at most four, whose largest cell each is, back through BatchNorm.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    w = pixel % width
    h = (pixel // width) % height
    n = pixel // (width * height)
    channel = tl.arange(0, C)[None, :]
    m = tl.load(mean + channel)
    r = tl.load(rstd + channel)
    s = r * tl.load(gamma + channel)
    b = tl.load(beta + channel)
    value = tl.zeros((BLOCK, C), tl.float32)
    for a in tl.static_range(2):
        for c in tl.static_range(2):
            i = h // 2 + a
            j = w // 2 + c
            down = h - (2 * i - 1)
            right = w - (2 * j - 1)
            inside = (there & (i < rows) & (j < columns) & (down >= 0) & (right >= 0))[:, None]
            at = ((n * rows + i) * columns + j)[:, None] * C + channel
            cell = tl.load(place + at, mask=inside, other=-1).to(tl.int32)
            one = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
            value += tl.where(cell == (down * 3 + right)[:, None], one, 0.0)
    at = pixel[:, None] * C + channel
    raw = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32) - m
    value = tl.where(raw * s + b > 0.0, value, 0.0)
    back = s * (value - (tl.load(total + channel) + raw * r * tl.load(product + channel)) / pixels)
    tl.store(result + at, back.to(result.dtype.element_ty), mask=there[:, None])


@triton.jit
def _relu(x, bias, out, pixels, channels, TILE: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    at = pixel[:, None] * channels + channel
    value = tl.load(x + at, mask=pixel[:, None] < pixels, other=0.0).to(tl.float32) + tl.load(bias + channel)
    tl.store(out + at, tl.where(value < 0.0, 0.0, value).to(out.dtype.element_ty), mask=pixel[:, None] < pixels)


@triton.jit
def _relu_back(
    grad, out, result, total, pixels, channels, TILE: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr
):
    # The gradient where the ReLU lets it pass, and its sum over the pixels of one program.
    channel = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    first = tl.zeros((BLOCK, TILE), tl.float32)
    for step in range(STEPS):
        pixel = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        there = pixel[:, None] < pixels
        at = pixel[:, None] * channels + channel
        passed = tl.load(out + at, mask=there, other=0.0).to(tl.float32) > 0.0
        value = tl.where(passed, tl.load(grad + at, mask=there, other=0.0).to(tl.float32), 0.0)
        tl.store(result + at, value.to(result.dtype.element_ty), mask=there)
        first += value
    tl.store(total + tl.program_id(0) * channels + tl.program_id(1) * TILE + tl.arange(0, TILE), tl.sum(first, 0))


def _map(x: Tensor, height: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty map with the channels of another, channels last."""
    n, c = x.shape[:2]
    shape = (n, c, height, width)
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


def _shares(pixels: int, block: int) -> tuple[int, int]:
    """How many programs sum this many pixels, and steps each of them takes."""
    blocks = triton.cdiv(pixels, block)
    steps = max(1, blocks // PROGRAMS)
    return triton.cdiv(blocks, steps), steps


@torch.library.triton_op("paper::norm_pool", mutates_args=())
def norm_pool(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """BatchNorm by the batch's statistics, ReLU, max-pool; places, what stood there, mean and variance."""
    n, c, height, width = x.shape
    pixels, block = n * height * width, max(1, ENTRIES // c)
    programs, steps = _shares(pixels, block)
    total, square = (torch.empty((programs, c), dtype=torch.float32, device=x.device) for _ in range(2))
    torch.library.wrap_triton(_sums)[(programs,)](x, total, square, pixels, C=c, BLOCK=block, STEPS=steps)
    mean = total.sum(0) / pixels
    var = (square.sum(0) / pixels - mean * mean).clamp_min(0.0)
    rows, columns = (height + 1) // 2, (width + 1) // 2
    out, chosen, place = _map(x, rows, columns), _map(x, rows, columns), _map(x, rows, columns, torch.int8)
    pooled, block = n * rows * columns, max(1, ENTRIES // 2 // c)
    launch = torch.library.wrap_triton(_pool)[(triton.cdiv(pooled, block),)]
    scale, sizes = gamma * torch.rsqrt(var + eps), (pooled, height, width, rows, columns)
    launch(x, mean, scale, beta, out, place, chosen, *sizes, C=c, BLOCK=block, TRAIN=True)
    return out, place, chosen, mean, var


@torch.library.triton_op("paper::norm_pool_eval", mutates_args=())
def norm_pool_eval(x: Tensor, mean: Tensor, scale: Tensor, beta: Tensor) -> Tensor:
    """(x - mean) scale + beta, ReLU, max-pool."""
    n, c, height, width = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    out = _map(x, rows, columns)
    pixels, block = n * rows * columns, max(1, ENTRIES // 2 // c)
    launch = torch.library.wrap_triton(_pool)[(triton.cdiv(pixels, block),)]
    launch(x, mean, scale, beta, out, out, out, pixels, height, width, rows, columns, C=c, BLOCK=block, TRAIN=False)
    return out


@torch.library.triton_op("paper::norm_pool_back", mutates_args=())
def _norm_pool_back(
    grad: Tensor, x: Tensor, place: Tensor, chosen: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    n, c, height, width = x.shape
    rows, columns = grad.shape[2:]
    pooled, block = n * rows * columns, max(1, ENTRIES // c)
    programs, steps = _shares(pooled, block)
    totals, products = (torch.empty((programs, c), dtype=torch.float32, device=x.device) for _ in range(2))
    held = (mean, rstd, gamma, beta)
    launch = torch.library.wrap_triton(_pool_sums)[(programs,)]
    launch(grad, chosen, *held, totals, products, pooled, C=c, BLOCK=block, STEPS=steps)
    total, product = totals.sum(0), products.sum(0)
    result = _map(x, height, width)
    pixels, block = n * height * width, max(1, ENTRIES // 2 // c)
    launch = torch.library.wrap_triton(_pool_back)[(triton.cdiv(pixels, block),)]
    sizes = (pixels, height, width, rows, columns)
    launch(grad, place, x, *held, total, product, result, *sizes, C=c, BLOCK=block)
    return result, product, total


@torch.library.triton_op("paper::bias_relu", mutates_args=())
def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """Add a bias, ReLU."""
    n, c, height, width = x.shape
    out, pixels, block = _map(x, height, width), n * height * width, ENTRIES // TILE
    launch = torch.library.wrap_triton(_relu)[(triton.cdiv(pixels, block), c // TILE)]
    launch(x, bias, out, pixels, c, TILE=TILE, BLOCK=block)
    return out


@torch.library.triton_op("paper::bias_relu_back", mutates_args=())
def _bias_relu_back(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    n, c, height, width = out.shape
    result, pixels, block = _map(out, height, width), n * height * width, ENTRIES // TILE
    programs, steps = _shares(pixels, block)
    sums = torch.empty((programs, c), dtype=torch.float32, device=out.device)
    launch = torch.library.wrap_triton(_relu_back)[(programs, c // TILE)]
    launch(grad, out, result, sums, pixels, c, TILE=TILE, BLOCK=block, STEPS=steps)
    return result, sums.sum(0)


def _keep_pool(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    (x, gamma, beta, ctx.eps), (_, place, chosen, mean, var) = inputs, output
    ctx.save_for_backward(x, place, chosen, mean, var, gamma, beta)
    ctx.mark_non_differentiable(place, chosen, mean, var)


def _back_pool(ctx, grad, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
    x, place, chosen, mean, var, gamma, beta = ctx.saved_tensors
    grad, rstd = grad.contiguous(memory_format=torch.channels_last), torch.rsqrt(var + ctx.eps)
    return *_norm_pool_back(grad, x, place, chosen, mean, rstd, gamma, beta), None


def _keep_relu(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output)


def _back_relu(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    return _bias_relu_back(grad.contiguous(memory_format=torch.channels_last), *ctx.saved_tensors)


torch.library.register_autograd("paper::norm_pool", _back_pool, setup_context=_keep_pool)
torch.library.register_autograd("paper::bias_relu", _back_relu, setup_context=_keep_relu)
