"""The steps of a rescaling with all their options."""

from typing import Any

import pathcond

GRAPH = ("batchnorm", "smooth", "strict")
DIAG_G = ("pooling", "statistics", "dtype")


def rescale_by_steps(model: Any, x: Any, *, graph: Any = None, optimizer: Any = None, **options: Any) -> Any:
    """Extract, compute, solve and apply; each step gets its options. Returns the log-scales and how they were found."""
    of_graph = {name: options.pop(name) for name in GRAPH if name in options}
    of_diag_g = {name: options.pop(name) for name in DIAG_G if name in options}
    graph = pathcond.extract_graph(model, x, **of_graph) if graph is None else graph
    solution = pathcond.solve(graph, pathcond.compute_diag_g(model, x, graph=graph, **of_diag_g), **options)
    pathcond.apply_scales_(model, graph, solution.log_scales, optimizer=optimizer)
    return solution
