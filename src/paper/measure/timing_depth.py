"""Wall time of the rescaling and of one epoch of training, for MLPs of several depths."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from paper.measure.timing import PRECISION as PRECISION
from paper.measure.timing import Bench, load, repeats


def measure(settings: Mapping[str, Any], device: torch.device, data: Path) -> pd.DataFrame:
    """One row a depth, repeat and step, as in :mod:`paper.measure.timing`; repeats go through all depths in turn.

    Args:
        settings: ``hidden_layers``, ``inputs``, ``width``, ``outputs``, ``dataset``, ``batch``, ``batches`` (at most,
            of an epoch), ``sweeps``, ``warmup``, ``repeats``.
        device: what is timed.
        data: the data set's file.

    Returns:
        Columns hidden_layers, parameters, repeat, step, seconds, batches, epoch_batches, hardware.
    """
    images = load(settings["dataset"], data, device)
    benches = {
        depth: Bench(_model(settings, depth), images, settings["batch"], settings["batches"])
        for depth in settings["hidden_layers"]
    }
    rows: list[dict[str, Any]] = []
    for repeat in repeats(settings):
        for depth, bench in benches.items():
            seconds = bench.rescaling("exact", settings["sweeps"]) | {"epoch": bench.epoch(repeat)}
            names = {"hidden_layers": depth, "repeat": repeat} | bench.facts
            rows += [names | {"step": step, "seconds": value} for step, value in seconds.items()]
    table = pd.DataFrame([row for row in rows if row["repeat"] >= 0])
    last = ["batches", "epoch_batches", "hardware"]
    return table.reindex(columns=["hidden_layers", "parameters", "repeat", "step", "seconds", *last])


def _model(settings: Mapping[str, Any], depth: int) -> dict[str, Any]:
    sizes = {name: settings[name] for name in ("inputs", "outputs")}
    return {"kind": "mlp", "hidden": [settings["width"]] * depth, **sizes}
