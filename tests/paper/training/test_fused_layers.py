"""The fused layers' values, on a GPU, or in Triton's interpreter where `test_convolution` asks for it."""

import copy
import os

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the kernels are written in Triton")
from paper.training.kernels.convolution import use_fast_kernels  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # of the compiler, about the machine
    pytest.mark.xdist_group("gpu"),
]


@pytest.fixture
def float32_products():
    """No TF32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


BLOCKS = {
    "bias": lambda: [nn.Conv2d(3, 320, 3, padding=1), nn.ReLU()],
    "images": lambda: [nn.Conv2d(3, 128, 3, padding=1), nn.ReLU()],
    "few outputs": lambda: [nn.Conv2d(64, 10, 1), nn.ReLU()],
    "stride": lambda: [nn.Conv2d(8, 64, 3, (2, 1), (1, 0)), nn.ReLU()],
    "norm": lambda: [nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)],
    "norm without bias": lambda: [
        nn.Conv2d(8, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ],
}  # fmt: skip


MAPS = {"even": (4, 8, 8), "odd": (3, 7, 5), "small": (1, 3, 3), **({} if INTERPRETED else {"compiled": (64, 32, 32)})}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("size", MAPS)
@pytest.mark.usefixtures("float32_products")
def test_fused_layers_are_the_layers(name, size):
    """Outputs, gradients, running statistics, in training and after it."""
    torch.manual_seed(0)
    plain = nn.Sequential(*BLOCKS[name]()).to(DEVICE)
    for layer in plain:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, -1, 1)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
    own = copy.deepcopy(plain)
    fast = use_fast_kernels(own)
    assert len(fast) == 1
    fast = torch.compile(fast, dynamic=False) if size == "compiled" else fast
    n, height, width = MAPS[size]
    x = torch.randn(n, plain[0].in_channels, height, width, device=DEVICE).contiguous(memory_format=torch.channels_last)
    found, expected = fast(x), plain(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    flipped = (found > 0) != (expected > 0)  # where a sum is zero but for rounding
    assert int(flipped.sum()) <= 10
    grad = torch.randn_like(expected) * ~flipped
    found.backward(grad)
    expected.backward(grad)
    names = [k for k, _ in plain.named_parameters() if not (k == "0.bias" and len(plain) == 4)]
    for key in names:
        mine, other = own.get_parameter(key).grad, plain.get_parameter(key).grad
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()), msg=key)
    for key, buffer in plain.named_buffers():
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(own.get_buffer(key), buffer, rtol=1e-4, atol=1e-5, msg=key)
    for net in (own, plain, fast):
        net.eval()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-4)


def test_fused_layers_let_nan_through():
    torch.manual_seed(0)
    net = use_fast_kernels(nn.Sequential(*BLOCKS["norm"]()).to(DEVICE))
    x = torch.randn(2, 8, 6, 6, device=DEVICE)
    x[0, 0, 3, 3] = float("nan")
    assert net(x).isnan().all()
    assert net.eval()(x).isnan().any()
