"""Made-up runs of `practice` and `optimisers`, and tables of these and of `causes` for every answer of their claims."""

from itertools import product

import numpy as np
import pandas as pd

from paper.experiments import optimisers, practice
from paper.verdicts import NO, PARTLY, UNDECIDED, YES
from tests.paper.experiments.trained_tables import CIFAR_NV, cell, mlp

MODELS = {
    "mlp": {"kind": "mlp", "inputs": 3072, "hidden": [8], "outputs": 10, "batchnorm": False},
    "vgg": {"kind": "vgg11", "image": 32},
    "vit": {"kind": "vit_tiny", "image": 32},
}
LRS = (0.01, 0.1, 1.0)
AGAIN = ("pathcond", "teleport")
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


def mixed(first, second):
    """One network of the first table, the others of the second."""
    return pd.concat([first[first["network"] == "vgg"], second[second["network"] != "vgg"]], ignore_index=True)


def caused(gains, **rising):
    """A table of `causes`: seven networks with these gains, and values that rise from one to the next."""
    same = {"max_log_scale": 1.0, "mean_log_scale": 1.0, "moved": 0.5, "update": 1.0, "update_deviation": 1.0}
    spectrum = {"condition_before": 1.0, "condition_after": 1.0, "mean_before": 1.0, "mean_after": 1.0}
    rows = []
    for number, gain in enumerate(gains):
        names = {"network": f"n{number}", "normalisation": ("none", "BatchNorm", "LayerNorm")[number % 3]}
        more = {name: value * (1 + number) for name, value in rising.items()}
        bounds = {"gain": gain, "low": gain - 1, "high": gain + 1}
        rows += [{**names, "seed": seed, **same, **spectrum, **bounds, **more} for seed in (0, 1)]
    return pd.DataFrame(rows)


def ranks(sign=1, **rising):
    """A table of `causes` for every answer; sign: whether gains should rise or fall."""
    orders = {YES: (1, 2, 3, 4, 5, 6, 7), PARTLY: (1, 2, 4, 3, 6, 5, 7), UNDECIDED: (4, 7, 1, 5, 2, 6, 3)}
    orders[NO] = (7, 6, 5, 4, 3, 2, 1)
    return [(answer, caused([sign * gain for gain in gains], **rising)) for answer, gains in orders.items()]


CASES = {
    "causes_scales": ranks(max_log_scale=0.2),
    "causes_updates": ranks(update=0.5),
    "causes_uneven": ranks(-1, update_deviation=0.1),
    "causes_ntk": ranks(condition_before=0.5),
    "practice_no_harm": [
        (YES, practised({"half": same(-0.3)})),
        (PARTLY, practised({"half": same(0.0, vit=-1.0)})),
        (NO, practised({"half": same(0.0, vgg=-1.0)})),
        (UNDECIDED, practised({"half": same(0.0, vgg=-0.5)}, spread=1.0)),
    ],
    "practice_full": [
        (YES, practised({"full": same(-0.3)})),
        (PARTLY, practised({"full": same(0.0, vit=-1.0)})),
        (NO, practised({"full": same(0.0, vgg=-1.0)})),
        (UNDECIDED, practised({"full": same(0.0, vgg=-0.5)}, spread=1.0)),
    ],
    "practice_choice": [
        (YES, practised({"half": same(1.0), "free": same(0.5)})),
        (YES, practised({"half": same(1.0), "full": same(0.0), "exclude": {"vgg": 0.5}})),
        (PARTLY, practised({"half": same(0.5), "free": same(0.5)})),
        (NO, practised({"half": same(0.5), "free": same(1.0)})),
        (NO, practised({"half": same(1.0, vgg=-1.0), "free": same(0.1)})),
    ],
    "practice_gain": [
        (YES, practised({"half": same(0.8)})),
        (PARTLY, practised({"half": same(0.3)})),
        (NO, practised({"half": same(-0.3)})),
        (UNDECIDED, practised({"half": same(0.3)}, spread=1.0)),
    ],
    "practice_range": [
        (YES, practised({"half": same(0.0)}, falls={"baseline": (5, 0, 9), "half": (5, 0, 0.5)})),
        (NO, practised({"half": same(0.0)}, falls={"baseline": (0.5, 0, 0.5), "half": (5, 0, 9)})),
        (NO, practised({"half": same(0.0)})),
        (UNDECIDED, mixed(
            practised({"half": same(0.0)}),
            practised({"half": same(0.0)}, falls={"baseline": (5, 0, 9), "half": (5, 0, 0.5)}),
        )),
    ],
    "practice_teleport": [
        (YES, practised({"half": same(0.0), "every_epoch": {"vgg": 1.0, "vit": 0.8}})),
        (PARTLY, practised({"half": same(0.0), "every_epoch": {"vgg": 1.0, "vit": -1.0}})),
        (NO, practised({"half": same(0.0), "every_epoch": {"vgg": -1.0, "vit": -0.5}})),
        (UNDECIDED, practised({"half": same(0.0), "every_epoch": {"vgg": 0.1, "vit": 0.2}}, spread=1.0)),
    ],
    "optimisers_accuracy": [
        (YES, tuned((0.02, 0.01))),
        (PARTLY, tuned((0.02, 0.0))),
        (NO, tuned((0.0, -0.02))),
        (UNDECIDED, tuned((0.005, 0.005), spread=0.01)),
    ],
    "optimisers_again": [
        (YES, tuned((0.02, 0.01), methods=AGAIN)),
        (PARTLY, tuned((0.02, 0.0), methods=AGAIN)),
        (NO, tuned((0.0, -0.02), methods=AGAIN)),
        (UNDECIDED, tuned((0.005, 0.005), spread=0.01, methods=AGAIN)),
    ],
    "optimisers_speed": [
        (YES, tuned((0.0, 0.0), networks=(mlp(3), mlp(6)))),
        (PARTLY, pd.concat([tuned((0.0,), networks=(mlp(3),)), tuned((0.0,), epochs=(20, 20), networks=(mlp(6),))])),
        (NO, tuned((0.0, 0.0), epochs=(10, 20), networks=(mlp(3), mlp(6)))),
        (UNDECIDED, tuned((0.0,), epochs=(20, 17), vary=2, networks=(mlp(3),))),
    ],
}  # fmt: skip
