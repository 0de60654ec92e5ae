"""Number of paths of a network."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import nn

from pathcond.diag_g import path_total


def count_paths(model: nn.Module, example_input: Any, *, pooling: Literal["paper", "all"] = "paper") -> float:
    """Number of paths from inputs and biases to outputs, from one forward pass on ones with all parameters 1.

    Args:
        model: the model, in eval mode.
        example_input: gives the shapes; use a batch of one.
        pooling: ``paper``: a max-pool takes the maximum and an average pool the mean, which gives the paper's table.
            ``all``: a pool counts each of its inputs, which gives the true number of paths.
    """
    total = path_total(model, example_input, "plain" if pooling == "paper" else "all")
    return math.ldexp(float(total.t), round(total.log / math.log(2)))
