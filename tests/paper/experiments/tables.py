"""Settings and small tables of every experiment: measured at the preset `tiny`, or made up in the shape of training."""

import copy
import tempfile
from functools import cache
from pathlib import Path

import torch

from paper import config, data
from paper.experiments import EXPERIMENTS
from tests.paper.experiments import practice_cases
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
    "practice": [
        practice_cases.run(network, method, 0.1, seed, 50 + gain + seed)
        for network, more in (("mlp_tiny", 1.0), ("resnet18_tiny", -1.0))
        for method, gain in (("baseline", 0.0), ("full", more), ("exclude", more))
        for seed in (0, 1)
    ],
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
    if name == "practice":
        return practice_cases.practised({"half": practice_cases.same(1.0), "free": practice_cases.same(0.5)})
    if name == "optimisers":
        return practice_cases.tuned((0.02, 0.01))
    if name in TRAINED and name != "cifar_nv_all":
        smoothing = 0.2 if name.startswith("cifar") else None
        return table(TRAINED[name], smoothing=smoothing, by_seed=name.startswith("cifar"))
    every = [run for part in (name, *EXPERIMENTS[name].also) for run in runs(part)]
    return EXPERIMENTS[name].table(every, blocks("tiny")[name])
