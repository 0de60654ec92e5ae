"""Fused layers where there is no GPU: what they replace, their values in the interpreter, and that they compile."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from paper import models

triton = pytest.importorskip("triton", reason="the kernels are written in Triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from paper.training.kernels import convolution  # noqa: E402
from tests.paper.training import test_fused_layers  # noqa: E402


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


@pytest.mark.slow
def test_values_in_the_interpreter():
    """In a process of its own: a kernel is made for the interpreter or for a GPU when it is defined."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test_fused_layers.__file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


MAPS = {"x": "*bf16", "out": "*bf16", "grad": "*bf16", "maximum": "*bf16", "result": "*bf16", "argmax": "*i8"}
NUMBERS = ("pixels", "inputs", "height", "width", "rows", "columns", "channels", "units")
COMPILED = {
    "channel sums": (convolution._channel_sums_kernel, MAPS, {"C": 128, "BLOCK": 32, "STEPS": 4}),
    "pool": (convolution._pool_kernel, MAPS, {"C": 128, "BLOCK": 16, "TRAIN": True}),
    "pool of one": (convolution._pool_kernel, MAPS, {"C": 256, "BLOCK": 1, "TRAIN": False}),
    "pool backward sums": (convolution._pool_sums_kernel, MAPS, {"C": 128, "BLOCK": 32, "STEPS": 2}),
    "pool backward": (convolution._pool_backward_kernel, MAPS, {"C": 128, "BLOCK": 8}),
    "relu backward": (convolution._relu_backward_kernel, MAPS, {"TILE": 64, "BLOCK": 64, "STEPS": 2}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_a_gpu(name):
    """For a Hopper GPU, without one: what the interpreter lets pass may not compile."""
    kernel, types, constants = COMPILED[name]
    kinds = {**dict.fromkeys(kernel.arg_names, "*fp32"), **dict.fromkeys(NUMBERS, "i32"), **types}
    signature = {a: "constexpr" if a in constants else kinds[a] for a in kernel.arg_names}
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = ASTSource(kernel, signature, values)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
