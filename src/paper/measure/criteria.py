"""Criteria that other work minimises, on products of numbers: each along an orbit of rescalings, and where it is least.

Symbols of the paper and their names here:

    f(x) = u_L .. u_1 x     theta    numbers in the order the input meets them, shape (points, L); (v, u) for f = u v x
    Phi = u_1 .. u_L        phi      the loss is (Phi - target)^2 / 2
    lambda                           multiplies u_1 and divides u_2; the others stay at their balanced size
"""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from paper.errors import PaperError
from paper.seeds import generator

COLUMNS = ["example", "criterion", "seed", "log_scale", "value", "balanced", "minimiser"]
# The search looks at this many points, then between the neighbours of the least, and so on.
POINTS, ROUNDS = 41, 6

Criterion = Callable[[Tensor, float], Tensor]


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Every criterion along one random orbit a seed and length.

    Args:
        settings: target, lengths, grid, log_range, seeds.
        device: not used: on a CPU this is fastest, and the same everywhere.

    Returns:
        One row a point of the grid; `balanced` and `minimiser` are constant along an orbit. PathCond's objective F is
        given as exp(F / p) up to a factor, which makes it the arithmetic over the geometric mean of diag(G).

    Raises:
        PaperError: A criterion is least at the end of the range.
    """
    grid = torch.linspace(-1.0, 1.0, settings["grid"], dtype=torch.float64) * settings["log_range"]
    tables = []
    for length in settings["lengths"]:
        for seed in settings["seeds"]:
            start = _orbit(length, seed)
            for name, criterion in {**CRITERIA, **(WEIGHTED if length == 2 else {})}.items():

                def value(log_scales: Tensor, start: Tensor = start, criterion: Criterion = criterion) -> Tensor:
                    return criterion(_along(start, log_scales), settings["target"])

                columns = {"example": "uv" if length == 2 else f"chain{length}", "criterion": name, "seed": seed}
                columns |= {"log_scale": grid.tolist(), "value": value(grid).tolist()}
                columns |= {"balanced": float((start[1] / start[0]).abs().log()) / 2.0}
                tables.append(pd.DataFrame(columns | {"minimiser": least(value, grid, f"{name}, seed {seed}")}))
    return pd.concat(tables, ignore_index=True).reindex(columns=COLUMNS)


def least(function: Callable[[Tensor], Tensor], grid: Tensor, where: str) -> float:
    """The point where a function is least, searched on ever finer grids from that of shape (points,)."""
    if int(function(grid).argmin()) in (0, len(grid) - 1):
        raise PaperError(
            f"criteria: expected a minimum inside [{grid[0]:g}, {grid[-1]:g}], got it at the end ({where}). "
            "Raise `log_range` of `criteria` in config.yaml."
        )
    for _ in range(ROUNDS):
        # On the last grids values differ by rounding alone, and the least may be an end.
        index = min(max(int(function(grid).argmin()), 1), len(grid) - 2)
        grid = torch.linspace(float(grid[index - 1]), float(grid[index + 1]), POINTS, dtype=grid.dtype)
    return float(grid[POINTS // 2])


def _orbit(length: int, seed: int) -> Tensor:
    """Random numbers of any sign, those after the second at the size they have where all sizes are equal."""
    stream = generator(seed, "init", length)
    size = torch.exp(torch.randn(length, generator=stream, dtype=torch.float64) / 2.0)
    sign = torch.randint(0, 2, (length,), generator=stream) * 2 - 1
    even = size.log().mean().exp()
    ratio = (size[0] / size[1]).sqrt()
    return sign * torch.cat((torch.stack((even * ratio, even / ratio)), even.expand(length - 2)))


def _along(start: Tensor, log_scales: Tensor) -> Tensor:
    """Points of the orbit, shape (points, L)."""
    scale = log_scales.exp()
    factors = torch.ones(len(scale), len(start), dtype=start.dtype)
    factors[:, 0], factors[:, 1] = scale, 1.0 / scale
    return start * factors


def _phi_gradient(theta: Tensor) -> Tensor:
    return theta.prod(1, keepdim=True) / theta


def _loss_gradient(theta: Tensor, target: float) -> Tensor:
    return (theta.prod(1, keepdim=True) - target) * _phi_gradient(theta)


def _hessian(theta: Tensor, target: float) -> Tensor:
    """Second derivatives of the loss: outer product of grad Phi, and the residual times those of Phi."""
    slope = _phi_gradient(theta)
    phi = theta.prod(1)[:, None, None]
    second = phi / (theta[:, :, None] * theta[:, None, :]) * (1.0 - torch.eye(theta.shape[1]))
    return slope[:, :, None] * slope[:, None, :] + (phi - target) * second


def _spectrum(theta: Tensor, target: float) -> Tensor:
    return torch.linalg.eigvalsh(_hessian(theta, target)).abs()


def _condition(theta: Tensor, target: float) -> Tensor:
    spectrum = _spectrum(theta, target)
    return spectrum.amax(1) / spectrum.amin(1)


def _pathcond(theta: Tensor, target: float) -> Tensor:
    diagonal = _phi_gradient(theta) ** 2
    return diagonal.mean(1) / diagonal.log().mean(1).exp()


def _weighted(pairs: Tensor) -> Tensor:
    """The norm sqrt(x^2 + 4 y^2) of (u, v); pairs hold v first."""
    return (pairs[:, 1] ** 2 + 4.0 * pairs[:, 0] ** 2).sqrt()


CRITERIA: Mapping[str, Criterion] = {
    "theta_norm": lambda theta, target: theta.norm(dim=1),
    "inverse_norm": lambda theta, target: (1.0 / theta).norm(dim=1),
    "gradient_norm": lambda theta, target: _loss_gradient(theta, target).norm(dim=1),
    "hessian_trace": lambda theta, target: _hessian(theta, target).diagonal(dim1=1, dim2=2).sum(1),
    "hessian_norm": lambda theta, target: _spectrum(theta, target).amax(1),
    "condition": _condition,
    "pathcond": _pathcond,
}
# A norm that is not the same in both coordinates, for f = u v x: a counterexample to "for any norm".
WEIGHTED: Mapping[str, Criterion] = {
    "weighted_theta": lambda theta, target: _weighted(theta),
    "weighted_gradient": lambda theta, target: _weighted(_loss_gradient(theta, target)),
}
