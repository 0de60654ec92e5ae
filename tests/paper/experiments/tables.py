"""Settings and small tables of every experiment: measured at the preset `tiny`, or made up in the shape of training."""

import copy
import math
import tempfile
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from paper import config, data
from paper.experiments import EXPERIMENTS
from tests.paper.experiments.trained_tables import CIFAR_NV, autoencoder, cell, cells, mlp, table

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


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
