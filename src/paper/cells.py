"""Cells of the trained items: (task, network, method, learning rate) with its seeds, one job and one file each.

Items may share cells: a cell is named by its settings, not by the item that asks for it. No torch here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from paper.methods import describe

VERSION = 1  # of training; raised by hand when its results change (tests/paper/test_golden.py watches)
Spec = dict[str, Any]
Settings = Mapping[str, Any]


def cells_of(item: str, settings: Settings, scale: str) -> list[Spec]:
    """The cells a trained item asks for, in the order of its settings."""
    blocks = settings.values() if item == "controls" else [settings]
    return [cell for block in blocks for cell in _expand(block, scale)]


def _expand(block: Settings, scale: str) -> Iterator[Spec]:
    optimiser = block["optimiser"]
    for network, model in _models(block):
        for method in block["methods"]:
            rescaling = describe(method)
            if "clamp" in block and rescaling.get("rescale"):
                rescaling = {**rescaling, "clamp": block["clamp"]}
            spared = [lr for other, lr in block.get("spared", ()) if other == method]
            for lr in (lr for lr in block["lrs"] if lr not in spared):
                yield {
                    "stage": "train",
                    "scale": scale,
                    "version": VERSION,
                    "task": "rebuild" if model["kind"] == "autoencoder" else "classify",
                    "network": network,
                    "model": model,
                    "method": method,
                    "rescaling": rescaling,
                    "optimiser": optimiser,
                    "lr": lr,
                    "epochs": _epochs(block, lr),
                    **{
                        name: block[name]
                        for name in ("dataset", "images", "validation", "test_images", "batch", "seeds")
                    },
                }


def _epochs(block: Settings, lr: float) -> int:
    for longer in block.get("longer", ()):
        if float(longer["lr"]) == float(lr):
            return longer["epochs"]
    return block["epochs"]


def _models(block: Settings) -> Iterator[tuple[str, Spec]]:
    """Networks of a block by name."""
    model = block["model"]
    if model["kind"] == "mlp":
        for layers in block["hidden_layers"]:
            kept = {name: value for name, value in model.items() if name != "width"}
            kind = "" if model["activation"] == "relu" else f"_{model['activation']}"
            yield f"mlp_{layers}x{model['width']}{kind}", {**kept, "hidden": [model["width"]] * layers}
    elif model["kind"] == "autoencoder":
        for compression in block["compressions"]:
            yield f"autoencoder_c{compression}", {**model, "compression": compression}
    else:
        yield model["kind"], dict(model)
