"""Path-conditioned rescaling of ReLU networks: one call rescales a PyTorch model and keeps its function.

>>> import torch, pathcond
>>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> print(pathcond.rescale_(model, torch.ones(1, 3)))  # doctest: +ELLIPSIS
rescaled 8 units (0 frozen), ...
"""

from pathcond import theory
from pathcond.apply import apply_scales_
from pathcond.enorm import ENorm
from pathcond.errors import ApplyError, PathCondError, RecordError, SolveError, UnsupportedOpError
from pathcond.graph import Frozen, ParamScales, ScaleGraph, extract_graph
from pathcond.magnitude import PathMagnitudes, count_paths, path_magnitudes
from pathcond.ops import register_op
from pathcond.rescale import Rescaling, rescale_
from pathcond.solve import Result, Solution, solve
from pathcond.teleport import Teleport

__all__ = [
    "ApplyError",
    "ENorm",
    "Frozen",
    "ParamScales",
    "PathCondError",
    "PathMagnitudes",
    "RecordError",
    "Rescaling",
    "Result",
    "ScaleGraph",
    "Solution",
    "SolveError",
    "Teleport",
    "UnsupportedOpError",
    "apply_scales_",
    "count_paths",
    "extract_graph",
    "path_magnitudes",
    "register_op",
    "rescale_",
    "solve",
    "theory",
]
