"""Fused layers for a GPU: which layers they replace, and the parts that a CPU can run."""

import copy

import pytest
import torch
from torch import nn

from paper import models

pytest.importorskip("triton", reason="the layers' kernels are written in Triton")
from paper.training.kernels import convolution  # noqa: E402


@pytest.mark.parametrize(
    ("channels", "size", "stride", "padding"), [(3, 3, 1, 1), (1, 1, 1, 0), (7, 3, 2, 0), (9, 3, 1, 1)]
)
def test_a_convolution_on_few_channels_is_the_convolution(channels, size, stride, padding):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 5, size, stride, padding, bias=False).double()
    twin = copy.deepcopy(layer)
    x = torch.randn(4, channels, 9, 8, dtype=torch.float64)
    found, expected = torch.conv2d(*convolution._operands(layer, x), None, stride, padding), twin(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=1e-12, atol=1e-12)


def test_only_what_is_known_is_replaced():
    def kinds(module):
        return [type(m).__name__ for m in convolution.use_fast_kernels(module)]

    net = models.make({"kind": "cifar_nv", "width": 0.5, "image": 8}, 0)  # 64, 128 and 160 channels
    fast = convolution.use_fast_kernels(net)
    assert {id(p) for p in fast.parameters()} == {id(p) for p in net.parameters()}
    assert kinds(net)[:6] == ["ConvRelu", "ConvRelu", "ConvNormReluPool"] * 2
    last = ["ConvRelu", "AdaptiveAvgPool2d", "Flatten"]
    assert kinds(net)[6:] == [*["Conv2d", "ReLU"] * 2, *last]  # 160 is no multiple of 64
    conv, norm = nn.Conv2d(8, 64, 1), nn.BatchNorm2d(64)
    for pool in (nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)):
        assert "ConvNormReluPool" not in kinds(nn.Sequential(conv, norm, nn.ReLU(), pool))
    ours = nn.MaxPool2d(3, 2, 1)
    for other in (nn.BatchNorm2d(64, affine=False), nn.BatchNorm2d(64, momentum=None), nn.Identity()):
        assert "ConvNormReluPool" not in kinds(nn.Sequential(conv, other, nn.ReLU(), ours))
    assert kinds(nn.Sequential(conv, norm, nn.GELU(), ours)) == ["Conv2d", "BatchNorm2d", "GELU", "MaxPool2d"]
    for other in ({"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding_mode": "reflect"}):
        assert kinds(nn.Sequential(nn.Conv2d(64, 64, 1, **other), nn.ReLU())) == ["Conv2d", "ReLU"]
