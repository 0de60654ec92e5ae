"""Kernels, with their ways back, for what stands between the convolutions of a network, channels last.

On an H200 a third of a step went there (torch 2.11 compiled, bfloat16, batch 128, maps of 32x32 with 128 channels that
can be read in 8 us): statistics of BatchNorm 70 us, its way back 46 us, that of max-pool 160 us, sums for biases 26 us.
Here BatchNorm, ReLU and max-pool are one operation whose way back starts from the pooled map; a convolution with bias
and ReLU is another.
"""

from typing import Any

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
    # and what stood there. Cells are compared before they are normalised, with the scale's sign.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    j = pixel % columns
    i = (pixel // columns) % rows
    n = pixel // (columns * rows)
    channel = tl.arange(0, C)[None, :]
    s = tl.load(scale + channel)
    sign = tl.where(s < 0.0, -1.0, 1.0)
    best = tl.full((BLOCK, C), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK, C), tl.int32)
    for cell in tl.static_range(9):
        h = 2 * i - 1 + cell // 3
        w = 2 * j - 1 + cell % 3
        inside = (there & (h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        at = ((n * height + h) * width + w)[:, None] * C + channel
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * sign
        value = tl.where(inside, value, float("-inf"))
        where = tl.where(value > best, cell, where)
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    best *= sign
    at = pixel[:, None] * C + channel
    value = (best - tl.load(mean + channel)) * s + tl.load(beta + channel)
    tl.store(out + at, tl.where(value < 0.0, 0.0, value).to(out.dtype.element_ty), mask=there[:, None])
    if TRAIN:
        tl.store(place + at, where.to(tl.int8), mask=there[:, None])
        tl.store(chosen + at, best.to(chosen.dtype.element_ty), mask=there[:, None])


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
def _windows(grad, place, first, known, channel, C: tl.constexpr):
    at = first[:, None] * C + channel
    cell = tl.load(place + at, mask=known[:, None], other=-1).to(tl.int32)
    return cell, tl.load(grad + at, mask=known[:, None], other=0.0).to(tl.float32)


@triton.jit
def _pool_back(
    grad, place, x, mean, rstd, gamma, beta, total, product, result, pixels, inputs, height, width, rows, columns,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Four input pixels for each output pixel (i, j), from (2i, 2j) on: the gradients of the windows whose largest cell
    # each is, of (i, j) and those to the right and below, back through BatchNorm.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    j = pixel % columns
    i = (pixel // columns) % rows
    n = pixel // (columns * rows)
    channel = tl.arange(0, C)[None, :]
    m = tl.load(mean + channel)
    r = tl.load(rstd + channel)
    s = r * tl.load(gamma + channel)
    b = tl.load(beta + channel)
    level = s * tl.load(total + channel) / inputs
    slope = s * r * tl.load(product + channel) / inputs
    right = there & (j + 1 < columns)
    down = there & (i + 1 < rows)
    cell, own = _windows(grad, place, pixel, there, channel, C)
    cell_right, of_right = _windows(grad, place, pixel + 1, right, channel, C)
    cell_down, of_down = _windows(grad, place, pixel + columns, down, channel, C)
    cell_both, of_both = _windows(grad, place, pixel + columns + 1, right & down, channel, C)
    for a in tl.static_range(2):
        for c in tl.static_range(2):
            value = tl.where(cell == 4 + 3 * a + c, own, 0.0)
            if c == 1:
                value += tl.where(cell_right == 3 + 3 * a, of_right, 0.0)
            if a == 1:
                value += tl.where(cell_down == 1 + c, of_down, 0.0)
            if a + c == 2:
                value += tl.where(cell_both == 0, of_both, 0.0)
            known = (there & (2 * i + a < height) & (2 * j + c < width))[:, None]
            at = ((n * height + 2 * i + a) * width + 2 * j + c)[:, None] * C + channel
            raw = tl.load(x + at, mask=known, other=0.0).to(tl.float32) - m
            back = s * tl.where(raw * s + b > 0.0, value, 0.0) - (level + raw * slope)
            tl.store(result + at, back.to(result.dtype.element_ty), mask=known)


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
    shape = (*x.shape[:2], height, width)
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


def _halved(x: Tensor) -> tuple[int, int, int, int, int]:
    """Pixels, height and width of the pooled map of this one, with the height and width of this one in between."""
    n, _, height, width = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    return n * rows * columns, height, width, rows, columns


def _shares(x: Tensor, channels: int) -> tuple[int, int, int, int]:
    """Pixels of a map, pixels a program holds at once, programs that sum them, and steps each of them takes."""
    pixels, block = x.numel() // x.shape[1], max(1, ENTRIES // channels)
    blocks = triton.cdiv(pixels, block)
    steps = max(1, blocks // PROGRAMS)
    return pixels, block, triton.cdiv(blocks, steps), steps


def _partial(x: Tensor, channels: int) -> Tensor:
    return torch.empty((_shares(x, channels)[2], x.shape[1]), dtype=torch.float32, device=x.device)


def _on(kernel: Any, *grid: int) -> Any:
    return kernel[grid]


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


# Operations that a compiler takes as they are; seen through, it would fill their results before they are written.


@torch.library.custom_op("paper::sums", mutates_args=())
def sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel, sums and sums of squares, a row a program."""
    x, c = _last(x), x.shape[1]
    (pixels, block, programs, steps), total, square = _shares(x, c), _partial(x, c), _partial(x, c)
    _on(_sums, programs)(x, total, square, pixels, C=c, BLOCK=block, STEPS=steps)
    return total, square


@torch.library.custom_op("paper::pool", mutates_args=())
def pool(x: Tensor, mean: Tensor, scale: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) scale + beta, ReLU, max-pool; which cell of each window was taken, and what stood there."""
    x, c, sizes = _last(x), x.shape[1], _halved(x)
    out, chosen, place = (_map(x, *sizes[3:], dtype) for dtype in (None, None, torch.int8))
    block = max(1, ENTRIES // 2 // c)
    launch = _on(_pool, triton.cdiv(sizes[0], block))
    launch(x, mean, scale, beta, out, place, chosen, *sizes, C=c, BLOCK=block, TRAIN=True, num_warps=8)
    return out, place, chosen


@torch.library.custom_op("paper::pool_eval", mutates_args=())
def pool_eval(x: Tensor, mean: Tensor, scale: Tensor, beta: Tensor) -> Tensor:
    """The first of the three alone."""
    x, c, sizes = _last(x), x.shape[1], _halved(x)
    out, block = _map(x, *sizes[3:]), max(1, ENTRIES // 2 // c)
    launch = _on(_pool, triton.cdiv(sizes[0], block))
    launch(x, mean, scale, beta, out, out, out, *sizes, C=c, BLOCK=block, TRAIN=False, num_warps=8)
    return out


@torch.library.custom_op("paper::pool_sums", mutates_args=())
def pool_sums(
    grad: Tensor, chosen: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Of each channel, sums of the gradients that pass the ReLU, and with the normalised values, a row a program."""
    grad, c = _last(grad), grad.shape[1]
    (pixels, block, programs, steps), total, product = _shares(grad, c), _partial(grad, c), _partial(grad, c)
    launch = _on(_pool_sums, programs)
    launch(grad, _last(chosen), mean, rstd, gamma, beta, total, product, pixels, C=c, BLOCK=block, STEPS=steps)
    return total, product


@torch.library.custom_op("paper::pool_back", mutates_args=())
def pool_back(
    grad: Tensor, place: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, beta: Tensor, total: Tensor,
    product: Tensor,
) -> Tensor:  # fmt: skip
    """From the gradient of the pooled map to that of x, given both sums."""
    (n, c, height, width), (pixels, *sizes) = x.shape, _halved(x)
    result, block = _map(x, height, width), max(1, ENTRIES // 4 // c)
    launch = _on(_pool_back, triton.cdiv(pixels, block))
    held = (mean, rstd, gamma, beta, total, product)
    launch(_last(grad), _last(place), _last(x), *held, result, pixels, n * height * width, *sizes, C=c, BLOCK=block)
    return result


@torch.library.custom_op("paper::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """A convolution with bias, and ReLU, in one call to cuDNN."""
    if not x.is_cuda:
        return _last(torch.conv2d(x, weight, bias, stride, padding).relu_())
    return _last(torch.ops.aten.cudnn_convolution_relu(_last(x), _last(weight), bias, stride, padding, [1, 1], 1))


@torch.library.custom_op("paper::relu_back", mutates_args=())
def relu_back(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient that passes, and its sums of each channel, a row a program."""
    grad, (_, c, height, width) = _last(grad), out.shape
    result, total, (pixels, block, programs, steps) = _map(out, height, width), _partial(out, TILE), _shares(out, TILE)
    launch = _on(_relu_back, programs, c // TILE)
    launch(grad, _last(out), result, total, pixels, c, TILE=TILE, BLOCK=block, STEPS=steps)
    return result, total


sums.register_fake(lambda x: (_partial(x, x.shape[1]), _partial(x, x.shape[1])))
pool.register_fake(lambda x, *_: tuple(_map(x, *_halved(x)[3:], dtype) for dtype in (None, torch.int8, None)))
pool_eval.register_fake(lambda x, *_: _map(x, *_halved(x)[3:]))
pool_sums.register_fake(lambda grad, *_: (_partial(grad, grad.shape[1]), _partial(grad, grad.shape[1])))
pool_back.register_fake(lambda grad, place, x, *_: _map(x, *x.shape[2:]))
conv_relu.register_fake(lambda x, *others: _last(torch.conv2d(x, *others)))
relu_back.register_fake(lambda grad, out: (_map(out, *out.shape[2:]), _partial(out, TILE)))
