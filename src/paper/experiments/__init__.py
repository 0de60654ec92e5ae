"""Experiments of the paper, one module each: settings, measurement or training grid, table, plot, claims, caption.

Every module of this package with an `EXPERIMENT` is found by itself; there is no list to edit.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper.cli import PaperError
from paper.experiments.base import Experiment, order
from paper.lazy import pd, torch

_OTHERS = ("base", "__main__")


def _found() -> dict[str, Experiment]:
    experiments = []
    for module in pkgutil.iter_modules(__path__):
        if module.name in _OTHERS:
            continue
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        experiment = getattr(loaded, "EXPERIMENT", None)
        if not isinstance(experiment, Experiment) or experiment.name != module.name:
            expected = f"EXPERIMENT, an Experiment named {module.name!r}"
            raise ImportError(f"{loaded.__file__}: expected {expected}, got {experiment!r:.60}.")
        experiments.append(experiment)
    return {experiment.name: experiment for experiment in sorted(experiments, key=order)}


EXPERIMENTS: dict[str, Experiment] = _found()


def measured(spec: Mapping[str, Any], device: torch.device, data: Path | None = None) -> pd.DataFrame:
    """The table of a measurement on a device; `data` is the folder of the data sets, for settings that name one."""
    name, settings = spec["experiment"], {**spec["settings"], **spec.get("rows", {})}
    experiment = EXPERIMENTS.get(name)
    if experiment is None or experiment.measure is None or spec["version"] != experiment.version:
        expected, got = "a measured experiment at the version of this code", f"{name} {spec['version']}"
        raise PaperError(f"specs: expected {expected}, got {got}. Write them again (`make specs`).")
    if "dataset" in settings and data is not None:
        settings["data"] = data / f"{settings['dataset']}.pt"
    return experiment.measure(settings, device)
