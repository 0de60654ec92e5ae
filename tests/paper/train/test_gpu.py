"""On a GPU: curves near those of a CPU, and graphs that change nothing."""

import pytest
import torch

from paper import data, store
from paper.train.alone import Alone
from paper.train.backend import Run
from paper.train.loop import Options, TimeUp, result_path, train
from paper.train.together import Together
from tests.paper.train.plain import CPU, cell, curves, random_sets

pytest.importorskip("triton", reason="the kernels are written in Triton")

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
    plain._replay = lambda name, work: work()
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
    near(watched.evaluate(), whole.evaluate(), 5e-3)  # ENorm's factors are multiplied in, then rounded to TF32


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


def test_a_conv_net_that_diverged_does_not_look_sound():
    """Though ReLU in a call to cuDNN makes zeros of what is no number."""
    one = cell(CONV, "baseline", **SIZES)
    backend = Alone(Run(one, 0), random_sets(one, CUDA), CUDA)
    assert backend.evaluate()["train_loss"].isfinite().all()
    with torch.no_grad():
        backend.module[0].weight[0, 0, 0, 0] = float("nan")
    assert backend.evaluate()["train_loss"].isnan().all()


@pytest.mark.parametrize(
    "optimiser",
    [{"name": "sgd"}, {"name": "sgd", "momentum": 0.9}, {"name": "adam"}, {"name": "muon"}],
    ids=["sgd", "momentum", "adam", "muon"],
)
def test_a_run_alone_is_that_of_the_cpu_and_goes_on_from_what_was_saved(optimiser):
    one = cell(MLP, "pathcond", optimiser=optimiser, lr=0.005, **SIZES)
    expected = curves(Alone(Run(one, 0), random_sets(one), CPU), 4)
    first, whole, second = (Alone(Run(one, 0), random_sets(one, CUDA), CUDA) for _ in range(3))
    assert whole.precision == "float32 with TF32 products"
    found = curves(whole, 4)
    near(found, expected, 5e-2, 0.15)  # Adam makes steps of roundings
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
    sizes = {"images": 136, "batch": 32, "test_images": 50, "epochs": 4, "seeds": [0, 1, 2]}
    cells = [cell(MLP, method, lr=0.01, **sizes) for method in ("baseline", "enorm", "pathcond")]
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
