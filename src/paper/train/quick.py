"""Layers of the convolutional network that are faster on a GPU than torch's own, with the same values and parameters.

What stands between the convolutions is in `maps`, the first convolution in `first`. The last one, to 10 channels, would
miss the fast ways of the tensor cores, so channels of zeros are added; likewise to few channels of an input.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

from paper.train import first, maps
from paper.train.maps import TILE

CHANNELS = 8  # tensor cores take channels by eight


class NormPool(torch.autograd.Function):
    """BatchNorm by the batch's statistics, ReLU, max-pool; gives the mean and the variance too."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps):  # type: ignore[no-untyped-def, override]
        """Normalise, rectify, pool."""
        total, square = maps.sums(x)
        pixels = x.numel() // x.shape[1]
        mean = total.sum(0) / pixels
        var = (square.sum(0) / pixels - mean * mean).clamp_min(0.0)
        rstd = torch.rsqrt(var + eps)
        out, place, chosen = maps.pool(x, mean, gamma * rstd, beta)
        ctx.save_for_backward(x, place, chosen, mean, rstd, gamma, beta)
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx, grad, _mean, _var):  # type: ignore[no-untyped-def, override]
        """Gradients of x, gamma and beta."""
        x, place, chosen, *held = ctx.saved_tensors
        totals, products = maps.pool_sums(grad, chosen, *held)
        total, product = totals.sum(0), products.sum(0)
        return maps.pool_back(grad, place, x, *held, total, product), product, total, None


class ConvRelu(torch.autograd.Function):
    """A convolution with bias, and ReLU."""

    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding):  # type: ignore[no-untyped-def, override]
        """Convolve, add, rectify."""
        out = maps.conv_relu(x, weight, bias.to(x.dtype), stride, padding)
        ctx.save_for_backward(x, weight, out)
        ctx.shape = stride, padding
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        """Gradients of x, the weight and the bias."""
        (x, weight, out), (stride, padding) = ctx.saved_tensors, ctx.shape
        result, total = maps.relu_back(grad, out)
        wanted = [ctx.needs_input_grad[0], True, False]
        way = (None, stride, padding, [1, 1], False, [0, 0], 1, wanted)
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(result, x, weight, *way)
        return of_x, of_weight, total.sum(0), None, None


class FirstRelu(torch.autograd.Function):
    """A 3x3 convolution of images of 3 channels, with bias, and ReLU; no gradient of the images."""

    @staticmethod
    def forward(ctx, x, weight, bias, dtype):  # type: ignore[no-untyped-def, override]
        """Convolve, add, rectify."""
        rows = torch.cat([weight.permute(2, 3, 1, 0).reshape(first.CELLS.value, -1), bias[None]]).to(dtype)
        out = first.first(x, functional.pad(rows, (0, 0, 0, first.PATCH.value - len(rows))))
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        """Gradients of the weight and the bias."""
        total = first.first_back(grad, *ctx.saved_tensors).sum(0)
        of_weight, of_bias = total[: first.CELLS.value], total[first.CELLS.value]
        return None, of_weight.view(3, 3, 3, -1).permute(3, 2, 0, 1), of_bias, None


def _operands(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Input, channels last, and weight of a convolution; few input channels are filled up with zeros."""
    weight = layer.weight
    if layer.in_channels < CHANNELS:
        more = (0, 0, 0, 0, 0, CHANNELS - layer.in_channels)
        x, weight = functional.pad(x, more), functional.pad(weight, more)
    return x.contiguous(memory_format=torch.channels_last), weight


class Rectified(nn.Module):
    """A convolution with bias, and ReLU; few outputs are computed among others of zeros."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        shape = layer.kernel_size, layer.stride, layer.padding, layer.in_channels
        self.first = shape == ((3, 3), (1, 1), (1, 1), 3) and layer.out_channels in first.CHANNELS

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and rectify."""
        layer, cast = self.layer, torch.is_autocast_enabled(x.device.type)
        bias: Tensor = layer.bias  # type: ignore[assignment]
        if self.first and not x.requires_grad:
            dtype = torch.get_autocast_dtype(x.device.type) if cast else x.dtype
            return FirstRelu.apply(x, layer.weight, bias, dtype)  # type: ignore[no-any-return]
        x, weight = _operands(layer, x)
        more = -layer.out_channels % TILE
        if more:
            weight, bias = functional.pad(weight, (0, 0, 0, 0, 0, 0, 0, more)), functional.pad(bias, (0, more))
        if cast:
            x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
        out = ConvRelu.apply(x, weight, bias, list(layer.stride), list(layer.padding))
        return out[:, : layer.out_channels] if more else out  # type: ignore[no-any-return, index]


class Pooled(nn.Module):
    """A convolution, BatchNorm, ReLU, and max-pool of 3x3 cells with stride 2 and padding 1.

    The convolution's bias, which BatchNorm takes away, enters the running mean alone. Its gradient is zero, so it keeps
    its value, as it does but for rounding in the plain network.
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
            return maps.pool_eval(y.detach(), mean.detach(), scale.detach(), norm.bias.detach())  # no way back
        out, batch_mean, batch_var = NormPool.apply(y, norm.weight, norm.bias, norm.eps)  # type: ignore[misc]
        with torch.no_grad():
            pixels = y.numel() // y.shape[1]
            mean.lerp_(batch_mean if bias is None else batch_mean + bias, momentum)
            var.lerp_(batch_var * (pixels / (pixels - 1)), momentum)
        return out


def quicken(module: nn.Module) -> nn.Module:
    """The same network with faster layers where there are some; it shares all parameters and buffers.

    It suits optimisers for which a gradient of zero, or none, means no step.
    """
    if not isinstance(module, nn.Sequential):
        return module
    left, layers = list(module), []
    while left:
        known = [_pooled(left[:4]), _rectified(left[:2])]
        size, layer = next(((n, one) for n, one in zip((4, 2), known, strict=True) if one), (1, left[0]))
        layers.append(layer)
        left = left[size:]
    return nn.Sequential(*layers)


def _plain(layer: nn.Module) -> bool:
    """Whether it is a convolution that only has a stride and some rows and columns of zeros around its input."""
    known = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
    return known and layer.dilation == (1, 1) and not isinstance(layer.padding, str)


def _rectified(layers: list[nn.Module]) -> nn.Module | None:
    conv, relu = (*layers, None, None)[:2]
    if not isinstance(conv, nn.Conv2d) or not isinstance(relu, nn.ReLU) or not _plain(conv) or conv.bias is None:
        return None
    return Rectified(conv) if conv.out_channels % TILE == 0 or conv.out_channels < 2 * CHANNELS else None


def _pooled(layers: list[nn.Module]) -> nn.Module | None:
    conv, norm, relu, pool = (*layers, None, None, None, None)[:4]
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d) or not _plain(conv):
        return None
    usual = norm.affine and norm.track_running_stats and norm.momentum is not None
    if not isinstance(relu, nn.ReLU) or not isinstance(pool, nn.MaxPool2d) or not _is_ours(pool) or not usual:
        return None
    return Pooled(conv, norm) if conv.out_channels & (conv.out_channels - 1) == 0 else None


def _is_ours(pool: nn.MaxPool2d) -> bool:
    shape = _pair(pool.kernel_size), _pair(pool.stride), _pair(pool.padding), _pair(pool.dilation)
    return shape == ((3, 3), (2, 2), (1, 1), (1, 1)) and not pool.ceil_mode
