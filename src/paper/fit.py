"""What in a run's settings must go together: network and data set, sizes and batches, optimiser and method.

The configuration and the specs are both held against this, before anything runs. No torch here.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paper.blocks import TRAINED, Mistake, measured, mistakes

Json = Mapping[str, Any]


class Data(NamedTuple):
    """Train and test images of a data set, their channels and side, and the classes."""

    train: int
    test: int
    channels: int
    side: int
    classes: int = 10


DATASETS = {
    "cifar10": Data(50_000, 10_000, 3, 32),
    "mnist": Data(60_000, 10_000, 1, 28),
    "generated": Data(640, 160, 3, 8),
}


def of_spec(spec: Json) -> Iterator[Mistake]:
    """Every mistake in a run's spec, whose stage and item are known: in its blocks, else in what ties them together."""
    if spec["stage"] == "train":
        yield from list(mistakes(spec, TRAINED)) or _of_cell(spec)
    else:
        found = list(mistakes(spec, measured(spec["item"])))
        yield from found or _prefixed("settings", of_item(spec["item"], spec["settings"]))


def _of_cell(cell: Json) -> Iterator[Mistake]:
    model, data, name = cell["model"], DATASETS[cell["dataset"]], cell["dataset"]
    yield from _prefixed("model", of_network(model, name))
    task = "rebuild" if model["kind"] == "autoencoder" else "classify"
    if cell["task"] != task:
        yield "task", f"expected {task} for a network of kind {model['kind']}, got {cell['task']}."
    for key, asked, there in (
        ("images and validation", cell["images"] + cell["validation"], data.train),
        ("test_images", cell["test_images"], data.test),
    ):
        if asked > there:
            yield key, f"expected at most {there} of {name}, got {asked}."
    yield from _of_batch(model, cell["images"], cell["batch"])
    how = cell["rescaling"]
    if how.get("teleport") and how["part"] != "both":
        yield "rescaling.part", f"expected both with teleport, got {how['part']}."
    for way in ("enorm", "teleport"):
        if cell["optimiser"]["name"] == "muon" and how.get(way):
            yield (
                "optimiser.name",
                (
                    f"expected sgd or adam with {way}, got muon: it leaves what is no matrix to adam, "
                    "and the averages of two cannot follow a rescaling."
                ),
            )


def of_network(model: Json, dataset: str) -> Iterator[Mistake]:
    """Where a network cannot take the images of a data set, or tell its classes apart."""
    data = DATASETS[dataset]
    if "inputs" in model:
        side = math.isqrt(model["inputs"] // data.channels)
        if side > data.side or data.channels * side**2 != model["inputs"]:
            yield (
                "inputs",
                (
                    f"expected {data.channels} x s x s, where s is at most {data.side}, the side of the images of "
                    f"{dataset}, got {model['inputs']}."
                ),
            )
    elif data.channels != 3:
        yield "kind", f"expected mlp or autoencoder for the grey images of {dataset}, got {model['kind']}."
    elif model["image"] > data.side:
        yield "image", f"expected at most {data.side}, the side of the images of {dataset}, got {model['image']}."
    if model.get("outputs", data.classes) != data.classes:
        yield "outputs", f"expected {data.classes}, the classes of {dataset}, got {model['outputs']}."
    if "compression" in model and model["inputs"] < model["compression"] ** 2:
        most = math.isqrt(model["inputs"])
        yield (
            "compression",
            (
                f"expected at most {most}, which leaves one of {model['inputs']} // compression^2 units, "
                f"got {model['compression']}."
            ),
        )


def of_item(item: str, settings: Json) -> Iterator[Mistake]:
    """What does not go together in the settings of a measurement whose blocks are right."""
    if item == "toy":
        starts = [("starts", start) for start in settings["starts"]] + [("slower_start", settings["slower_start"])]
        for where, (u, v, w) in starts:
            if u <= 0 or v == w == 0:
                yield where, f"expected u, v, w with u > 0 and v or w not 0, got {[u, v, w]}."
    elif item == "theory":
        for name, case in settings["cases"].items():
            yield from _prefixed(f"cases.{name}", _of_case(case))
    elif item == "regimes" and settings["neurons"] < settings["hidden_layers"]:
        yield "neurons", f"expected at least one a layer ({settings['hidden_layers']})."
    elif item == "timing_depth":
        yield from of_timed({"kind": "mlp", **settings}, settings)
    elif item == "timing" and "model" in settings:
        for where, text in of_timed(settings["model"], settings):
            yield where if where == "batch" else f"model.{where}", text


def of_timed(model: Json, settings: Json) -> Iterator[Mistake]:
    """What does not go together where the training of a network is timed."""
    yield from of_network(model, settings["dataset"])
    yield from _of_batch(model, DATASETS[settings["dataset"]].train, settings["batch"])


def _of_case(case: Json) -> Iterator[Mistake]:
    if ("a" in case) == ("variances" in case):
        yield "", "expected either a or variances."
    elif "variances" in case and len(case["variances"]) != len(case["widths"]) - 1:
        got, need = len(case["variances"]), len(case["widths"]) - 1
        yield "variances", f"expected {need}, one a layer, got {got}."


def _of_batch(model: Json, images: int, batch: int) -> Iterator[Mistake]:
    if model["kind"] != "autoencoder" and model.get("batchnorm", True) and (images % batch or batch) == 1:
        yield (
            "batch",
            (
                f"{images} images leave a last batch of one, which BatchNorm cannot take. "
                "Take one image more or fewer, or other batches."
            ),
        )


def _prefixed(prefix: str, found: Iterator[Mistake]) -> Iterator[Mistake]:
    return ((f"{prefix}.{where}".rstrip("."), text) for where, text in found)
