"""Layers of the convolutional network that are faster on a GPU than torch's own, with the same values and parameters.

Measured on an H200 (torch 2.11, bfloat16, channels last, batch 128): max-pool 3/2 backward on 128 channels of 32x32
takes 160 us as compiled by default, and the first convolution, on 3 channels, misses the tensor cores.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

CHANNELS = 8  # tensor cores take channels by eight


@triton.jit
def _pool_forward(x, out, place, pixels, height, width, rows, columns, C: tl.constexpr, BLOCK: tl.constexpr):
    # Output pixels: the largest of a 3x3 window around (2i, 2j), and which of its nine cells it was.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    j = pixel % columns
    i = (pixel // columns) % rows
    n = pixel // (columns * rows)
    channel = tl.arange(0, C)[None, :]
    best = tl.full((BLOCK, C), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK, C), tl.int32)
    for cell in tl.static_range(9):
        h = 2 * i - 1 + cell // 3
        w = 2 * j - 1 + cell % 3
        inside = there & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        at = ((n * height + h) * width + w)[:, None] * C + channel
        value = tl.load(x + at, mask=inside[:, None], other=float("-inf")).to(tl.float32)
        larger = (value > best) | (value != value)
        best = tl.where(larger, value, best)
        where = tl.where(larger, cell, where)
    at = pixel[:, None] * C + channel
    tl.store(out + at, best.to(out.dtype.element_ty), mask=there[:, None])
    tl.store(place + at, where.to(tl.int8), mask=there[:, None])


@triton.jit
def _pool_backward(grad, place, result, pixels, height, width, rows, columns, C: tl.constexpr, BLOCK: tl.constexpr):
    # Input pixels: the gradients of the windows, at most four, whose largest cell each is.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    w = pixel % width
    h = (pixel // width) % height
    n = pixel // (width * height)
    channel = tl.arange(0, C)[None, :]
    total = tl.zeros((BLOCK, C), tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            i = h // 2 + a
            j = w // 2 + b
            down = h - (2 * i - 1)
            right = w - (2 * j - 1)
            inside = there & (i < rows) & (j < columns) & (down >= 0) & (right >= 0)
            at = ((n * rows + i) * columns + j)[:, None] * C + channel
            found = tl.load(place + at, mask=inside[:, None], other=-1).to(tl.int32)
            value = tl.load(grad + at, mask=inside[:, None], other=0.0).to(tl.float32)
            total += tl.where(found == (down * 3 + right)[:, None], value, 0.0)
    tl.store(result + pixel[:, None] * C + channel, total.to(result.dtype.element_ty), mask=there[:, None])


@torch.library.triton_op("paper::pool", mutates_args=())
def _pool(x: Tensor) -> tuple[Tensor, Tensor]:
    n, c, height, width = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    out = torch.empty((n, c, rows, columns), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    place = torch.empty_like(out, dtype=torch.int8, memory_format=torch.channels_last)
    pixels, block = n * rows * columns, max(1, 2048 // c)
    launch = torch.library.wrap_triton(_pool_forward)[(triton.cdiv(pixels, block),)]
    launch(x, out, place, pixels, height, width, rows, columns, C=c, BLOCK=block)
    return out, place


@torch.library.triton_op("paper::pool_back", mutates_args=())
def _pool_back(grad: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    n, c, rows, columns = grad.shape
    result = torch.empty((n, c, height, width), dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
    grad = grad.contiguous(memory_format=torch.channels_last)
    pixels, block = n * height * width, max(1, 2048 // c)
    launch = torch.library.wrap_triton(_pool_backward)[(triton.cdiv(pixels, block),)]
    launch(grad, place, result, pixels, height, width, rows, columns, C=c, BLOCK=block)
    return result


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.size = inputs[0].shape[2:]  # type: ignore[attr-defined]
    ctx.mark_non_differentiable(output[1])


def _back(ctx: torch.autograd.function.FunctionCtx, grad: Tensor, _: Tensor) -> Tensor:
    (place,) = ctx.saved_tensors  # type: ignore[attr-defined]
    return _pool_back(grad, place, *ctx.size)  # type: ignore[attr-defined]


torch.library.register_autograd("paper::pool", _back, setup_context=_keep)


class Pool(nn.Module):
    """Max-pool of 3x3 cells with stride 2 and padding 1, channels last, for channel counts that are powers of two."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool."""
        return _pool(x.contiguous(memory_format=torch.channels_last))[0]


class Padded(nn.Module):
    """A convolution on few channels, with channels of zeros up to eight, and the parameters of the layer it wraps."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        layer, more = self.layer, (0, 0, 0, 0, 0, CHANNELS - x.shape[1])
        x, weight = functional.pad(x, more), functional.pad(layer.weight, more)
        x = x.contiguous(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, layer.bias, layer.stride, layer.padding)


class Normed(nn.Module):
    """A convolution and its BatchNorm; the convolution's bias, which the norm takes away, is left out in training.

    Its gradient is zero, so it keeps its value, as it does but for rounding in the plain network.
    """

    def __init__(self, layer: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and normalise."""
        norm = self.norm
        if not norm.training or self.layer.bias is None or norm.running_mean is None or norm.momentum is None:
            return norm(self.layer(x))
        with torch.no_grad():  # so that the running mean becomes that of what the plain layer gives
            norm.running_mean.add_(self.layer.bias, alpha=norm.momentum / (1 - norm.momentum))
        return norm(functional.conv2d(x, self.layer.weight, None, self.layer.stride, self.layer.padding))


def quicken(module: nn.Module, drop_biases: bool) -> nn.Module:
    """The same network with faster layers where there are some; it shares all parameters and buffers.

    Args:
        module: the network.
        drop_biases: leave out biases before BatchNorm in training; right where a zero gradient means no step.
    """
    if not isinstance(module, nn.Sequential):
        return module
    layers: list[nn.Module] = []
    channels = 0
    for layer in module:
        last = layers[-1] if layers else None
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
            few = layer.in_channels < CHANNELS and layer.groups == 1 and layer.padding_mode == "zeros"
            layers.append(Padded(layer) if few else layer)
        elif drop_biases and isinstance(layer, nn.BatchNorm2d) and isinstance(last, nn.Conv2d) and last.groups == 1:
            layers[-1] = Normed(last, layer)
        elif isinstance(layer, nn.MaxPool2d) and _is_ours(layer) and channels and channels & (channels - 1) == 0:
            layers.append(Pool())
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def _is_ours(pool: nn.MaxPool2d) -> bool:
    shape = _pair(pool.kernel_size), _pair(pool.stride), _pair(pool.padding), _pair(pool.dilation)
    return shape == ((3, 3), (2, 2), (1, 1), (1, 1)) and not pool.ceil_mode
