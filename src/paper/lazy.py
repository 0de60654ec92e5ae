"""Packages that are imported at their first use: `from paper.lazy import pd, torch`.

The workflow reads every experiment each time it starts, and these packages take seconds to import. Where annotations
name them, the file begins with `from __future__ import annotations`. Modules of this project are not listed here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib as mpl
    import matplotlib.ticker as ticker
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
else:

    class _Package:
        def __init__(self, name: str) -> None:
            self.__name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self.__name), attribute)

    np, pd, scipy, sns, mpl = map(_Package, ("numpy", "pandas", "scipy", "seaborn", "matplotlib"))
    torch, nn, functional = map(_Package, ("torch", "torch.nn", "torch.nn.functional"))
    torchvision, pathcond, ticker = map(_Package, ("torchvision", "pathcond", "matplotlib.ticker"))

__all__ = [
    "functional", "mpl", "nn", "np", "pathcond", "pd", "scipy", "sns", "ticker", "torch", "torchvision",
]  # fmt: skip
