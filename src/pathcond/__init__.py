"""Path-conditioned rescaling of ReLU networks: one call rescales a PyTorch model and keeps its function.

>>> import torch, pathcond
>>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> print(pathcond.rescale_(model, torch.ones(1, 3)))  # doctest: +ELLIPSIS
rescaled 8 of 8 units (0 channels frozen), ...
"""

from importlib.metadata import PackageNotFoundError, version

from pathcond.apply import apply_scales_
from pathcond.checks import ApplyError, PathCondError, PathCondWarning, RecordError, SolveError, UnsupportedOpError
from pathcond.diag_g import DiagG, compute_diag_g
from pathcond.graph import ExactFor, Frozen, ParamScales, ScaleGraph, extract_graph
from pathcond.groups import (
    MappingCheck,
    ParamSlice,
    ScaleGroup,
    ScaleGroups,
    groups_to_awq_mappings,
    groups_to_cle_pairs,
    scale_groups,
    verify_mapping,
)
from pathcond.inputs import Inputs
from pathcond.rescale import Rescaling, rescale_
from pathcond.rules import register_rule
from pathcond.rules.base import ScalePropagation
from pathcond.rules.paths import PathSums
from pathcond.saved_scales import Scales, load_scales
from pathcond.solvers import Result, Solution, solve
from pathcond.teleport import Teleport

try:
    __version__ = version("pathcond")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+source"

__all__ = [
    "ApplyError",
    "DiagG",
    "ExactFor",
    "Frozen",
    "Inputs",
    "MappingCheck",
    "ParamScales",
    "ParamSlice",
    "PathCondError",
    "PathCondWarning",
    "PathSums",
    "RecordError",
    "Rescaling",
    "Result",
    "ScaleGraph",
    "ScaleGroup",
    "ScaleGroups",
    "ScalePropagation",
    "Scales",
    "Solution",
    "SolveError",
    "Teleport",
    "UnsupportedOpError",
    "apply_scales_",
    "compute_diag_g",
    "extract_graph",
    "groups_to_awq_mappings",
    "groups_to_cle_pairs",
    "load_scales",
    "register_rule",
    "rescale_",
    "scale_groups",
    "solve",
    "verify_mapping",
]
