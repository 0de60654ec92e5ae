"""Which parameters of a model are weights, which are biases, and which weights make the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from pathcond.checks import shared_memory
from pathcond.graph import ScaleGraph
from pathcond.rules import TABLE
from pathcond.tracing import Ref, Trace, record, refs

_FACTORS = {"mul": ("input", "other"), "matmul": ("input", "other"), "addmm": ("mat1", "mat2")}
_VIEWS = ("same", "cast", "reshape", "move")
_NORMS = ("batch_norm", "group_norm", "layer_norm", "rms_norm")


@dataclass(frozen=True)
class Roles:
    """Names in the graph: ``weights`` in network order, those of output layers (``last``), and ``biases``."""

    weights: tuple[str, ...]
    last: frozenset[str]
    biases: frozenset[str]


def roles_of(model: nn.Module, example_input: Any, graph: ScaleGraph) -> Roles:
    """Which parameters of a graph are weights, and which are biases."""
    alias = shared_memory(model)[0]
    traces = [graph.trace_of(model, example_input)]
    seen = {value.leaf.name for value in traces[0].values if value.leaf is not None}
    if graph.params.keys() - seen:
        traces.append(record(model, example_input, training=True))  # auxiliary heads run in training mode only
    order: dict[str, None] = {}
    last: set[str] = set()
    for trace in traces:
        last |= _follow(trace, alias, graph, order)
    biases = frozenset(name for name in graph.params if name not in order)
    return Roles(tuple(name for name in order if name in graph.params), frozenset(last & graph.params.keys()), biases)


def _follow(trace: Trace, alias: Mapping[str, str], graph: ScaleGraph, order: dict[str, None]) -> frozenset[str]:
    """Add to ``order`` the parameters that multiply data; return those without another one before an output."""
    names = {
        index: alias.get(value.leaf.name, value.leaf.name)
        for index, value in enumerate(trace.values)
        if value.leaf is not None and value.leaf.kind == "param"
    }
    latest: dict[int, frozenset[str]] = {}
    for call in trace.calls:
        op, used = TABLE.get(call.fn), [ref.id for ref in refs([*call.args, call.kwargs])]
        kind, arguments = (op.kind, op.bind(call.args, call.kwargs)) if op else ("", {})
        if kind in _VIEWS and len(used) == 1 and used[0] in names:
            names.update(dict.fromkeys(call.outs, names[used[0]]))
            continue
        given = [arguments.get(key) for key in (_FACTORS.get(kind, ("weight",)) if kind != "prelu" else ())]
        factors = [names[x.id] for x in given if isinstance(x, Ref) and x.id in names]
        order.update(dict.fromkeys(factors))
        made = frozenset[str]().union(*(latest.get(value, ()) for value in used))
        if factors and kind not in _NORMS and (kind != "mul" or any(name in graph.params for name in factors)):
            made = frozenset(factors)
        latest.update(dict.fromkeys(call.outs, made))
    return frozenset[str]().union(*(latest.get(value, ()) for value in trace.outputs))
