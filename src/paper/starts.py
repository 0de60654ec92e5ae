"""Start weights of networks and their rescalings, saved once and read by every run that needs them.

`init` saves start weights by network and seed; `rescale` saves log-scales, the objective per sweep, residual and time.

A file that exists is not computed again. If a file is missing, training computes the same numbers itself.
"""

import copy
import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

import pathcond
from paper import cli, models, results, runs
from paper.cli import PaperError
from paper.methods import solver_options
from paper.seeds import generator
from pathcond import ScaleGraph, Solution


def network(spec: Mapping[str, Any], folder: Path | None = None) -> nn.Module:
    """The network a run starts from, before any rescaling; saved weights are read from the `folder` of the results."""
    path = None if folder is None else runs.start_path(folder, spec)
    if path is None or not path.exists():
        module = models.make(spec["model"], spec["seed"], seeding=spec.get("seeding"))
        for p in module.parameters() if spec.get("gain") else ():
            p.data.mul_(spec["gain"])
        if spec.get("unequal"):
            _make_unequal(module, spec)
        return module
    module = models.build(spec["model"])
    module.load_state_dict(_read(path)[0])
    return module


def _make_unequal(module: nn.Module, spec: Mapping[str, Any]) -> None:
    """Multiply each unit by exp(sigma z), z normal, where sigma is `unequal`; the function stays the same."""
    graph = pathcond.extract_graph(module, models.example_input(spec["model"]))
    drawn = torch.randn(graph.units, dtype=torch.float64, generator=generator(spec["seed"], "unequal"))
    pathcond.apply_scales_(module, graph, spec["unequal"] * drawn)


def log_scales(
    spec: Mapping[str, Any], module: nn.Module, folder: Path | None = None, batch: Tensor | None = None
) -> tuple[Any, dict[str, Tensor], dict[str, str]]:
    """The scale graph of a run's network, and its rescaling: u, objective, mean_update; residual, seconds, result.

    A saved solution is read from the `folder` of the results. A method that measures statistics of normalizations needs
    a batch of images on the device of the network.
    """
    how, measured = spec["rescaling"], spec["rescaling"].get("statistics") == "input"
    if measured and batch is None:
        raise ValueError(f"{runs.key(spec)}: expected a batch to measure the statistics of normalizations on")
    x = batch if measured else models.example_input(spec["model"])
    graph = _graph(module, x, how)
    path = None if folder is None or measured else runs.scales_path(folder, spec)
    if path is not None and path.exists():
        return graph, *_read(path)
    began = time.perf_counter()
    u, solution = _solved(graph, module, x, how)
    tensors = {
        "u": u,
        "objective": torch.tensor(solution.objective, dtype=torch.float64),
        "mean_update": 2 * torch.tensor(solution.mean_update, dtype=torch.float64),
    }
    seconds = f"{time.perf_counter() - began:.4f}"
    return graph, tensors, {"residual": repr(solution.residual), "seconds": seconds, "result": solution.result.value}


def _graph(module: nn.Module, x: Any, how: Mapping[str, Any]) -> ScaleGraph:
    # Smooth activations let scales pass in the paper's methods; for ReLU the option changes nothing.
    return pathcond.extract_graph(module, x, batchnorm=how["batchnorm"], smooth=how.get("smooth", True))


def _solved(graph: ScaleGraph, module: nn.Module, x: Any, how: Mapping[str, Any]) -> tuple[Tensor, Solution]:
    """The damped u = 2 log lambda of a method's settings, and the solution before damping."""
    if how.get("objective") == "norms":
        options: Any = {"objective": "norms", "clamp": how.get("bound"), "damping": 1.0, "check": False}
        solution = pathcond.rescale_(copy.deepcopy(module), x, graph=graph, **options).solution
    else:
        options = {"pooling": how["pooling"], "statistics": how.get("statistics", "running")}
        g = pathcond.compute_diag_g(module, x, graph=graph, smooth=how.get("smooth", True), **options)
        solution = pathcond.solve(graph, g, **solver_options(how))
    return 2 * how.get("damping", 1.0) * solution.log_scales, solution


@dataclass(frozen=True)
class InitialNetwork:
    """An initial network."""

    module: nn.Module
    max_log_scale: float  # the largest abs(log lambda) of its rescaling, 0 without one
    lr_factors: Mapping[str, float] = field(default_factory=dict)  # by parameter, of a method that changes rates
    seconds: float = 0.0  # wall time of the rescaling


def initialize(
    spec: Mapping[str, Any], seed: int, folder: Path | None = None, batch: Tensor | None = None
) -> InitialNetwork:
    """The initial network of a run; before rescaling, all methods have the same weights at one seed.

    Start weights and rescalings saved in the folder of the results are read instead of computed. Methods that measure
    statistics need a batch of images as the network takes them; the network moves to their device.
    """
    spec = {**spec, "seed": seed}
    module = network(spec, folder)
    how = spec["rescaling"]
    if not how.get("rescale"):
        return InitialNetwork(module, 0.0)
    if how.get("statistics") == "input" and batch is not None:
        module = module.to(batch.device)
    began = time.perf_counter()
    graph, found, _ = log_scales(spec, module, folder, batch)
    u = found["u"]
    factors = lr_factors(graph, u) if how["part"] == "rates" else {}
    return InitialNetwork(module, _apply(module, graph, u, how["part"]), factors, time.perf_counter() - began)


def lr_factors(graph: ScaleGraph, u: Tensor) -> dict[str, float]:
    """Learning rates by parameter that imitate a rescaling.

    A step of plain SGD on a parameter multiplied by d is, in the parameter as it was, a step at 1 / d^2 times the
    learning rate. Each parameter tensor gets the geometric mean of that over its entries.
    """
    padded = graph.by_number(u).double()  # log d^2 is u of the row minus u of the column
    return {
        name: math.exp(float(padded[units.col].mean() - padded[units.row].mean()))
        for name, units in graph.params.items()
    }


def rescale(
    module: nn.Module, x: Tensor, rescaling: Mapping[str, Any], optimizer: torch.optim.Optimizer | None = None
) -> float:
    """Rescale a network in place by a method's settings, unless it diverged; returns the largest abs(log lambda).

    The state of the optimizer is rescaled with it, if there is one.
    """
    if not is_finite(module):
        return 0.0
    graph = _graph(module, x, rescaling)
    return _apply(module, graph, _solved(graph, module, x, rescaling)[0], rescaling["part"], optimizer)


def _apply(
    module: nn.Module, graph: ScaleGraph, u: Tensor, part: str, optimizer: torch.optim.Optimizer | None = None
) -> float:
    """Apply log-scales in place, unless they are for learning rates; returns the largest abs(log lambda)."""
    if part == "both":
        pathcond.apply_scales_(module, graph, u / 2, optimizer=optimizer)
    elif part != "rates":
        _apply_part(module, graph, u, part)
    return float(u.abs().max()) / 2 if len(u) else 0.0


def is_finite(module: nn.Module) -> bool:
    """Whether all parameters and buffers are finite; a network that diverged is not rescaled."""
    return all(bool(t.isfinite().all()) for t in module.state_dict().values())


def _apply_part(module: nn.Module, graph: ScaleGraph, u: Tensor, part: str) -> None:
    """Apply the incoming (rows) or outgoing (columns) scales alone, for the ablation study: the function changes."""
    scale = graph.by_number(u / 2).exp()
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, units in graph.params.items():
            factor = scale[units.row] if part == "rows" else scale[units.col].reciprocal()
            parameters[name].mul_(factor.to(parameters[name].dtype))


def save_start(spec: Mapping[str, Any], folder: Path, again: float = 0.0) -> Path:
    """Save the start weights of a run, if they are not saved yet, or were before the time `again`."""
    path = runs.start_path(folder, spec)
    if not _is_intact(path, again):
        _write(path, network(spec).state_dict(), {"spec": json.dumps(runs.start(spec), sort_keys=True)})
    return path


def save_scales(spec: Mapping[str, Any], folder: Path, again: float = 0.0) -> Path:
    """Save the rescaling of a run's start weights, if it is not saved yet, or was before the time `again`."""
    path = runs.scales_path(folder, spec)
    if not _is_intact(path, again):
        _, tensors, told = log_scales(spec, network(spec, folder))
        wanted = {**runs.start(spec), "rescaling": spec["rescaling"]}
        _write(path, tensors, {**told, "spec": json.dumps(wanted, sort_keys=True)})
    return path


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    facts = json.dumps({**metadata, "sha256": _sha256(tensors)}, sort_keys=True)
    results.write_bytes(path, save(tensors, {"facts": facts}))  # one entry: several are in random order


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file; a PaperError if it is damaged."""
    content = results.read_bytes(path)
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["facts"])
        intact = metadata["sha256"] == _sha256(tensors)
    except (SafetensorError, ValueError, KeyError):
        intact, tensors, metadata = False, {}, {}
    if not intact:
        raise PaperError(f"{path}: expected tensors with the checksum in its metadata. {results.RECOMPUTE}")
    return tensors, metadata


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def _is_intact(path: Path, again: float) -> bool:
    if not path.exists() or path.stat().st_mtime < again:
        return False
    try:
        _read(path)
    except PaperError as error:
        cli.say(str(error))
        return False
    return True
