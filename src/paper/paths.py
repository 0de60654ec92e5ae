"""Number of paths of a network."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import nn

import pathcond


class _Weighted(nn.Module):
    """A model whose output is multiplied by one weight, which lies on every path."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.weight = model, nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return self.model(x) * self.weight


def count_paths(model: nn.Module, example_input: Any, *, pooling: Literal["paper", "all"] = "paper") -> float:
    """Number of paths from inputs and biases to outputs: the path norm with all parameters 1.

    Args:
        model: the model, in eval mode.
        example_input: gives the shapes; use a batch of one.
        pooling: ``paper``: a max-pool takes the maximum and an average pool the mean, which gives the paper's table.
            ``all``: a pool counts each of its inputs, which gives the true number of paths.
    """
    weighted = _Weighted(copy.deepcopy(model)).double().eval()
    for name, statistic in weighted.named_buffers():  # of BatchNorms, which are the identity
        if name.endswith(("running_mean", "running_var")):
            statistic.fill_(0.0 if name.endswith("mean") else 1.0 - 1e-5)
    with torch.no_grad():
        for p in weighted.parameters():
            p.fill_(1.0)
    g = pathcond.compute_diag_g(weighted, example_input.double(), pooling="all" if pooling == "all" else "plain")
    return float(g["weight"])
