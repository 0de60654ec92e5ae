"""Layers of the convolutional network that are faster on a GPU than torch's own, with the same values and parameters.

What stands between the convolutions is in `maps`. The first convolution, on 3 channels, would miss the tensor cores, so
channels of zeros are added.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

from paper.train.maps import TILE, bias_relu, norm_pool, norm_pool_eval

CHANNELS = 8  # tensor cores take channels by eight


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution without its bias, channels last; few channels are filled up with zeros."""
    weight = layer.weight
    if layer.in_channels < CHANNELS:
        more = (0, 0, 0, 0, 0, CHANNELS - layer.in_channels)
        x, weight = functional.pad(x, more), functional.pad(weight, more)
    x = x.contiguous(memory_format=torch.channels_last)
    y = functional.conv2d(x, weight, None, layer.stride, layer.padding)
    return y.contiguous(memory_format=torch.channels_last)


class Rectified(nn.Module):
    """A convolution with bias, and ReLU."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and rectify."""
        return bias_relu(_convolve(self.layer, x), self.layer.bias)  # type: ignore[arg-type]


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
        norm, y = self.norm, _convolve(self.layer, x)
        mean: Tensor = norm.running_mean  # type: ignore[assignment]
        var: Tensor = norm.running_var  # type: ignore[assignment]
        momentum: float = norm.momentum  # type: ignore[assignment]
        bias = self.layer.bias
        if not norm.training:
            mean = mean if bias is None else mean - bias
            return norm_pool_eval(y, mean, norm.weight * torch.rsqrt(var + norm.eps), norm.bias)
        out, _, _, batch_mean, batch_var = norm_pool(y, norm.weight, norm.bias, norm.eps)
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
    return isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"


def _rectified(layers: list[nn.Module]) -> nn.Module | None:
    conv, relu = (*layers, None, None)[:2]
    if not isinstance(conv, nn.Conv2d) or not isinstance(relu, nn.ReLU) or not _plain(conv) or conv.bias is None:
        return None
    return Rectified(conv) if conv.out_channels % TILE == 0 else None


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
