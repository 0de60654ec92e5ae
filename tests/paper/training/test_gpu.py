"""On a GPU: curves near those of a CPU, and CUDA graphs that do not change the numbers."""

import pytest
import torch

from paper import data, results
from paper.runs import result_path
from paper.training.batched_mlps import BatchedTrainer
from paper.training.modules import ModuleTrainer
from paper.training.runner import Options, TimeUp, train
from paper.training.trainer import Run
from tests.paper.training.reference import CPU, GPT, curves, make_spec, random_splits, stop_after

pytest.importorskip("triton", reason="torch.compile needs it")

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
    """Restores the global settings that a trainer changes."""
    stream, benchmark = torch.cuda.current_stream(), torch.backends.cudnn.benchmark
    yield
    torch.cuda.synchronize()
    torch.cuda.set_stream(stream)
    torch.backends.cudnn.benchmark = benchmark


def runs(model):
    """Two seeds of each method; the runs of ENorm are contiguous."""
    rates = {"baseline": 0.01, "pathcond": 0.005, "teleport": 0.01, "enorm": 0.01}
    specs = [
        make_spec(model, method, {"teleport": 1} if method == "teleport" else {}, lr=lr, **SIZES)
        for method, lr in rates.items()
    ]
    return [Run(one, seed) for one in specs for seed in (0, 1)]


def together(chosen, device):
    return BatchedTrainer(chosen, random_splits(chosen[0].spec, device), device)


def near(found, expected, loss, accuracy=0.06):
    """Losses within a tolerance, and the same predictions for all but a few images."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        bound = loss if name.endswith("loss") else accuracy
        torch.testing.assert_close(found[name], values, rtol=bound, atol=bound, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", NETWORKS)
def test_curves_are_those_of_the_cpu(name):
    chosen = runs(NETWORKS[name])
    trainer = together(chosen, CUDA)
    found, expected = curves(trainer, 3), curves(together(chosen, CPU), 3)
    near({k: v[:2] for k, v in found.items()}, {k: v[:2] for k, v in expected.items()}, 2e-3)
    near(found, expected, 1e-2, 0.1)
    assert trainer.precision == "float32 with TF32 products"
    assert bool((found["train_loss"][-1] < found["train_loss"][0]).all())


# ---- runs alone


@pytest.mark.parametrize("method", ["pathcond", "enorm"])
def test_the_conv_net_trains_like_on_the_cpu(method):
    one = make_spec(CONV, method, lr=0.05, **SIZES)
    trainers = [ModuleTrainer(Run(one, 0), random_splits(one, device), device) for device in (CUDA, CPU)]
    assert trainers[0].max_log_scale == trainers[1].max_log_scale
    assert trainers[0].precision == "bfloat16 autocast"
    found, expected = (curves(trainer, 3) for trainer in trainers)
    near(found, expected, 5e-3, 0.1)
    assert float(found["train_loss"][-1]) < float(found["train_loss"][0])


def test_a_conv_net_that_diverged_does_not_look_sound():
    """Also where a compiled ReLU turns NaN into zero."""
    one = make_spec(CONV, "baseline", **SIZES)
    trainer = ModuleTrainer(Run(one, 0), random_splits(one, CUDA), CUDA)
    assert trainer.evaluate()["train_loss"].isfinite().all()
    with torch.no_grad():
        trainer.module[0].weight[0, 0, 0, 0] = float("nan")
    assert trainer.evaluate()["train_loss"].isnan().all()


@pytest.mark.parametrize(
    "optimiser",
    [{"name": "sgd"}, {"name": "sgd", "momentum": 0.9}, {"name": "adam"}, {"name": "muon"}],
    ids=["sgd", "momentum", "adam", "muon"],
)
def test_a_run_alone_is_that_of_the_cpu_and_goes_on_from_what_was_saved(optimiser):
    one = make_spec(MLP, "pathcond", optimiser=optimiser, lr=0.005, **SIZES)
    expected = curves(ModuleTrainer(Run(one, 0), random_splits(one), CPU), 4)
    first, whole, second = (ModuleTrainer(Run(one, 0), random_splits(one, CUDA), CUDA) for _ in range(3))
    assert whole.precision == "float32 with TF32 products"
    found = curves(whole, 4)
    near(found, expected, 5e-2, 0.15)  # Adam makes steps of roundings
    curves(first, 2)
    second.load(0, first.save(0))
    near(curves(second, 2, first=3), {k: v[2:] for k, v in found.items()}, 3e-3)


USUAL = {"schedule": {"name": "one_cycle", "warmup": 0.2}, "augmentation": "flip_crop", "train_metrics": "both"}


@pytest.mark.parametrize(
    ("kind", "method", "optimiser", "more"),
    [
        ("resnet18", "every_epoch", {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}, {}),
        ("vit_tiny", "every_epoch", {"name": "adamw", "weight_decay": 0.05, "decay_vectors": False}, {"clip": 1.0}),
        ("densenet", "full", {"name": "muon"}, {}),
        ("gpt", "half", {"name": "adamw", "weight_decay": 0.1, "decay_vectors": False}, {"augmentation": None}),
    ],
)
def test_a_network_as_people_train_it_is_the_same_in_graphs_and_without(kind, method, optimiser, more):
    model = {"kind": kind, "image": 16, **({"width": 0.25} if kind == "resnet18" else {})}
    model = {**GPT, "context": 128, "width": 192} if kind == "gpt" else model
    sizes = {**SIZES, "lr": 0.003, "precision": "float32", **USUAL, **more}
    one = make_spec(model, method, optimiser=optimiser, **sizes)
    graphs, eager = (ModuleTrainer(Run(one, 0), random_splits(one, CUDA), CUDA, flag) for flag in (False, True))
    assert graphs.use_graphs
    assert not eager.use_graphs
    found, expected = (curves(trainer, 3) for trainer in (graphs, eager))
    for name in ("train_loss", "test_loss"):
        torch.testing.assert_close(found[name], expected[name], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found["running_train_loss"][1:], expected["running_train_loss"][1:], rtol=2e-2, atol=0)
    half = make_spec(model, method, optimiser=optimiser, **{**sizes, "precision": "bfloat16"})
    trainer = ModuleTrainer(Run(half, 0), random_splits(half, CUDA), CUDA)
    assert trainer.precision == "bfloat16 autocast"
    losses = curves(trainer, 3)["train_loss"]
    torch.testing.assert_close(losses, expected["train_loss"], rtol=0.1, atol=0.1)


# ---- whole specs


def rows(folder, spec):
    return results.read_result(result_path(folder, spec))[0]


def test_cells_stopped_and_moved_from_cpu_to_gpu_are_whole(tmp_path):
    """A CPU trains one seed after the other, so a GPU finds seeds at different epochs."""
    data.prepare("generated", tmp_path / "generated.pt")
    sizes = {"images": 136, "batch": 32, "test_images": 50, "epochs": 4}
    methods = ("baseline", "enorm", "pathcond")
    specs = [make_spec(MLP, method, lr=0.01, seed=seed, **sizes) for method in methods for seed in range(3)]
    specs += [make_spec(NETWORKS["autoencoder"], "pathcond", lr=0.05, seed=seed, **sizes) for seed in range(3)]

    def options(name, device, **more):
        return Options(tmp_path / name, tmp_path, tmp_path / f"{name}_kept", device, **more)

    train(specs, options("cpu", CPU))
    with pytest.raises(TimeUp):
        train(specs, options("gpu", CPU, stop=stop_after(6)))
    for _ in range(30):
        try:
            train(specs, options("gpu", CUDA, stop=stop_after(4), most=6))
            break
        except TimeUp:
            continue
    for spec in specs:
        found, expected = rows(tmp_path / "gpu", spec), rows(tmp_path / "cpu", spec)
        assert found[["seed", "epoch"]].equals(expected[["seed", "epoch"]])
        for name in ("train_loss", "test_loss"):
            torch.testing.assert_close(
                torch.tensor(found[name].to_numpy()), torch.tensor(expected[name].to_numpy()), rtol=1e-2, atol=1e-2
            )
    assert not [path for path in (tmp_path / "gpu_kept").rglob("*") if path.is_file()]
    record = results.read_provenance(result_path(tmp_path / "gpu", specs[-1]))
    assert record["precision"] == "float32 with TF32 products"
    assert record["cuda"]
