"""Conv nets on a GPU: fused layers with the same values and parameters as torch's own, channels last.

On an H200 (torch 2.11 compiled, bfloat16, batch 128, maps of 32x32 with 128 channels, read in 8 us) a third of a step
was not convolution: BatchNorm statistics 70 us, its backward pass 46 us, that of max-pool 160 us, bias gradients 26 us.
Here BatchNorm, ReLU and max-pool are one operation, whose backward pass starts from the pooled map. Convolution, bias
and ReLU are one call to cuDNN. Few channels are padded with zeros, so that tensor cores can be used.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

TILE = 64  # channels of one program
ENTRIES = 4096  # entries of a map in one program at a time
PROGRAMS = 512  # programs of a sum over a map
CHANNELS = 8  # tensor cores need multiples of eight channels


@triton.jit
def _channel_sums_kernel(x, total, square, pixels, C: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr):
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
def _pool_kernel(
    x, mean, scale, beta, out, argmax, maximum, pixels, height, width, rows, columns,
    C: tl.constexpr, BLOCK: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    # Output pixels: the largest of a 3x3 window around (2i, 2j), normalised, then ReLU; its position in the
    # window, and its input. Inputs are compared before they are normalised, with the sign of the scale.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_range = pixel < pixels
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
        inside = (in_range & (h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        at = ((n * height + h) * width + w)[:, None] * C + channel
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * sign
        value = tl.where(inside, value, float("-inf"))
        where = tl.where(value > best, cell, where)
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    best *= sign
    at = pixel[:, None] * C + channel
    value = (best - tl.load(mean + channel)) * s + tl.load(beta + channel)
    tl.store(out + at, tl.where(value < 0.0, 0.0, value).to(out.dtype.element_ty), mask=in_range[:, None])
    if TRAIN:
        tl.store(argmax + at, where.to(tl.int8), mask=in_range[:, None])
        tl.store(maximum + at, best.to(maximum.dtype.element_ty), mask=in_range[:, None])


@triton.jit
def _pool_sums_kernel(
    grad, maximum, mean, rstd, gamma, beta, total, product, pixels,
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
        in_range = pixel[:, None] < pixels
        at = pixel[:, None] * C + channel
        raw = tl.load(maximum + at, mask=in_range, other=0.0).to(tl.float32) - m
        value = tl.load(grad + at, mask=in_range, other=0.0).to(tl.float32)
        value = tl.where(raw * s + b > 0.0, value, 0.0)
        first += value
        second += value * raw * r
    at = tl.program_id(0) * C + tl.arange(0, C)
    tl.store(total + at, tl.sum(first, 0))
    tl.store(product + at, tl.sum(second, 0))


@triton.jit
def _windows(grad, argmax, pixel, mask, channel, C: tl.constexpr):
    at = pixel[:, None] * C + channel
    cell = tl.load(argmax + at, mask=mask[:, None], other=-1).to(tl.int32)
    return cell, tl.load(grad + at, mask=mask[:, None], other=0.0).to(tl.float32)


@triton.jit
def _pool_backward_kernel(
    grad, argmax, x, mean, rstd, gamma, beta, total, product, result, pixels, inputs, height, width, rows, columns,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Four input pixels for each output pixel (i, j), from (2i, 2j) on. Each sums the gradients of the windows whose
    # maximum it is: (i, j), to the right, below, and both; then follows the backward pass of BatchNorm.
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_range = pixel < pixels
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
    right = in_range & (j + 1 < columns)
    down = in_range & (i + 1 < rows)
    cell, own = _windows(grad, argmax, pixel, in_range, channel, C)
    cell_right, of_right = _windows(grad, argmax, pixel + 1, right, channel, C)
    cell_down, of_down = _windows(grad, argmax, pixel + columns, down, channel, C)
    cell_both, of_both = _windows(grad, argmax, pixel + columns + 1, right & down, channel, C)
    for a in tl.static_range(2):
        for c in tl.static_range(2):
            value = tl.where(cell == 4 + 3 * a + c, own, 0.0)
            if c == 1:
                value += tl.where(cell_right == 3 + 3 * a, of_right, 0.0)
            if a == 1:
                value += tl.where(cell_down == 1 + c, of_down, 0.0)
            if a + c == 2:
                value += tl.where(cell_both == 0, of_both, 0.0)
            known = (in_range & (2 * i + a < height) & (2 * j + c < width))[:, None]
            at = ((n * height + 2 * i + a) * width + 2 * j + c)[:, None] * C + channel
            raw = tl.load(x + at, mask=known, other=0.0).to(tl.float32) - m
            back = s * tl.where(raw * s + b > 0.0, value, 0.0) - (level + raw * slope)
            tl.store(result + at, back.to(result.dtype.element_ty), mask=known)


@triton.jit
def _relu_backward_kernel(
    grad, out, result, total, pixels, channels, TILE: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr
):
    # The gradient where the ReLU lets it pass, and its sum over the pixels of one program.
    channel = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    first = tl.zeros((BLOCK, TILE), tl.float32)
    for step in range(STEPS):
        pixel = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        in_range = pixel[:, None] < pixels
        at = pixel[:, None] * channels + channel
        passed = tl.load(out + at, mask=in_range, other=0.0).to(tl.float32) > 0.0
        value = tl.where(passed, tl.load(grad + at, mask=in_range, other=0.0).to(tl.float32), 0.0)
        tl.store(result + at, value.to(result.dtype.element_ty), mask=in_range)
        first += value
    tl.store(total + tl.program_id(0) * channels + tl.program_id(1) * TILE + tl.arange(0, TILE), tl.sum(first, 0))


def _empty_map(x: Tensor, height: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty map with the channels of another, channels last."""
    shape = (*x.shape[:2], height, width)
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


def _pooled_sizes(x: Tensor) -> tuple[int, int, int, int, int]:
    """Pixels of the pooled map, height and width of the map, height and width of the pooled map."""
    n, _, height, width = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    return n * rows * columns, height, width, rows, columns


def _partition(x: Tensor, channels: int) -> tuple[int, int, int, int]:
    """Pixels of a map, pixels of one program at a time, number of programs, and steps of each program."""
    pixels, block = x.numel() // x.shape[1], max(1, ENTRIES // channels)
    blocks = triton.cdiv(pixels, block)
    steps = max(1, blocks // PROGRAMS)
    return pixels, block, triton.cdiv(blocks, steps), steps


def _empty_partials(x: Tensor, channels: int) -> Tensor:
    return torch.empty((_partition(x, channels)[2], x.shape[1]), dtype=torch.float32, device=x.device)


def _launcher(kernel: Any, *grid: int) -> Any:
    return kernel[grid]


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


# Custom operators: compiled code would fill their outputs with zeros before the kernels write them.


@torch.library.custom_op("paper::channel_sums", mutates_args=())
def channel_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of each channel, one row of partial sums per program."""
    x, c = _channels_last(x), x.shape[1]
    (pixels, block, programs, steps), total, square = _partition(x, c), _empty_partials(x, c), _empty_partials(x, c)
    _launcher(_channel_sums_kernel, programs)(x, total, square, pixels, C=c, BLOCK=block, STEPS=steps)
    return total, square


@torch.library.custom_op("paper::pool", mutates_args=())
def pool(x: Tensor, mean: Tensor, scale: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) scale + beta, ReLU, max-pool; also the position of each maximum in its window, and its input."""
    x, c, sizes = _channels_last(x), x.shape[1], _pooled_sizes(x)
    out, maximum, argmax = (_empty_map(x, *sizes[3:], dtype) for dtype in (None, None, torch.int8))
    block = max(1, ENTRIES // 2 // c)
    launch = _launcher(_pool_kernel, triton.cdiv(sizes[0], block))
    launch(x, mean, scale, beta, out, argmax, maximum, *sizes, C=c, BLOCK=block, TRAIN=True, num_warps=8)
    return out, argmax, maximum


@torch.library.custom_op("paper::pool_eval", mutates_args=())
def pool_eval(x: Tensor, mean: Tensor, scale: Tensor, beta: Tensor) -> Tensor:
    """The pooled map of `pool` alone."""
    x, c, sizes = _channels_last(x), x.shape[1], _pooled_sizes(x)
    out, block = _empty_map(x, *sizes[3:]), max(1, ENTRIES // 2 // c)
    launch = _launcher(_pool_kernel, triton.cdiv(sizes[0], block))
    launch(x, mean, scale, beta, out, out, out, *sizes, C=c, BLOCK=block, TRAIN=False, num_warps=8)
    return out


@torch.library.custom_op("paper::pool_backward_sums", mutates_args=())
def pool_backward_sums(
    grad: Tensor, maximum: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Per channel, partial sums of the gradients after the ReLU, and of their products with the normalised values."""
    grad, c = _channels_last(grad), grad.shape[1]
    pixels, block, programs, steps = _partition(grad, c)
    total, product = _empty_partials(grad, c), _empty_partials(grad, c)
    launch = _launcher(_pool_sums_kernel, programs)
    launch(
        grad, _channels_last(maximum), mean, rstd, gamma, beta, total, product, pixels, C=c, BLOCK=block, STEPS=steps
    )
    return total, product


@torch.library.custom_op("paper::pool_backward", mutates_args=())
def pool_backward(
    grad: Tensor, argmax: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, beta: Tensor, total: Tensor,
    product: Tensor,
) -> Tensor:  # fmt: skip
    """From the gradient of the pooled map to that of x, given both sums."""
    (n, c, height, width), (pixels, *sizes) = x.shape, _pooled_sizes(x)
    result, block = _empty_map(x, height, width), max(1, ENTRIES // 4 // c)
    launch = _launcher(_pool_backward_kernel, triton.cdiv(pixels, block))
    maps = [_channels_last(t) for t in (grad, argmax, x)]
    per_channel = (mean, rstd, gamma, beta, total, product)
    launch(*maps, *per_channel, result, pixels, n * height * width, *sizes, C=c, BLOCK=block)
    return result


@torch.library.custom_op("paper::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """A convolution with bias, and ReLU, in one call to cuDNN."""
    if not x.is_cuda:
        return _channels_last(torch.conv2d(x, weight, bias, stride, padding).relu_())
    x, weight = _channels_last(x), _channels_last(weight)
    return _channels_last(torch.ops.aten.cudnn_convolution_relu(x, weight, bias, stride, padding, [1, 1], 1))


@torch.library.custom_op("paper::relu_backward", mutates_args=())
def relu_backward(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient after the ReLU, and its partial sums per channel."""
    grad, (_, c, height, width) = _channels_last(grad), out.shape
    result, total = _empty_map(out, height, width), _empty_partials(out, TILE)
    pixels, block, programs, steps = _partition(out, TILE)
    launch = _launcher(_relu_backward_kernel, programs, c // TILE)
    launch(grad, _channels_last(out), result, total, pixels, c, TILE=TILE, BLOCK=block, STEPS=steps)
    return result, total


channel_sums.register_fake(lambda x: (_empty_partials(x, x.shape[1]), _empty_partials(x, x.shape[1])))
pool.register_fake(
    lambda x, *_: tuple(_empty_map(x, *_pooled_sizes(x)[3:], dtype) for dtype in (None, torch.int8, None))
)
pool_eval.register_fake(lambda x, *_: _empty_map(x, *_pooled_sizes(x)[3:]))
pool_backward_sums.register_fake(
    lambda grad, *_: (_empty_partials(grad, grad.shape[1]), _empty_partials(grad, grad.shape[1]))
)
pool_backward.register_fake(lambda grad, argmax, x, *_: _empty_map(x, *x.shape[2:]))
conv_relu.register_fake(lambda x, *others: _channels_last(torch.conv2d(x, *others)))
relu_backward.register_fake(lambda grad, out: (_empty_map(out, *out.shape[2:]), _empty_partials(out, TILE)))


class NormReluPoolFunction(torch.autograd.Function):
    """BatchNorm in training mode, ReLU, max-pool; also returns the batch mean and variance."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps):  # type: ignore[no-untyped-def, override]
        """Normalise, rectify, pool."""
        total, square = channel_sums(x)
        pixels = x.numel() // x.shape[1]
        mean = total.sum(0) / pixels
        var = (square.sum(0) / pixels - mean * mean).clamp_min(0.0)
        rstd = torch.rsqrt(var + eps)
        out, argmax, maximum = pool(x, mean, gamma * rstd, beta)
        ctx.save_for_backward(x, argmax, maximum, mean, rstd, gamma, beta)
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx, grad, _mean, _var):  # type: ignore[no-untyped-def, override]
        """Gradients of x, gamma and beta."""
        x, argmax, maximum, *statistics = ctx.saved_tensors
        totals, products = pool_backward_sums(grad, maximum, *statistics)
        total, product = totals.sum(0), products.sum(0)
        return pool_backward(grad, argmax, x, *statistics, total, product), product, total, None


class ConvReluFunction(torch.autograd.Function):
    """A convolution with bias, and ReLU."""

    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding):  # type: ignore[no-untyped-def, override]
        """Convolve, add, rectify."""
        out = conv_relu(x, weight, bias.to(x.dtype), stride, padding)
        ctx.save_for_backward(x, weight, out)
        ctx.shape = stride, padding
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        """Gradients of x, the weight and the bias."""
        (x, weight, out), (stride, padding) = ctx.saved_tensors, ctx.shape
        result, total = relu_backward(grad, out)
        wanted = [ctx.needs_input_grad[0], True, False]
        settings = (None, stride, padding, [1, 1], False, [0, 0], 1, wanted)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(result, x, weight, *settings)
        return grad_x, grad_weight, total.sum(0), None, None


def _operands(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Input, channels last, and weight of a convolution; few input channels are padded with zeros."""
    weight = layer.weight
    if layer.in_channels < CHANNELS:
        padding = (0, 0, 0, 0, 0, CHANNELS - layer.in_channels)
        x, weight = functional.pad(x, padding), functional.pad(weight, padding)
    return x.contiguous(memory_format=torch.channels_last), weight


class ConvRelu(nn.Module):
    """A convolution with bias, and ReLU; output channels are padded to a multiple of 64."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and rectify."""
        layer, cast = self.layer, torch.is_autocast_enabled(x.device.type)
        bias: Tensor = layer.bias  # type: ignore[assignment]
        x, weight = _operands(layer, x)
        extra = -layer.out_channels % TILE
        if extra:
            weight, bias = functional.pad(weight, (0, 0, 0, 0, 0, 0, 0, extra)), functional.pad(bias, (0, extra))
        if cast:
            x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
        out = ConvReluFunction.apply(x, weight, bias, list(layer.stride), list(layer.padding))
        return out[:, : layer.out_channels] if extra else out  # type: ignore[no-any-return, index]


class ConvNormReluPool(nn.Module):
    """A convolution, BatchNorm, ReLU, and 3x3 max-pool with stride 2 and padding 1.

    BatchNorm removes the convolution's bias, so the bias enters the running mean alone and gets no gradient. In the
    plain network its gradient is zero up to rounding.
    """

    def __init__(self, layer: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, normalise, rectify and pool."""
        norm, (x, weight) = self.norm, _operands(self.layer, x)
        y = functional.conv2d(x, weight, None, self.layer.stride, self.layer.padding)
        y = y.contiguous(memory_format=torch.channels_last)
        mean: Tensor = norm.running_mean  # type: ignore[assignment]
        var: Tensor = norm.running_var  # type: ignore[assignment]
        momentum: float = norm.momentum  # type: ignore[assignment]
        bias = self.layer.bias
        if not norm.training:
            mean = mean if bias is None else mean - bias
            scale = norm.weight * torch.rsqrt(var + norm.eps)
            return pool_eval(y.detach(), mean.detach(), scale.detach(), norm.bias.detach())  # without backward pass
        out, batch_mean, batch_var = NormReluPoolFunction.apply(y, norm.weight, norm.bias, norm.eps)  # type: ignore[misc]
        with torch.no_grad():
            pixels = y.numel() // y.shape[1]
            mean.lerp_(batch_mean if bias is None else batch_mean + bias, momentum)
            var.lerp_(batch_var * (pixels / (pixels - 1)), momentum)
        return out


def use_fast_kernels(module: nn.Module) -> nn.Module:
    """The same network with fused layers where there are some; parameters and buffers are shared.

    For optimisers that treat a missing gradient like a zero gradient.
    """
    if not isinstance(module, nn.Sequential):
        return module
    rest, layers = list(module), []
    while rest:
        fused = [_conv_norm_relu_pool(rest[:4]), _conv_relu(rest[:2])]
        size, layer = next(((n, one) for n, one in zip((4, 2), fused, strict=True) if one), (1, rest[0]))
        layers.append(layer)
        rest = rest[size:]
    return nn.Sequential(*layers)


def _is_supported_convolution(layer: nn.Module) -> bool:
    """Whether a layer is a convolution with at most a stride and zero padding."""
    plain = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
    return plain and layer.dilation == (1, 1) and not isinstance(layer.padding, str)


def _conv_relu(layers: list[nn.Module]) -> nn.Module | None:
    conv, relu = (*layers, None, None)[:2]
    if (
        not isinstance(conv, nn.Conv2d)
        or not isinstance(relu, nn.ReLU)
        or not _is_supported_convolution(conv)
        or conv.bias is None
    ):
        return None
    return ConvRelu(conv) if conv.out_channels % TILE == 0 or conv.out_channels < 2 * CHANNELS else None


def _conv_norm_relu_pool(layers: list[nn.Module]) -> nn.Module | None:
    conv, norm, relu, pool = (*layers, None, None, None, None)[:4]
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d) or not _is_supported_convolution(conv):
        return None
    usual = norm.affine and norm.track_running_stats and norm.momentum is not None
    if not isinstance(relu, nn.ReLU) or not isinstance(pool, nn.MaxPool2d) or not _is_supported_pool(pool) or not usual:
        return None
    return ConvNormReluPool(conv, norm) if conv.out_channels & (conv.out_channels - 1) == 0 else None


def _is_supported_pool(pool: nn.MaxPool2d) -> bool:
    shape = _pair(pool.kernel_size), _pair(pool.stride), _pair(pool.padding), _pair(pool.dilation)
    return shape == ((3, 3), (2, 2), (1, 1), (1, 1)) and not pool.ceil_mode
