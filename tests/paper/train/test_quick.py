"""Faster layers for a GPU that a CPU can run too: the same numbers as the layers they stand for."""

import copy

import pytest
import torch
from torch import nn

from paper import models
from paper.train import layers
from tests.paper.train.plain import take_step

pytest.importorskip("triton", reason="the layers' kernels are written in Triton")
from paper.train import quick  # noqa: E402

# Twelve channels: not a power of two, so that the pools stay torch's, which a CPU can run.
TWELVE = {"kind": "cifar_nv", "width": 12 / 128, "image": 8}


def images(count, source):
    return torch.randn(count, 3, 8, 8, dtype=torch.float64, generator=source)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("channels", "size", "stride", "padding"), [(3, 3, 1, 1), (1, 1, 1, 0), (7, 3, 2, 0)])
def test_a_padded_convolution_is_the_convolution(channels, size, stride, padding, bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 5, size, stride, padding, bias=bias).double()
    padded, twin = quick.Padded(layer), copy.deepcopy(layer)
    x = torch.randn(4, channels, 9, 8, dtype=torch.float64)
    found, expected = padded(x), twin(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_a_quickened_network_shares_its_parameters_and_trains_the_same():
    """A bias before BatchNorm has no gradient; the running mean is still that of the plain layer."""
    source = torch.Generator().manual_seed(0)
    module = models.make(TWELVE, 0).double()
    twin = copy.deepcopy(module)
    fast = quick.quicken(module, drop_biases=True)
    assert {id(p) for p in fast.parameters()} == {id(p) for p in module.parameters()}
    assert sum(isinstance(m, quick.Normed) for m in fast.modules()) == 2
    assert isinstance(fast[0], quick.Padded)
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.1)) for m in (fast, twin)]
    for count in (8, 8, 5):
        x, labels = images(count, source), torch.randint(0, 10, (count,), generator=source)
        for net, optimiser in pairs:
            take_step(net, [optimiser], x, labels, "classify")
        for name, tensor in twin.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-9, atol=1e-9)
    x = images(6, source)
    torch.testing.assert_close(fast.eval()(x), twin.eval()(x), rtol=1e-9, atol=1e-9)


def test_only_what_is_known_is_replaced():
    def kinds(module, drop=True):
        return [type(m).__name__ for m in quick.quicken(module, drop)]

    assert kinds(models.make({**TWELVE, "width": 0.0625}, 0)).count("Pool") == 2
    assert kinds(models.make(TWELVE, 0)).count("MaxPool2d") == 2
    assert kinds(models.make(TWELVE, 0), drop=False).count("BatchNorm2d") == 2
    mlp = models.make({"kind": "mlp", "inputs": 4, "hidden": [3], "outputs": 2}, 0)
    assert kinds(mlp) == [type(m).__name__ for m in mlp]
    other = nn.Sequential(
        nn.Conv2d(8, 8, 1), nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)
    )
    assert kinds(other) == ["Conv2d", "MaxPool2d", "MaxPool2d", "MaxPool2d"]
    assert kinds(nn.Sequential(nn.MaxPool2d(3, 2, 1))) == ["MaxPool2d"]  # channels are not known
    assert kinds(nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.BatchNorm2d(2))) == ["Conv2d", "BatchNorm2d"]
    whole = models.BlockC(2, 2, 1)
    assert quick.quicken(whole, drop_biases=True) is whole


@pytest.mark.filterwarnings("default")  # of torch about itself
def test_every_shape_may_be_compiled():
    """Torch stops compiling a function after eight shapes, and only a warning says so."""
    assert layers.fused(layers.slope, torch.device("cpu")) is layers.slope
    assert layers.fused(layers.slope, torch.device("cuda")) is layers.fused(layers.slope, torch.device("cuda"))
    assert torch._dynamo.config.recompile_limit >= 100
    assert torch._dynamo.config.accumulated_recompile_limit >= 100
