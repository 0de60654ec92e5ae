"""A 3x3 convolution of images of 3 channels with bias and ReLU, and the way back to its weight, as kernels.

cuDNN's kernels want the channels padded to 8, and for such short sums take several times what reading the maps does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paper.train.maps import _last, _on

CHANNELS = (64, 128)  # that it can make of the three
PROGRAMS = 132  # that sum the way back, each over a share of the pixels
STAGES = 3  # steps of theirs whose maps are on the way at once
CELLS = tl.constexpr(27)  # 3 x 3 of 3 channels
PATCH = tl.constexpr(32)  # with a one for the bias, and zeros up to a power of two


@triton.jit
def _patches(x, pixel, pixels, height, width, TYPE: tl.constexpr):
    # Of each pixel, the cells around it, a one, zeros.
    j = (pixel % width)[:, None]
    i = ((pixel // width) % height)[:, None]
    n = (pixel // (width * height))[:, None]
    k = tl.arange(0, PATCH)[None, :]
    h = i + k // 9 - 1
    w = j + (k // 3) % 3 - 1
    there = (pixel < pixels)[:, None] & (k < CELLS) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    value = tl.load(x + ((n * height + h) * width + w) * 3 + k % 3, mask=there, other=0.0).to(tl.float32)
    return tl.where(k == CELLS, 1.0, value).to(TYPE)


@triton.jit
def _first(x, weight, out, pixels, height, width, C: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, C)[None, :]
    patches = _patches(x, pixel, pixels, height, width, weight.dtype.element_ty)
    value = tl.dot(patches, tl.load(weight + tl.arange(0, PATCH)[:, None] * C + channel), input_precision="ieee")
    at = pixel[:, None] * C + channel
    tl.store(out + at, tl.where(value < 0.0, 0.0, value).to(out.dtype.element_ty), mask=(pixel < pixels)[:, None])


@triton.jit
def _first_back(grad, x, out, total, pixels, height, width, C: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    # Products of the patches and the gradients that the ReLU lets pass, summed over the pixels of one program.
    channel = tl.arange(0, C)[None, :]
    first = tl.zeros((PATCH, C), tl.float32)
    for step in range(STEPS):
        pixel = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        there = (pixel < pixels)[:, None]
        at = pixel[:, None] * C + channel
        passed = tl.load(out + at, mask=there, other=0.0).to(tl.float32) > 0.0
        value = tl.where(passed, tl.load(grad + at, mask=there, other=0.0), 0.0)
        patches = _patches(x, pixel, pixels, height, width, grad.dtype.element_ty)
        first = tl.dot(tl.trans(patches), value, first, input_precision="ieee")
    row = tl.program_id(0) * PATCH + tl.arange(0, PATCH)
    tl.store(total + row[:, None] * C + channel, first)


def _wide(x: Tensor, weight: Tensor) -> Tensor:
    """An empty map of as many channels as the weight has columns."""
    shape = (x.shape[0], weight.shape[1], *x.shape[2:])
    return torch.empty(shape, dtype=weight.dtype, device=x.device, memory_format=torch.channels_last)


def _block(out: Tensor, shared: int) -> int:
    """Pixels a program of the way back takes at once: a power of two, at most 128, whose maps fit in shared memory.

    On their way are the map, its gradient and the patches; a product keeps one more map there.
    """
    pixel = (2 * STAGES - 1) * out.shape[1] * out.element_size() + STAGES * PATCH.value * 4
    return min(128, 1 << (shared // pixel).bit_length() - 1)


def _shared(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", 1 << 16)


def _patch_sums(out: Tensor) -> Tensor:
    return torch.empty((PROGRAMS, PATCH.value, out.shape[1]), dtype=torch.float32, device=out.device)


@torch.library.custom_op("paper::first", mutates_args=())
def first(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve, add a bias, rectify; weight: a row for each cell of a patch."""
    (n, _, height, width), out, block = x.shape, _wide(x, weight), 64
    pixels = n * height * width
    launch = _on(_first, triton.cdiv(pixels, block))
    launch(_last(x), weight.contiguous(), out, pixels, height, width, C=weight.shape[1], BLOCK=block)
    return out


@torch.library.custom_op("paper::first_back", mutates_args=())
def first_back(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Gradient of its weight, in shares."""
    (n, c, height, width), total, block = out.shape, _patch_sums(out), _block(out, _shared(out.device))
    pixels = n * height * width
    sizes = {"C": c, "BLOCK": block, "STEPS": triton.cdiv(pixels, block * PROGRAMS)}
    launch = _on(_first_back, PROGRAMS)
    launch(_last(grad), _last(x), _last(out), total, pixels, height, width, **sizes, num_stages=STAGES)
    return total


first.register_fake(_wide)
first_back.register_fake(lambda grad, x, out: _patch_sums(out))
