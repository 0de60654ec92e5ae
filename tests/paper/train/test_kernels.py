"""The kernels' values, on a GPU, or in Triton's interpreter where `test_kernels_unrun` asks for it."""

import copy
import itertools
import os

import pytest
import torch
from torch import nn

from paper.train import layers

pytest.importorskip("triton", reason="the kernels are written in Triton")
from paper.train import stacked  # noqa: E402
from paper.train.quick import quicken  # noqa: E402

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
    "norm": lambda: [nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)],
    "norm without bias": lambda: [
        nn.Conv2d(8, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ],
}  # fmt: skip


MAPS = {"even": (4, 8, 8), "odd": (3, 7, 5), "small": (1, 3, 3), **({} if INTERPRETED else {"compiled": (64, 32, 32)})}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("size", MAPS)
@pytest.mark.usefixtures("float32_products")
def test_quick_layers_are_the_layers(name, size):
    """Outputs, gradients, running statistics, in training and after it."""
    torch.manual_seed(0)
    plain = nn.Sequential(*BLOCKS[name]()).to(DEVICE)
    for layer in plain:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, -1, 1)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
    own = copy.deepcopy(plain)
    fast = quicken(own)
    assert len(fast) == 1
    fast = torch.compile(fast, dynamic=False) if size == "compiled" else fast
    n, height, width = MAPS[size]
    x = torch.randn(n, plain[0].in_channels, height, width, device=DEVICE).contiguous(memory_format=torch.channels_last)
    found, expected = fast(x), plain(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(expected)
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


def test_quick_layers_let_nan_through():
    torch.manual_seed(0)
    net = quicken(nn.Sequential(*BLOCKS["norm"]()).to(DEVICE))
    x = torch.randn(2, 8, 6, 6, device=DEVICE)
    x[0, 0, 3, 3] = float("nan")
    assert net(x).isnan().all()
    assert net.eval()(x).isnan().any()


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("examples", [128, 80, 2])
def test_ways_back_through_a_layer(kind, apart, examples):
    torch.manual_seed(0)
    shape, held = (3, examples, 70), (3, 1, 70)
    grad, z, *norm = (torch.randn(s, device=DEVICE) for s in (shape, shape, held, held, held, held))
    row = torch.rand(held, device=DEVICE) + 0.5 if apart else None
    _, saved = layers.norm_forward(z, [t.clone() for t in norm], kind, row)
    mine, other = ([t.clone() for t in norm] for _ in range(2))
    found = stacked.norm_backward(grad, saved, mine, kind, row)
    expected = layers.norm_backward(grad, saved, other, kind, row)
    torch.testing.assert_close([found, *mine], [expected, *other], rtol=1e-4, atol=1e-4)
    for bias in (norm[0], None):
        mine, other = (None if bias is None else bias.clone() for _ in range(2))
        found = stacked.plain_backward(grad, z, mine, kind, row)
        torch.testing.assert_close(found, layers.plain_backward(grad, z, other, kind, row), rtol=1e-4, atol=1e-4)
        if bias is not None:
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("widths", "apart", "biased"),
    [((40, 24, 17, 30, 10), False, True), ((40, 24, 17, 30, 10), True, False), ((1100, 9, 1030, 12), True, True)],
)
def test_enorm_of_stacked_networks(widths, apart, biased):
    torch.manual_seed(0)
    weights = [torch.randn(4, n, m, device=DEVICE) for m, n in itertools.pairwise(widths)]
    biases = [torch.randn(4, 1, n, device=DEVICE) if biased else None for n in widths[1:]]
    row = torch.rand(4, 1, widths[1], device=DEVICE) + 0.5 if apart else None
    weights[0][2, 3] = weights[1][3, 4] = 0  # nothing enters
    weights[1][1, :, 5] = 0  # nothing leaves
    weights[0][3, 6] = 1e30  # too much enters
    given = [t for t in (*weights, *biases, row) if t is not None]
    began = [t.clone() for t in given]
    part = [w[1:] for w in weights], [None if b is None else b[1:] for b in biases], None if row is None else row[1:]
    stacked.balance(*part)
    found = [t.clone() for t in given]
    for t, old in zip(given, began, strict=True):
        t.copy_(old)
    layers.balance(*part)
    torch.testing.assert_close(found, given, rtol=1e-5, atol=1e-6)
    for new, old in zip(found, began, strict=True):
        assert torch.equal(new[0], old[0])  # another run
    assert not torch.equal(found[1], began[1])
    assert torch.equal(found[0], began[0]) == apart
