"""Which parameters of a model are weights: they multiply data, while biases are added to it."""

from __future__ import annotations

from typing import Any

from torch import nn

from pathcond.checks import shared_memory
from pathcond.graph import ScaleGraph
from pathcond.rules import TABLE
from pathcond.tracing import Ref, record, refs

_FACTORS = {"mul": ("input", "other"), "matmul": ("input", "other"), "addmm": ("mat1", "mat2"), "prelu": ()}
_VIEWS = ("same", "cast", "reshape", "move")


def weights_of(model: nn.Module, example_input: Any, graph: ScaleGraph) -> list[str]:
    """Names of the weights among the parameters of a graph, in network order."""
    alias = shared_memory(model)[0]
    traces = [graph.trace_of(model, example_input)]
    seen = {value.leaf.name for value in traces[0].values if value.leaf is not None}
    if graph.params.keys() - seen:
        traces.append(record(model, example_input, training=True))  # auxiliary heads run in training mode only
    found: dict[str, None] = {}
    for trace in traces:
        names = {
            index: alias.get(value.leaf.name, value.leaf.name)
            for index, value in enumerate(trace.values)
            if value.leaf is not None and value.leaf.kind == "param"
        }
        for call in trace.calls:
            operation, used = TABLE.get(call.fn), [ref.id for ref in refs([*call.args, call.kwargs])]
            if operation is None:
                continue
            if operation.kind in _VIEWS and len(used) == 1 and used[0] in names:
                names.update(dict.fromkeys(call.outs, names[used[0]]))
                continue
            arguments = operation.bind(call.args, call.kwargs)
            given = [arguments.get(key) for key in _FACTORS.get(operation.kind, ("weight",))]
            found.update((names[x.id], None) for x in given if isinstance(x, Ref) and x.id in names)
    return [name for name in found if name in graph.params]
