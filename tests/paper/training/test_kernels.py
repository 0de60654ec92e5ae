"""The kernels' values, on a GPU, or in Triton's interpreter where `test_kernels_unrun` asks for it."""

import copy
import itertools
import os

import pytest
import torch
from torch import nn

from paper.training.batched_mlps import BatchedTrainer
from paper.training.kernels import torch_layers
from paper.training.trainer import Run
from tests.paper.training.reference import CPU, WIDE, TorchHopper, make_spec, random_splits

pytest.importorskip("triton", reason="the kernels are written in Triton")
pytest.importorskip("triton.experimental.gluon", reason="some are written in Gluon")
from paper.training.kernels import hopper, triton_layers  # noqa: E402
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


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("examples", [128, 80, 2])
def test_ways_back_through_a_layer(kind, apart, examples):
    torch.manual_seed(0)
    shape, held = (3, examples, 70), (3, 1, 70)
    grad, z, *norm = (torch.randn(s, device=DEVICE) for s in (shape, shape, held, held, held, held))
    row = torch.rand(held, device=DEVICE) + 0.5 if apart else None
    _, saved = torch_layers.norm_forward(z, [t.clone() for t in norm], kind, row)
    mine, other = ([t.clone() for t in norm] for _ in range(2))
    found = triton_layers.norm_backward(grad, saved, mine, kind, row)
    expected = torch_layers.norm_backward(grad, saved, other, kind, row)
    torch.testing.assert_close([found, *mine], [expected, *other], rtol=1e-4, atol=1e-4)
    for bias in (norm[0], None):
        mine, other = (None if bias is None else bias.clone() for _ in range(2))
        found = triton_layers.plain_backward(grad, z, mine, kind, row)
        torch.testing.assert_close(found, torch_layers.plain_backward(grad, z, other, kind, row), rtol=1e-4, atol=1e-4)
        if bias is not None:
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def near(found, expected):
    """As near as products of TF32 are."""
    for mine, other in zip(found, expected, strict=True):
        bound = (1e-5 if INTERPRETED else 5e-3) * float(other.abs().max())
        torch.testing.assert_close(mine, other.to(mine.dtype), rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("kind", "apart", "examples"), [("relu", False, 128), ("relu", True, 80), ("gelu", True, 128), ("silu", False, 16)]
)
def test_whole_layers_forward(kind, apart, examples):
    torch.manual_seed(0)
    held = (2, 1, 72)
    x, weight, *norm = (torch.randn(s, device=DEVICE) for s in ((2, examples, 68), (2, 72, 68), *[held] * 4))
    row = torch.rand(held, device=DEVICE) + 0.5 if apart else None
    z = torch.bmm(x.double(), weight.double().mT).float()
    partials = torch.stack([0.25 * z, 0.75 * z])
    for work in (
        lambda *how: hopper.forward(x, weight, *how),
        lambda *how: hopper.forward_from_partials(partials, *how),
    ):
        mine, other = ([t.clone() for t in norm] for _ in range(2))
        a, saved = work(mine, None, kind, row, True)
        expected, kept = torch_layers.norm_forward(z, other, kind, row)
        near([a, *saved, *mine], [expected, *kept, *other])
        for bias, keep in ((norm[0], True), (None, False)):
            a, saved = work(None, bias, kind, row, keep)
            near([a], [torch_layers.plain_forward(z, bias, kind, row)])
            near([saved], [z if keep else a])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("examples", [128, 3])
def test_gradient_at_the_outputs_of_an_autoencoder(biased, examples):
    torch.manual_seed(0)
    shapes = ((2, examples, 68), (2, 72, 68), (2, examples, 72), (2, 1, 72))
    x, weight, target, bias = (torch.randn(s, device=DEVICE) for s in shapes)
    rate = torch.tensor([0.5, 2.0], device=DEVICE).view(2, 1, 1)
    mine, other = (bias.clone() if biased else None for _ in range(2))
    found = [hopper.mse_gradient(x, weight, mine, target, rate)]
    z = torch.bmm(x.double(), weight.double().mT).float()
    expected = [torch_layers.mse_gradient(z, other, target, rate)]
    near([*found, mine] if biased else found, [*expected, other] if biased else expected)


@pytest.mark.parametrize("examples", [128, 7])
def test_images_are_fetched_in_both_layouts(examples):
    torch.manual_seed(0)
    images = torch.randint(0, 256, (300, 70), dtype=torch.uint8, device=DEVICE)
    index = torch.randint(0, 300, (3, examples), device=DEVICE)
    scale, shift = torch.rand(2, 70, device=DEVICE)
    x, transposed = hopper.gather(images, index, scale, shift)
    torch.testing.assert_close(x, torch_layers.gather(images, index, scale, shift))
    assert torch.equal(transposed[:, :, :examples], x.mT)
    assert not transposed[:, :, examples:].any()


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
    squares = weights[0].square().sum(2) * torch.tensor([[[0.25]], [[0.75]]], device=DEVICE)
    told = []
    triton_layers.enorm_cycle(*part, squares[:, 1:] if apart else None, told.append)
    assert told == list(range(len(weights) - 1))
    found = [t.clone() for t in given]
    for t, old in zip(given, began, strict=True):
        t.copy_(old)
    torch_layers.enorm_cycle(*part)
    torch.testing.assert_close(found, given, rtol=1e-5, atol=1e-6)
    for new, old in zip(found, began, strict=True):
        assert torch.equal(new[0], old[0])  # another run
    assert not torch.equal(found[1], began[1])
    assert torch.equal(found[0], began[0]) == apart


class Interpreted(TorchHopper):
    """Kernels of whole layers without those in Gluon, which the interpreter cannot run."""

    fits, gather = staticmethod(hopper.fits), staticmethod(hopper.gather)
    forward, forward_from_partials = staticmethod(hopper.forward), staticmethod(hopper.forward_from_partials)
    mse_gradient = staticmethod(hopper.mse_gradient)


WHOLE = {
    "relu": WIDE,
    "bare": {**WIDE, "batchnorm": False},
    "bare gelu": {**WIDE, "batchnorm": False, "activation": "gelu"},
    "narrow": {**WIDE, "hidden": [72, 20, 68], "activation": "gelu"},  # TF32 turns too many of 20 ReLUs over
    "autoencoder": {"kind": "autoencoder", "inputs": 72, "compression": 1},
    "waist": {"kind": "autoencoder", "inputs": 144, "compression": 2},
}


@pytest.mark.parametrize("name", WHOLE)
def test_steps_by_whole_layers_are_the_steps(name):
    """Each step prefetches the first GEMM of the next; with ENorm, against a CPU."""
    if not INTERPRETED and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    sizes = {"images": 54, "batch": 22, "test_images": 5}
    specs = [make_spec(WHOLE[name], method, lr=0.05, **sizes) for method in ("pathcond", "enorm")]
    runs = [Run(specs[0], 0), Run(specs[1], 0), Run(specs[1], 1)]
    mine, other = (BatchedTrainer(runs, random_splits(runs[0].spec, device), device) for device in (DEVICE, CPU))
    mine.stack.hopper = Interpreted if INTERPRETED else hopper  # by default they are not used for so few runs
    if INTERPRETED:
        mine.stack.row_scale = torch.ones(3, 1, mine.stack.shape.widths[1])
    assert mine.stack.can_prefetch(22)
    assert not other.stack.can_prefetch(22)
    order = torch.stack([torch.randperm(54, generator=torch.Generator().manual_seed(run.seed)) for run in runs])
    began = [t.clone() for t in other.stack.tensors()]
    for trainer in (mine, other):
        trainer.order.copy_(order)
        trainer._graph_steps(2, 22)
        trainer._graph_steps(1, 10)
        assert int(trainer.position) == 54
    for found, expected, old in zip(mine.stack.tensors(), other.stack.tensors(), began, strict=True):
        change, bound = expected - old, 1e-4 if INTERPRETED else 1e-1 if name == "relu" else 3e-2
        off = (found.cpu() - expected).abs()
        assert float(off.mean()) <= bound * float(change.abs().mean())
        assert float(off.max()) <= 10 * bound * float(change.abs().max())  # TF32 may put a ReLU on its other side
