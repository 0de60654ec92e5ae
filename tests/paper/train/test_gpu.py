"""On a GPU: curves near those of a CPU, graphs that change nothing, and the kernels' values."""

import copy

import pytest
import torch
from torch import nn

from paper import data, store
from paper.train import layers
from paper.train.alone import Alone
from paper.train.backend import Run
from paper.train.loop import Options, TimeUp, result_path, train
from paper.train.together import Together
from tests.paper.train.plain import CPU, cell, curves, random_sets

pytest.importorskip("triton", reason="the kernels are written in Triton")
from paper.train import stacked  # noqa: E402
from paper.train.quick import quicken  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # of the compiler, about the machine
    pytest.mark.xdist_group("gpu"),
]

CUDA = torch.device("cuda")
MLP = {"kind": "mlp", "inputs": 192, "hidden": [64, 48, 32], "outputs": 10, "activation": "relu"}
NETWORKS = {
    "mlp": MLP,
    "gelu": {**MLP, "activation": "gelu"},
    "bare": {**MLP, "batchnorm": False},
    "autoencoder": {"kind": "autoencoder", "inputs": 192, "compression": 2},
}
CONV = {"kind": "cifar_nv", "width": 0.125, "image": 16}
SIZES = {"images": 330, "batch": 32, "validation": 40, "test_images": 50}  # ten whole batches and a part of one


@pytest.fixture(autouse=True)
def settings():
    """What a backend sets for the process, put back."""
    stream, benchmark = torch.cuda.current_stream(), torch.backends.cudnn.benchmark
    yield
    torch.cuda.synchronize()
    torch.cuda.set_stream(stream)
    torch.backends.cudnn.benchmark = benchmark


def runs(model):
    """Two seeds of each way to train; those of ENorm side by side."""
    ways = (("baseline", 0.01), ("pathcond", 0.005), ("teleport", 0.01), ("enorm", 0.01))
    cells = [
        cell(model, method, {"teleport": 1} if method == "teleport" else {}, lr=lr, **SIZES) for method, lr in ways
    ]
    return [Run(one, seed) for one in cells for seed in (0, 1)]


def together(chosen, device):
    return Together(chosen, random_sets(chosen[0].cell, device), device)


def near(found, expected, loss, accuracy=0.06):
    """Losses this close, and all but a few images judged the same."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        bound = loss if name.endswith("loss") else accuracy
        torch.testing.assert_close(found[name], values, rtol=bound, atol=bound, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", NETWORKS)
def test_curves_are_those_of_the_cpu(name):
    chosen = runs(NETWORKS[name])
    backend = together(chosen, CUDA)
    found, expected = curves(backend, 3), curves(together(chosen, CPU), 3)
    near({k: v[:2] for k, v in found.items()}, {k: v[:2] for k, v in expected.items()}, 2e-3)
    near(found, expected, 1e-2, 0.1)
    assert backend.precision == "float32 with TF32 products"
    assert bool((found["train_loss"][-1] < found["train_loss"][0]).all())


@pytest.mark.parametrize("name", ["mlp", "autoencoder"])
def test_recorded_steps_are_the_steps(name):
    chosen = runs(NETWORKS[name])
    recorded, plain = together(chosen, CUDA), together(chosen, CUDA)
    plain.recorded = False
    near(curves(recorded, 3), curves(plain, 3), 1e-3)


@pytest.mark.parametrize("name", ["mlp", "autoencoder"])
def test_a_run_does_not_depend_on_company(name):
    chosen = runs(NETWORKS[name])
    beside = curves(together(chosen, CUDA), 1)
    for number in (0, 7):
        found = curves(together(chosen[number : number + 1], CUDA), 1)
        near(found, {k: v[:, number : number + 1] for k, v in beside.items()}, 1e-3)


@pytest.mark.parametrize("name", ["mlp", "autoencoder"])
def test_runs_go_on_from_what_was_saved(name):
    chosen = runs(NETWORKS[name])
    whole = curves(together(chosen, CUDA), 4)
    first, second = together(chosen, CUDA), together(chosen, CUDA)
    curves(first, 2)
    for number in range(len(chosen)):
        second.load(number, first.save(number))
    near(curves(second, 2, first=3), {k: v[2:] for k, v in whole.items()}, 1e-3)


def test_saving_in_the_middle_changes_nothing():
    chosen = runs(MLP)
    whole, watched = together(chosen, CUDA), together(chosen, CUDA)
    for epoch in (1, 2, 3):
        whole.epoch(epoch)
        watched.epoch(epoch)
        watched.save(0)
        watched.evaluate()
    near(watched.evaluate(), whole.evaluate(), 1e-3)


# ---- runs alone


@pytest.mark.parametrize("method", ["pathcond", "enorm"])
def test_the_conv_net_trains_like_on_the_cpu(method):
    one = cell(CONV, method, lr=0.05, **SIZES)
    backends = [Alone(Run(one, 0), random_sets(one, device), device) for device in (CUDA, CPU)]
    assert backends[0].max_log_scale == backends[1].max_log_scale
    assert backends[0].precision == "bfloat16 autocast"
    found, expected = (curves(backend, 3) for backend in backends)
    near(found, expected, 5e-3, 0.1)
    assert float(found["train_loss"][-1]) < float(found["train_loss"][0])


@pytest.mark.parametrize(
    "optimiser",
    [{"name": "sgd"}, {"name": "sgd", "momentum": 0.9}, {"name": "adam"}, {"name": "muon"}],
    ids=["sgd", "momentum", "adam", "muon"],
)
def test_a_run_alone_is_that_of_the_cpu_and_goes_on_from_what_was_saved(optimiser):
    one = cell(MLP, "pathcond", optimiser=optimiser, lr=0.005, **SIZES)
    expected = curves(Alone(Run(one, 0), random_sets(one), CPU), 4)
    first, whole, second = (Alone(Run(one, 0), random_sets(one, CUDA), CUDA) for _ in range(3))
    found = curves(whole, 4)
    near(found, expected, 5e-2, 0.15)  # bfloat16, and Adam makes steps of roundings
    curves(first, 2)
    second.load(0, first.save(0))
    near(curves(second, 2, first=3), {k: v[2:] for k, v in found.items()}, 3e-3)


# ---- whole cells


def rows(results, spec):
    return store.read_result(result_path(results, spec))[0]


def stopping_after(asked):
    """Says stop when it has been asked so often: once for each group of cells, then after each epoch."""
    count = []

    def stop():
        count.append(1)
        return len(count) > asked

    return stop


def test_cells_stopped_and_moved_from_cpu_to_gpu_are_whole(tmp_path):
    """A CPU trains one seed after the other, so a GPU finds seeds at different epochs."""
    data.prepare("generated", tmp_path / "generated.pt")
    sizes = {"images": 130, "batch": 32, "test_images": 50, "epochs": 4, "seeds": [0, 1, 2]}
    cells = [cell(MLP, method, lr=0.05, **sizes) for method in ("baseline", "enorm", "pathcond")]
    cells.append(cell(NETWORKS["autoencoder"], "pathcond", lr=0.05, **sizes))

    def options(name, device, **more):
        return Options(tmp_path / name, tmp_path, tmp_path / f"{name}_kept", device, **more)

    train(cells, options("cpu", CPU))
    with pytest.raises(TimeUp):
        train(cells, options("gpu", CPU, stop=stopping_after(6)))
    for _ in range(30):
        try:
            train(cells, options("gpu", CUDA, stop=stopping_after(4), most=6))
            break
        except TimeUp:
            continue
    for spec in cells:
        found, expected = rows(tmp_path / "gpu", spec), rows(tmp_path / "cpu", spec)
        assert found[["seed", "epoch"]].equals(expected[["seed", "epoch"]])
        for name in ("train_loss", "test_loss"):
            torch.testing.assert_close(
                torch.tensor(found[name].to_numpy()), torch.tensor(expected[name].to_numpy()), rtol=1e-2, atol=1e-2
            )
    assert not [path for path in (tmp_path / "gpu_kept").rglob("*") if path.is_file()]
    record = store.read_record(result_path(tmp_path / "gpu", cells[-1]))
    assert record["precision"] == "float32 with TF32 products"
    assert record["cuda"]


# ---- kernels


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


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(
    ("size", "compiled"), [((4, 8, 8), False), ((3, 7, 5), False), ((1, 3, 3), False), ((64, 32, 32), True)]
)
@pytest.mark.usefixtures("float32_products")
def test_quick_layers_are_the_layers(name, size, compiled):
    """Outputs, gradients, running statistics, in training and after it."""
    torch.manual_seed(0)
    plain = nn.Sequential(*BLOCKS[name]()).to(CUDA)
    for layer in plain:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, -1, 1)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
    own = copy.deepcopy(plain)
    fast = quicken(own)
    assert len(fast) == 1
    fast = torch.compile(fast, dynamic=False) if compiled else fast
    n, height, width = size
    x = torch.randn(n, plain[0].in_channels, height, width, device=CUDA).contiguous(memory_format=torch.channels_last)
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
    net = quicken(nn.Sequential(*BLOCKS["norm"]()).to(CUDA))
    x = torch.randn(2, 8, 6, 6, device=CUDA)
    x[0, 0, 3, 3] = float("nan")
    assert net(x).isnan().all()
    assert net.eval()(x).isnan().any()


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("examples", [128, 80, 2])
def test_ways_back_through_a_layer(kind, apart, examples):
    torch.manual_seed(0)
    shape, held = (3, examples, 70), (3, 1, 70)
    grad, z, *norm = (torch.randn(s, device=CUDA) for s in (shape, shape, held, held, held, held))
    row = torch.rand(held, device=CUDA) + 0.5 if apart else None
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
