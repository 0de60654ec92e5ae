"""Table 1: parameters, hidden units and paths of six networks on CIFAR-10's images."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
import torchvision
from torch import nn

import pathcond
from paper import models
from paper.errors import PaperError

# What the paper prints: parameters, hidden units, paths to three digits.
# The networks whose parameters the table counts: biases everywhere and no BatchNorm in the MLP, BatchNorm and no biases
# in CIFAR-NV, torchvision's ImageNet networks with 1000 classes.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": lambda image: models.mlp(3 * image**2, batchnorm=False),
    "cifar_nv": lambda image: models.cifar_nv(bias=False),
    "resnet18": lambda image: torchvision.models.resnet18(),
    "resnet34": lambda image: torchvision.models.resnet34(),
    "resnet50": lambda image: torchvision.models.resnet50(),
    "vgg16": lambda image: torchvision.models.vgg16(),
}


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row a network, counted on the CPU whatever the device.

    Args:
        settings: ``networks``, names in :data:`NETWORKS`; ``image``, the side of the input images.
        device: not used.

    Returns:
        Columns network, parameters, units_table (output channels of all convolutions and widths of all linear layers,
        without the last layer), units_free (units of the scale graph, where tied channels are one), paths_paper and
        log10_paths_paper (pools as they are), paths_all and log10_paths_all (a pool counts each of its inputs); paths
        are text with 12 significant digits.

    Raises:
        PaperError: a network is unknown.
    """
    return pd.DataFrame([_row(name, settings["image"]) for name in settings["networks"]])


def _row(name: str, image: int) -> dict[str, Any]:
    if name not in NETWORKS:
        raise PaperError(f"networks of `architectures`: expected among {', '.join(NETWORKS)}, got {name!r}.")
    with torch.random.fork_rng(devices=[]):  # the weights do not matter
        model = NETWORKS[name](image).eval()
    x = torch.ones(1, 3, image, image)
    row: dict[str, Any] = {
        "network": name,
        "parameters": models.parameters(model),
        "units_table": _units(model),
        "units_free": pathcond.extract_graph(model, x).units,
    }
    for pooling in ("paper", "all"):
        paths = pathcond.count_paths(model, x, pooling=pooling)
        row |= {f"paths_{pooling}": f"{paths:.11e}", f"log10_paths_{pooling}": math.log10(paths)}
    return row


def _units(model: nn.Module) -> int:
    """Outputs of all convolutions and linear layers but the last."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return sum(m.out_channels if isinstance(m, nn.Conv2d) else m.out_features for m in layers[:-1])
