"""On a Hopper GPU: kernels of whole layers against float64; neither streams nor other runs change a run's numbers."""

import pytest
import torch

from paper.training.batched_mlps import BatchedTrainer
from paper.training.kernels import torch_layers
from paper.training.trainer import Run
from tests.paper.training.reference import make_spec, random_splits

pytest.importorskip("triton.experimental.gluon", reason="the kernels are written in Gluon")
from paper.training.kernels import hopper  # noqa: E402

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"),
    pytest.mark.filterwarnings("default"),  # of the compiler, about the machine
    pytest.mark.xdist_group("gpu"),
]

CUDA = torch.device("cuda")
SHAPES = [(784, 784), (500, 500), (500, 3072), (196, 784), (68, 72)]
CASES = [
    *((shape, (9, 128)) for shape in SHAPES),
    ((784, 784), (24, 96)),
    ((500, 500), (1, 80)),
    ((500, 3072), (24, 80)),
    ((68, 72), (2, 10)),
    ((68, 72), (1, 1)),
]  # rows and columns; runs and examples


def draw(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, device=CUDA) for shape in shapes]


def near(found, expected, bound=3e-3):
    """As near as products of TF32 are, relative to the largest number, but where a ReLU is at its kink."""
    assert found.shape == expected.shape
    off = (found.double() - expected).abs()
    assert bool(found.isfinite().all())
    assert int((off > bound * expected.abs().max()).sum()) <= 1e-5 * off.numel()


@pytest.mark.parametrize(("shape", "batch"), CASES)
def test_down_through_a_layer(shape, batch):
    (n, m), (runs, examples) = shape, batch
    grad, z, initialize, row, *norm = draw((runs, examples, n), (runs, examples, m), (runs, n, m), *[(runs, 1, m)] * 5)
    row = row.abs() + 0.5
    below = torch.bmm(grad.double(), initialize.double())
    layer_kernels = [("relu", False, False), ("relu", True, True), ("gelu", True, False), ("silu", False, True)]
    for kind, normed, apart in layer_kernels if m < 1000 else layer_kernels[:1]:
        factor = row if apart else None
        if normed and examples > 1:
            a, saved = torch_layers.norm_forward(z, [t.clone() for t in norm], kind, factor)
        else:
            a, saved = torch_layers.plain_forward(z, norm[1], kind, factor), z
        weight, mine, other = initialize.clone(), [t.clone() for t in norm], [t.double() for t in norm]
        if isinstance(saved, tuple):
            found = hopper.backward(grad, weight, a, saved, mine, None, kind, factor)
            expected = torch_layers.norm_backward(below, tuple(t.double() for t in saved), other, kind, factor)
        else:
            found = hopper.backward(grad, weight, a, a if kind == "relu" else z, None, mine[1], kind, factor)
            expected = torch_layers.plain_backward(below, z.double(), other[1], kind, factor)
        near(found, expected, 5e-3)
        near(initialize.double() - weight.double(), torch.bmm(grad.double().mT, a.double()))
        for new, held, old in zip(mine, other, norm, strict=True):
            near(new - old, held - old, 1e-2)


@pytest.mark.parametrize(("shape", "batch"), CASES)
@pytest.mark.parametrize("going_on", [True, False])
def test_the_first_layer_and_the_next_product(shape, batch, going_on):
    (n, m), (runs, examples) = shape, batch
    grad, x, then, initialize = draw((runs, examples, n), *[(runs, examples, m)] * 2, (runs, n, m))
    transposed = torch.zeros(runs, m, 128, device=CUDA)
    transposed[:, :, :examples] = x.mT
    weight = initialize.clone()
    product, squares = hopper.first_layer_step(grad, transposed, then if going_on else None, weight)
    near(initialize.double() - weight.double(), torch.bmm(grad.double().mT, x.double()))
    near(squares.sum(0), weight.double().square().sum(2), 1e-5)
    assert (product is not None) == going_on
    if product is not None:
        near(product.double().sum(0), torch.bmm(then.double(), weight.double().mT))


@pytest.mark.parametrize(("shape", "batch"), CASES)
def test_up_through_a_layer(shape, batch):
    """`test_kernels` has the other activations, BatchNorm and factors."""
    (n, m), (runs, examples) = shape, batch
    x, weight, bias, target = draw((runs, examples, m), (runs, n, m), (runs, 1, n), (runs, examples, n))
    z = torch.bmm(x.double(), weight.double().mT)
    a, kept = hopper.forward(x, weight, None, bias, "relu", None, True)
    near(kept, z)
    near(a, (z + bias).relu())
    rate = torch.rand(runs, 1, 1, device=CUDA)
    found = hopper.mse_gradient(x, weight, None, target, rate)
    near(found, (z - target) * 2 * rate / (examples * n))


def autoencoders(seeds, methods=("baseline", "enorm")):
    model = {"kind": "autoencoder", "inputs": 192, "compression": 1}
    sizes = {"images": 330, "batch": 32, "test_images": 50}
    return [Run(make_spec(model, method, lr=0.05, **sizes), seed) for method in methods for seed in range(seeds)]


def trained(runs, alone=False, graphed=True):
    """Tensors after two epochs; `alone`: with all work on one stream."""
    stream = torch.cuda.current_stream()
    trainer = BatchedTrainer(runs, random_splits(runs[0].spec, CUDA), CUDA)
    trainer.use_graphs, trainer.stack.hopper = graphed, hopper  # by default they are not used for few runs
    if alone:
        trainer.stack.side = trainer.stream
    for epoch in (1, 2):
        if graphed:
            trainer.epoch(epoch)
        else:
            trainer.order.copy_(_order(trainer, epoch))
            trainer.position.zero_()
            for count, size in ((10, 32), (1, 10)):
                trainer._graph_steps(count, size)
    found = [t.clone() for t in trainer.stack.tensors()]
    torch.cuda.synchronize()
    torch.cuda.set_stream(stream)
    return found


def _order(trainer, epoch):
    trainer._shuffle(epoch)
    return trainer._seed_order.to(CUDA)[trainer._seed_of]


def test_neither_graphs_nor_streams_change_a_number():
    runs = autoencoders(3)
    expected = trained(runs, alone=True, graphed=False)
    for found in (trained(runs), trained(runs, graphed=False), trained(runs, alone=True)):
        assert all(map(torch.equal, found, expected))


def test_a_run_is_the_same_in_any_company():
    """Bit for bit, if our kernels compute all matrix products of a step."""
    runs = autoencoders(12)
    together = trained(runs)
    for number in (0, 23):
        alone = trained(runs[number : number + 1])
        assert all(torch.equal(mine[0], other[number]) for mine, other in zip(alone, together, strict=True))
