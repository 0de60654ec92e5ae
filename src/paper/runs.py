"""Runs: their specs, and the keys and paths under which their results are.

A run is one seed of a training (task, network, method, learning rate) or one part of a measurement. Its spec holds
every setting that its numbers depend on. Its key is its path: readable fields, then a digest of the spec. So a run
exists once, every experiment that needs it reads the same numbers, and a changed setting gives a new key.
Neither torch nor pandas nor pydantic is imported here: the workflow reads this module each time it starts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper.cli import PaperError
from paper.methods import describe

TRAINING_VERSION = 1  # raised by hand when the numbers of training change; tests/paper/test_golden.py detects a change
Spec = dict[str, Any]

FULLY_CONNECTED = ("mlp", "autoencoder")
CONVOLUTIONAL = ("cifar_nv", "resnet18_c")
TASKS = {"autoencoder": "reconstruct", "gpt": "predict_next"}  # of kinds of networks that do not classify
# Optional settings of training: a spec has them only if they are given; without them training is the paper's.
OPTIONAL = ("schedule", "augmentation", "precision", "clip", "train_metrics", "seeding", "gain", "unequal")


# Specs and keys


def key(spec: Mapping[str, Any]) -> str:
    """The key of a run: stage, readable fields, and the digest of everything that its numbers depend on."""
    if spec["stage"] == "measure":
        return f"measure/{spec['experiment']}/{spec['part']}-{digest(spec)}"
    readable = f"{spec['task']}/{spec['network']}/{spec['method']}-lr{float(spec['lr']):g}-seed{spec['seed']}"
    return f"train/{readable}-{digest(spec)}"


def digest(value: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of a spec without its preset and rows; 1 and 1.0 are the same number."""
    content = {name: entry for name, entry in value.items() if name not in ("preset", "rows")}
    numbers = json.loads(json.dumps(content), parse_int=float)
    text = json.dumps(numbers, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def result_path(results: Path, spec: Mapping[str, Any]) -> Path:
    """The table of a run, below the folder that holds the presets' folders."""
    return results / spec["preset"] / f"{key(spec)}.csv"


def task(model: Mapping[str, Any]) -> str:
    """What a network is trained to do: classify images, reconstruct them, or predict the next character of a text."""
    return TASKS.get(model["kind"], "classify")


def training_specs(grid: Mapping[str, Any], preset: str, sweeps: int | None = None) -> Iterator[Spec]:
    """One spec per method, learning rate and seed of a training grid, a dictionary of :func:`paper.settings.grids`.

    `sweeps` is for methods that rescale by sweeps of coordinate descent; None: the method's own number.
    """
    model = grid["model"]
    optional = {name: grid[name] for name in OPTIONAL if grid.get(name) is not None}
    for method in grid["methods"]:
        rescaling = describe(method)
        if rescaling.get("rescale") and grid.get("clamp") is not None:
            rescaling = {**rescaling, "clamp": grid["clamp"]}
        if rescaling.get("solver") == "sweeps" and sweeps is not None:
            rescaling = {**rescaling, "sweeps": sweeps}
        for lr in grid["lrs"]:
            longer = (one["epochs"] for one in grid.get("longer", ()) if float(one["lr"]) == float(lr))
            epochs = next(longer, grid["epochs"])
            more = [one for one in grid.get("more_seeds", ()) if method in one["methods"]]
            added = [seed for one in more if lr in one.get("lrs", [lr]) for seed in one["seeds"]]
            for seed in dict.fromkeys([*grid["seeds"], *added]):
                yield {
                    "stage": "train",
                    "preset": preset,
                    "version": TRAINING_VERSION,
                    "task": task(model),
                    "network": grid["network"],
                    "model": model,
                    "method": method,
                    "rescaling": rescaling,
                    "optimiser": grid["optimiser"],
                    "lr": lr,
                    "epochs": epochs,
                    **{name: grid[name] for name in ("dataset", "images", "validation", "test_images", "batch")},
                    **optional,
                    "seed": seed,
                }


# Start weights and rescalings, which runs share


def start(spec: Mapping[str, Any]) -> Spec:
    """What identifies the start weights of a run: network, model and seed, and how it is used."""
    return {
        name: spec[name]
        for name in ("preset", "network", "model", "seed", "seeding", "gain", "unequal")
        if name in spec
    }


def start_path(results: Path, spec: Mapping[str, Any]) -> Path:
    """The start weights of a run, which all methods share."""
    name = f"seed{spec['seed']}-{digest(start(spec))}.safetensors"
    return results / spec["preset"] / "init" / spec["network"] / name


def scales_path(results: Path, spec: Mapping[str, Any]) -> Path:
    """The rescaling of a run's start weights, which all learning rates share."""
    name = f"seed{spec['seed']}-{digest({**start(spec), 'rescaling': spec['rescaling']})}.safetensors"
    return results / spec["preset"] / "rescale" / spec["network"] / spec["method"] / name


def has_scales(spec: Mapping[str, Any]) -> bool:
    """Whether the rescaling of a run's start weights can be saved ahead: it needs no images."""
    return bool(spec["rescaling"].get("rescale")) and spec["rescaling"].get("statistics") != "input"


def family(spec: Mapping[str, Any]) -> str:
    """Networks whose start weights, and rescalings, one job computes: kind and activation."""
    activation = spec["model"].get("activation", "relu")
    return spec["model"]["kind"] + ("" if activation == "relu" else f"_{activation}")


# Specs on a command line


def read_specs(texts: Sequence[str], stage: str, match: str = "") -> list[Spec]:
    """Specs of a stage from a command line: JSON text or files, of one spec or a list.

    Specs of the other stage, and those whose key does not contain `match`, are skipped.
    """
    if not texts:
        raise PaperError("SPEC: expected a file of specs, got none. `make specs` writes one.")
    specs = [spec for text in texts for spec in _read(text) if spec["stage"] == stage]
    if not specs:
        found = f"expected runs to {stage}, got none. `make specs` writes those of both stages."
        raise PaperError(f"{texts[0]:.60}: {found}")
    found = [spec for spec in specs if match in key(spec)]
    if match and not found:
        raise PaperError(f"--match: expected part of a key of the {len(specs)} {stage} runs given, got {match!r}.")
    return found


def _read(text: str) -> Iterator[Spec]:
    try:
        content = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except OSError as error:
        raise PaperError(f"cannot read the specs {text:.200}: {error.strerror}. `make specs` writes them.") from error
    except ValueError as error:
        raise PaperError(f"{text[:60]}: expected JSON, got something else ({error}).") from error
    for spec in content if isinstance(content, list) else [content]:
        try:
            found = _SPECS[spec["stage"]] <= spec.keys() and _KEY.fullmatch(f"{spec['preset']}/{key(spec)}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            found = None
        if not found:
            raise PaperError(f"{text[:60]}: expected specs as `make specs` writes them, got {spec!r:.200}.")
        if spec["stage"] == "train" and spec["version"] != TRAINING_VERSION:
            got = f"expected version {TRAINING_VERSION} of this code, got {spec['version']}"
            raise PaperError(f"{key(spec):.120}: {got}. Write the specs again (`make specs`).")
        yield spec


# What a spec has at least, by stage; their values were checked when the configuration was read. Keys are paths.
_SPECS = {
    "train": {"preset", "version", "task", "network", "model", "method", "rescaling", "optimiser", "lr", "epochs",
              "dataset", "images", "validation", "test_images", "batch", "seed"},
    "measure": {"preset", "version", "experiment", "part", "settings"},
}  # fmt: skip
_KEY = re.compile(r"(?!.*\.\.)[a-z0-9_]+(/[a-z0-9_.+-]+)+")
