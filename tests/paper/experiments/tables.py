"""Settings and small tables of every experiment: measured at the preset `tiny`, or made up in the shape of training."""

import copy
import io
import math
import tempfile
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from paper import config, data, results
from paper.aggregate import trained
from paper.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
CIFAR_NV = ("cifar_nv", {"kind": "cifar_nv", "width": 0.03125, "image": 8})
SPEED = {"baseline": 0.1, "enorm": 0.1, "pathcond": 0.2}


@cache
def chosen(preset):
    """The checked configuration of a preset."""
    return config.read(ROOT, preset)


def blocks(preset):
    """Blocks of a preset by experiment, as its models take them."""
    return copy.deepcopy(chosen(preset).plain)


def settings(name, preset="tiny"):
    """Validated settings of an experiment."""
    return chosen(preset).settings[name]


def mlp(depth, width=8):
    """Name and description of an MLP."""
    model = {"kind": "mlp", "inputs": 12, "hidden": [width] * depth, "outputs": 10, "activation": "relu"}
    return f"mlp_{depth}x{width}", model


def autoencoder(compression):
    """Name and description of an autoencoder."""
    return f"autoencoder_c{compression}", {"kind": "autoencoder", "inputs": 784, "compression": compression}


def cell(network, method="baseline", lr=1e-3, epochs=40, speed=None, seeds=(0, 1, 2), diverged=(), scale=0.5):
    """Runs of one network and method whose train error falls like exp(-speed * epoch), faster with each seed."""
    name, model = network
    parts, epoch = [], np.arange(epochs + 1)
    for seed in seeds:
        fall = np.exp(-(SPEED.get(method, 0.1) if speed is None else speed) * (1 + 0.1 * seed) * epoch)
        rows = pd.DataFrame({"seed": seed, "epoch": epoch, "train_loss": 2.3 * fall})
        if model["kind"] != "autoencoder":
            rows["train_accuracy"], rows["test_accuracy"] = 1 - 0.9 * fall, 0.8 - 0.7 * fall
        rows["max_log_scale"] = 0.0 if method in ("baseline", "enorm") else scale * (1 + 0.1 * seed)
        if seed in diverged:
            rows.loc[epochs // 2 :, "train_loss"] = math.nan
        rows["diverged"] = rows["train_loss"].isna()
        parts.append(rows)
    spec = {"network": name, "model": model, "method": method, "lr": lr, "epochs": epochs, "seeds": list(seeds)}
    parameters = 1_000_000 + 250_000 * len(model.get("hidden", ()))
    return pd.concat(parts, ignore_index=True), {"spec": spec, "parameters": parameters}


def cells(networks, methods=("baseline", "enorm", "pathcond"), lrs=(1e-3,), **other):
    """Every network with every method and learning rate."""
    return [cell(network, method, lr, **other) for network, method, lr in product(networks, methods, lrs)]


def table(runs, target=0.95, smoothing=None, by_seed=False):
    """The aggregated table of these runs, as it is read from a file."""
    file = io.StringIO()
    trained(runs, {"target": target, "smoothing": smoothing}, by_seed).to_csv(file, index=False, na_rep="nan")
    file.seek(0)
    return results.read_table(file)


def compared(network, method, lr, seed, sigma=0.0):
    """A run of `practice` or `unequal`: the second of three rates is best, and each method gains a point."""
    accuracy = 0.5 + 0.01 * METHODS.index(method) + 0.001 * seed - abs(math.log10(lr) + 1)
    rows = pd.DataFrame({"epoch": [0, 2], "test_accuracy": accuracy, "validation_accuracy": accuracy})
    spec = {"network": network, "method": method, "lr": lr, "seed": seed, "epochs": 2, "unequal": sigma}
    return rows.assign(max_log_scale=0.5, diverged=False), {"spec": spec}


METHODS = ("baseline", "half", "full", "free", "norms")
COMPARED = list(product(("vgg11", "vgg16"), METHODS, (1e-2, 1e-1, 1.0), (0, 1)))
TRAINED = {
    "mlp_depth": cells(map(mlp, (2, 3, 5))),
    "mlp_depth_lrs": cells(map(mlp, (2, 3)), lrs=(1e-3, 1e-1)),
    "mlp_depth_gelu": cells(map(mlp, (2, 3))),
    "cifar_nv": cells([CIFAR_NV]),
    "cifar_nv_lrs": cells([CIFAR_NV], lrs=(1e-3, 1e-2)),
    "cifar_nv_all": [
        (
            rows.assign(running_train_loss=rows["train_loss"].where(rows["epoch"] > 0)),
            {**provenance, "spec": {**provenance["spec"], "seeding": "torch"}},
        )
        for rows, provenance in cells([CIFAR_NV], ("baseline", "pathcond"))
    ],
    "autoencoder": cells(map(autoencoder, (1, 2))),
    "autoencoder_lrs": [*cells(map(autoencoder, (1, 2)), lrs=(1e-3, 1e-1)), cell(autoencoder(4), diverged=[0])],
    "controls": [
        *cells(map(mlp, (3, 6)), ("baseline", "pathcond", "rows", "columns", "exact", "optimum"), (1e-3, 1e-1)),
        *cells([autoencoder(4)], ("baseline", "pathcond"), (1e-3, 1e-1)),
    ],
    "practice": [compared(f"{kind}_bn", method, lr, seed) for kind, method, lr, seed in COMPARED],
    "unequal": [compared("mnist_mlp", method, lr, seed, 2.0) for _, method, lr, seed in COMPARED[: len(COMPARED) // 2]],
    "default": cells(map(mlp, (2, 3, 8)), ("baseline", "pathcond", "half", "bounded")),
    "optimisers": cells([(f"{mlp(3)[0]}_adamw", mlp(3)[1])], ("baseline", "pathcond"), (1e-3, 1e-2)),
    "tuned": cells([*map(mlp, (2, 3)), *map(autoencoder, (1, 4)), CIFAR_NV], lrs=(1e-3, 1e-2, 1e-1)),
}


@cache
def runs(name):
    """Table and provenance of each part of a measured experiment, or of each made-up run of a trained one."""
    if name in TRAINED:
        return TRAINED[name]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        data.prepare("generated", Path(folder) / "generated.pt")
        for _, part in EXPERIMENTS[name].all_parts(settings(name)):
            more = {"data": Path(folder) / "generated.pt"} if "dataset" in part else {}
            found.append((EXPERIMENTS[name].measure({**part, **more}, CPU), {}))
    return found


@cache
def small(name):
    """A small table of an experiment, as it is drawn and judged."""
    if name in ("practice", "unequal", "optimisers"):
        return EXPERIMENTS[name].table(TRAINED[name], {"mlp": {"target": 0.95}})
    if name in TRAINED and name != "cifar_nv_all":
        smoothing = 0.2 if name.startswith("cifar") else None
        return table(TRAINED[name], smoothing=smoothing, by_seed=name.startswith("cifar"))
    every = [run for part in (name, *EXPERIMENTS[name].also) for run in runs(part)]
    return EXPERIMENTS[name].table(every, blocks("tiny")[name])
