"""Scales together with the graph that they belong to, and files of them."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from pathcond.checks import PathCondError, PathCondWarning, optional_package
from pathcond.graph import ExactFor, ParamScales, ScaleGraph


@dataclass(frozen=True)
class Scales:
    """Scales of a model's units, to be applied to it or to a model with the same parameters.

    Attributes:
        graph: the units, and the parameters that enter and leave them.
        log_scales: log lambda, shape (units,).
    """

    graph: ScaleGraph
    log_scales: Tensor

    def by_module(self) -> dict[str, Tensor]:
        """Lambda by module name, shape (channels,) each; 1 where a channel keeps its scale."""
        return {name: log.exp() for name, log in self.graph.by_module(self.log_scales).items()}

    def save(self, path: str | Path) -> None:
        """Write the scales to a safetensors file; :func:`load_scales` reads it."""
        save_file = optional_package("safetensors.torch", "saved scales").save_file
        tensors = {"log_scales": self.log_scales.detach().double().cpu()}
        for name, scales in self.graph.params.items():
            tensors[f"row/{name}"], tensors[f"col/{name}"] = scales.row, scales.col
        tensors |= {f"module/{name}": units for name, units in self.graph.layers.items()}
        names = ("shapes", "groups", "options", "notes", "signature", "chain")
        facts = {name: getattr(self.graph, name) for name in names} | {
            "exact_for": asdict(self.graph.exact_for),
            "params": {name: [scales.offset, scales.bias] for name, scales in self.graph.params.items()},
            "arguments": _encoded(self.graph.arguments),
        }
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        try:
            contiguous = {name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
            save_file(contiguous, partial, metadata={"pathcond": json.dumps(facts)})
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def load_scales(path: str | Path) -> Scales:
    """Read scales that ``report.save(path)`` wrote; apply them with :func:`apply_scales_`.

    Raises:
        PathCondError: the file does not exist, or ``save`` did not write it.
    """
    safetensors = optional_package("safetensors", "saved scales")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["pathcond"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise PathCondError(
            f"expected scales that report.save wrote at '{path}', got {type(error).__name__}: {error}."
        ) from error
    log_scales, shown = tensors["log_scales"], facts["exact_for"]
    if facts["arguments"] is None:
        text = "the arguments of the example could not be saved, so that the operations of models are not compared"
        warnings.warn(f"'{path}': {text}.", PathCondWarning, stacklevel=2)
    graph = ScaleGraph(
        units=len(log_scales),
        layers={n.removeprefix("module/"): t for n, t in tensors.items() if n.startswith("module/")},
        groups=tuple(facts["groups"]),
        params={n: ParamScales(tensors[f"row/{n}"], tensors[f"col/{n}"], *more) for n, more in facts["params"].items()},
        shapes={name: tuple(shape) for name, shape in facts["shapes"].items()},
        frozen=(),
        notes=tuple(facts["notes"]),
        exact_for=ExactFor(tuple(shown["modes"]), shown["inputs"], tuple(shown["sizes"]), tuple(shown["fixed"])),
        options=facts["options"],
        frozen_by_module={},
        trace=None,
        signature=facts["signature"],
        arguments=_decoded(facts["arguments"]),
        chain=facts["chain"],
    )
    return Scales(graph, log_scales)


def _encoded(arguments: Any) -> str | None:
    """Arguments as JSON, with the shapes and dtypes of tensors; None where it cannot hold them."""
    leaves, structure = tree_flatten(arguments)
    if any(isinstance(x, dict) for x in leaves):  # of a class that is no node of a tree
        return None
    places = {id(x): i for i, x in enumerate(leaves)}
    texts = [
        {"shape": list(x.shape), "dtype": str(x.dtype), "place": places[id(x)]} if isinstance(x, Tensor) else x
        for x in leaves
    ]
    try:
        return json.dumps([treespec_dumps(structure), texts])
    except (TypeError, ValueError, NotImplementedError):
        return None


def _decoded(text: str | None) -> Any:
    """The arguments, with tensors on the meta device; one that was given twice is one."""
    made: dict[Any, Tensor] = {}

    def tensor(facts: dict[str, Any]) -> Tensor:
        dtype = getattr(torch, facts["dtype"].removeprefix("torch."))
        return made.setdefault(facts.get("place", object()), torch.empty(facts["shape"], dtype=dtype, device="meta"))

    if text is None:
        return None
    structure, leaves = json.loads(text, object_hook=tensor)
    return tree_unflatten(leaves, treespec_loads(structure))
