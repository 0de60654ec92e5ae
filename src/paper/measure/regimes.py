"""How far PathCond rescales networks whose widths are uneven, and whose weights are small, at initialisation."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

import pathcond
from paper.errors import PaperError
from paper.seeds import generator, seeded

COLUMNS = ["variance", "alpha", "seed", "max_log_scale", "printed_root_fails", "widths"]


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Draw widths for every seed and alpha, and rescale the network at every variance.

    At one seed and alpha all variances share the widths and, up to their size, the weights; biases are drawn like
    weights, with one variance for all layers.

    Args:
        settings: hidden_layers, neurons, inputs, outputs, variances, log10_alpha (first, last, count), sweeps, seeds.
        device: not used: on a CPU this is fastest, and the same everywhere.

    Returns:
        One row a network: variance, alpha, seed, max_log_scale (largest |log lambda| = |u| / 2), printed_root_fails
        (see :func:`printed_root_fails`), widths of the hidden layers joined by hyphens.
    """
    span = settings["log10_alpha"]
    alphas = torch.logspace(span["first"], span["last"], span["count"], dtype=torch.float64).tolist()
    example = torch.ones(1, settings["inputs"], dtype=torch.float64)
    rows = []
    for seed in settings["seeds"]:
        for alpha in alphas:
            hidden = hidden_widths(settings["hidden_layers"], settings["neurons"], alpha, seed)
            model = _network([settings["inputs"], *hidden, settings["outputs"]])
            graph = pathcond.extract_graph(model, example)
            normal = _normal(model, generator(seed, "init", f"{alpha:.6g}"))
            for variance in settings["variances"]:
                _fill(model, normal, variance)
                g = pathcond.path_magnitudes(model, example, graph=graph)
                u = pathcond.solve(graph, g, sweeps=settings["sweeps"]).u
                fails, text = printed_root_fails(graph, g), "-".join(map(str, hidden))
                rows.append((variance, alpha, seed, float(u.abs().max()) / 2.0, fails, text))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["variance", "alpha", "seed"], ignore_index=True)


def hidden_widths(layers: int, neurons: int, alpha: float, seed: int) -> list[int]:
    """Widths of the hidden layers: one neuron each, the rest by shares from a symmetric Dirichlet distribution."""
    if neurons < layers:
        raise PaperError(
            f"regimes: expected at least one neuron a layer, got {neurons} neurons for {layers} layers. "
            "Raise `neurons` or lower `hidden_layers` of `regimes` in config.yaml."
        )
    with seeded(seed, "widths", f"{alpha:.6g}"):
        shares = torch.distributions.Dirichlet(torch.full((layers,), alpha, dtype=torch.float64)).sample()
    return [1 + extra for extra in largest_remainder(shares, neurons - layers)]


def largest_remainder(shares: Tensor, total: int) -> list[int]:
    """Whole numbers near `shares * total` (shares sum to 1) with exactly that total: the largest fractions round up."""
    quotas = shares * total
    counts = quotas.floor().long()
    order = (quotas - counts).argsort(descending=True, stable=True)
    counts[order[: total - int(counts.sum())]] += 1
    return counts.tolist()


def printed_root_fails(graph: pathcond.ScaleGraph, g: Mapping[str, Tensor]) -> bool:
    """Whether the root of some unit's first update, computed as printed in the paper, is not positive in float64.

    The positive root of b (a + p) x^2 + a d x + c (a - p) is printed as (-a d + sqrt(..)) / (2 b (a + p)), which
    cancels where a d > 0; p parameters, a of them more enter the unit than leave it, b, c and d: the sums of g of those
    that leave it, enter it, and do neither.
    """
    entering, leaving, balance = torch.zeros(3, graph.units + 1, dtype=torch.float64)
    size = sum(values.numel() for values in g.values())
    for name, units in graph.params.items():
        values = g[name].reshape(-1)
        for sums, index, sign in ((entering, units.row, 1.0), (leaving, units.col, -1.0)):
            index = index.expand(g[name].shape).reshape(-1)
            sums.index_add_(0, index, values)
            balance.index_add_(0, index, torch.full_like(values, sign))
    total = sum(float(values.sum()) for values in g.values())
    a, b, c = balance[1:], leaving[1:], entering[1:]
    linear = a * (total - b - c)
    root = (-linear + (linear**2 - 4.0 * b * (a + size) * c * (a - size)).sqrt()) / (2.0 * b * (a + size))
    return bool((root <= 0).any())


def _network(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them, in float64, not yet filled; all have a bias but the last."""
    shapes = list(pairwise(widths))
    layers: list[nn.Module] = []
    for number, (n_in, n_out) in enumerate(shapes, start=1):
        linear = skip_init(nn.Linear, n_in, n_out, bias=number < len(shapes), dtype=torch.float64)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _normal(model: nn.Module, stream: torch.Generator) -> list[Tensor]:
    """Standard normal numbers for every parameter, in order."""
    return [torch.randn(p.shape, generator=stream, dtype=p.dtype) for p in model.parameters()]


@torch.no_grad()
def _fill(model: nn.Module, normal: Sequence[Tensor], variance: float) -> None:
    for parameter, numbers in zip(model.parameters(), normal, strict=True):
        parameter.copy_(numbers * variance**0.5)
