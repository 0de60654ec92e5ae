"""Made-up training runs in the format of the training engine, and the tables made from them."""

import io
import math
from itertools import product

import numpy as np
import pandas as pd

from paper import results
from paper.aggregate import trained

METHODS = ("baseline", "enorm", "pathcond")
CIFAR_NV = ("cifar_nv", {"kind": "cifar_nv", "width": 0.03125, "image": 8})
SPEED = {"baseline": 0.1, "enorm": 0.1, "pathcond": 0.2}


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


def cells(networks, methods=METHODS, lrs=(1e-3,), **other):
    """Every network with every method and learning rate."""
    return [cell(network, method, lr, **other) for network, method, lr in product(networks, methods, lrs)]


def table(runs, target=0.95, smoothing=None, by_seed=False):
    """The aggregated table of these runs, as it is read from a file."""
    file = io.StringIO()
    trained(runs, {"target": target, "smoothing": smoothing}, by_seed).to_csv(file, index=False, na_rep="nan")
    file.seek(0)
    return results.read_table(file)


def labels(legend):
    """Texts of a legend."""
    return [text.get_text() for text in legend.get_texts()]
