"""Modules that are imported at their first use: `from paper.lazy import pd, torch`.

The workflow reads every experiment each time it starts, and torch, pandas and matplotlib take seconds to import. Where
annotations name these modules, the file begins with `from __future__ import annotations`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import scipy.special
    import scipy.stats
    import seaborn as sns
    import torch
    import torchvision.datasets
    from torch import nn
    from torch.nn import functional

    import pathcond
    from paper import data, models, plotting, starts, theory
else:

    class _Module:
        def __init__(self, name: str) -> None:
            self.__name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self.__name), attribute)

    np, pd, scipy, sns = map(_Module, ("numpy", "pandas", "scipy", "seaborn"))
    torch, nn, functional = map(_Module, ("torch", "torch.nn", "torch.nn.functional"))
    torchvision, pathcond, data, models = map(_Module, ("torchvision", "pathcond", "paper.data", "paper.models"))
    plotting, starts, theory = map(_Module, ("paper.plotting", "paper.starts", "paper.theory"))

__all__ = [
    "data", "functional", "models", "nn", "np", "pathcond", "pd", "plotting", "scipy", "sns", "starts",
    "theory", "torch", "torchvision",
]  # fmt: skip
