"""Made-up runs of `practice` and `optimisers`, and tables of them."""

from itertools import product

import numpy as np
import pandas as pd

from paper.experiments import optimisers, practice
from tests.paper.experiments.trained_tables import CIFAR_NV, cell, mlp

MODELS = {
    "mlp": {"kind": "mlp", "inputs": 3072, "hidden": [8], "outputs": 10, "batchnorm": False},
    "vgg": {"kind": "vgg11", "image": 32},
    "vit": {"kind": "vit_tiny", "image": 32},
}
LRS = (0.01, 0.1, 1.0)
NOISE = (-0.1, 0.0, 0.1)  # of the baseline, by seed: shared by all methods but for what a case adds


def run(network, method, lr, seed, accuracy, scale=0.0, diverged=False):
    """Table and provenance of a run that ends at an accuracy in percent."""
    rows = pd.DataFrame({"seed": seed, "epoch": [0, 1], "test_loss": 1.0, "test_accuracy": [0.1, accuracy / 100]})
    spec = {"network": network, "method": method, "lr": lr, "seed": seed}
    rows = rows.assign(max_log_scale=scale, diverged=diverged)
    return rows, {"spec": spec, "seconds": 3.0, "rescale_seconds": 0.5}


def practised(gains, held_out=("vit",), spread=0.05, lrs=LRS, falls=(5.0, 0.0, 9.0), methods=None):
    """The table of methods with these gains in points by network, best at the middle learning rate.

    Args:
        gains: by method, by network.
        held_out: networks that take no part in the choice.
        spread: of the gains over seeds.
        lrs: the grid.
        falls: points that each learning rate is below the best, or by method.
        methods: names in the settings, where not those of the gains.
    """
    falls = falls if isinstance(falls, dict) else dict.fromkeys(("baseline", *gains), falls)
    found = []
    for network in MODELS:
        by_method = {"baseline": 0.0, **{method: by[network] for method, by in gains.items() if network in by}}
        for (method, gain), (lr, fall), (seed, noise) in product(
            by_method.items(), zip(lrs, (0, 1, 2), strict=True), enumerate(NOISE)
        ):
            more = 0.0 if method == "baseline" else gain + spread * (seed - 1)
            scale = 0.0 if method == "baseline" else 0.5 if method == "half" else 1.0
            found.append(run(network, method, lr, seed, 60 + noise + more - falls[method][fall], scale))
    networks = {name: {"model": model, "held_out": name in held_out} for name, model in MODELS.items()}
    settings = {"networks": networks, "trained": list(MODELS), "methods": methods or ["baseline", *gains]}
    return practice.table(found, settings)


def same(gain, **other):
    """One gain on every network, but for some."""
    return {**dict.fromkeys(MODELS, gain), **other}


def tuned(gains, spread=0.001, epochs=(20, 10), vary=0, networks=None, methods=("baseline", "pathcond")):
    """A table of `optimisers`: gains in test accuracy by network, and epochs to the target, of the second method."""
    found = []
    for network, gain in zip(networks or (mlp(3), CIFAR_NV), gains, strict=True):
        name, model = network
        for kind, lr in product(methods, (1e-3, 1e-2)):
            for seed in range(3):
                rows, provenance = cell((f"{name}_adamw", model), kind, lr, seeds=(seed,), epochs=30)
                second = kind == methods[1]
                more = gain + spread * (seed - 1) if second else 0.0
                worse = 0.0 if lr == 1e-2 else 0.2
                rows["test_accuracy"] = 0.5 + 0.01 * seed + more - worse
                needed = epochs[second] + vary * seed * second
                rows["train_accuracy"] = np.where(rows["epoch"] >= needed + seed * (lr > 1e-3), 1.0, 0.1)
                found.append((rows, provenance))
    return optimisers.table(found, {"mlp_adamw": {"target": 0.99}})
