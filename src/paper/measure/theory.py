"""Expected diag(G) of fully connected networks at initialisation: the formulas against random networks, layer by layer.

Symbols of the paper and their names here:

    n_0 .. n_L       widths       input, hidden layers, output
    sigma_k^2        variances    of a weight of layer k, and of its biases; a / n_k for a standard initialisation
    E[g_i]           formula      expected entry of diag(G), the same for all parameters of one kind in one layer
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

import pathcond
from paper.errors import PaperError
from paper.seeds import generator
from pathcond import theory

COLUMNS = [
    "case", "kind", "layer", "a", "formula", "monte_carlo", "standard_error", "z", "printed", "printed_name",
    "printed_z", "draws", "seed", "limit", "printed_off", "even_spread", "even_u", "parameters", "units", "rank",
]  # fmt: skip
Printed = Literal["expected_ak", "without_biases", "small_variance", "large_variance_widths", "small_variance_widths"]
# The formula the paper prints for the weights of a case, where it is not the right one in every layer.
PRINTED: dict[str, Printed] = {
    "constant_no_bias": "without_biases",
    "varying_no_bias": "without_biases",
    "small": "small_variance",
    "small_varying": "small_variance_widths",
    "large_varying": "large_variance_widths",
    "by_layer": "expected_ak",
}
# Names that state a leading term as a grows or falls; the others claim equality.
LIMITS = {
    "small_variance": theory.small_variance_limit,
    "small_variance_widths": theory.small_variance_limit,
    "large_variance_widths": theory.large_variance_limit,
}
# Networks drawn at once: keeps the working memory near 100 MB.
CHUNK = 10_000


@dataclass(frozen=True)
class Network:
    """Widths n_0 .. n_L, variances of the L layers, and whether all layers but the last have biases."""

    widths: Sequence[int]
    variances: Sequence[float]
    biases: bool


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Compare formula, print and random networks for every case, every `a` and every layer.

    Args:
        settings: draws, seeds and cases; a case has widths, biases, and `a` (a list) or `variances` (by layer).
        device: not used: on a CPU this is fastest, and the same everywhere.

    Returns:
        One row a case, `a`, seed, kind and layer, in the columns of the item `theory`, and more: `limit`, the right
        leading term where the printed formula is one, and `printed_off`, whether what is printed differs from it, or
        from the formula where equality is claimed: exact comparisons of formulas, free of noise. The others are those
        of :func:`even_network`.

    Raises:
        PaperError: A case has neither `a` nor `variances`, or both.
    """
    tables = []
    for case, block in settings["cases"].items():
        for a, network in _networks(case, block):
            for seed in settings["seeds"]:
                even = even_network(network.widths, generator(seed, "init", case, a, "even"))
                stream = generator(seed, "init", case, a)
                mean, error = monte_carlo(network, settings["draws"], stream)
                rows = _expected(case, a, network).assign(monte_carlo=mean, standard_error=error, seed=seed)
                tables.append(rows.assign(draws=settings["draws"], **even))
    table = pd.concat(tables, ignore_index=True)
    for name, formula in (("z", "formula"), ("printed_z", "printed")):
        table[name] = (table["monte_carlo"] - table[formula]) / table["standard_error"]
    return table.reindex(columns=COLUMNS)


def monte_carlo(network: Network, draws: int, stream: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean over networks of the average entry of diag(G) of each layer, with its standard error.

    Weights come first, then biases, in layer order: shapes (L,), or (2 L - 1,) with biases.
    """
    sizes = [min(CHUNK, draws - first) for first in range(0, draws, CHUNK)]
    entries = torch.cat([average_entries(*draw_squares(network, size, stream), network.biases) for size in sizes])
    return entries.mean(0).numpy(), (entries.std(0) / draws**0.5).numpy()


def even_network(widths: Sequence[int], stream: torch.Generator) -> dict[str, float | int]:
    """A network without biases whose weights have one size and random signs: diag(G) is constant if all widths are.

    Returns:
        even_spread (largest over least entry of diag(G), less 1), even_u (largest absolute u that PathCond finds),
        parameters, units, and rank (of the Jacobian of the path-lifting, hence of G).
    """
    layers = [skip_init(nn.Linear, n_in, n_out, bias=False, dtype=torch.float64) for n_in, n_out in pairwise(widths)]
    module = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]
    weights = tuple(module.parameters())
    for weight in weights:
        signs = torch.randint(0, 2, weight.shape, generator=stream, dtype=torch.float64)
        weight.data.copy_(0.5 * (2.0 * signs - 1.0))
    x = torch.ones(1, widths[0], dtype=torch.float64)
    graph, g = pathcond.extract_graph(module, x), pathcond.path_magnitudes(module, x)
    entries = torch.cat([values.reshape(-1) for values in g.values()])
    jacobian = torch.autograd.functional.jacobian(_paths, weights)
    columns = torch.cat([part.reshape(math.prod(widths), -1) for part in jacobian], 1)
    return {
        "even_spread": float(entries.max() / entries.min() - 1.0),
        "even_u": float(pathcond.solve(graph, g).u.abs().amax()),
        "parameters": columns.shape[1],
        "units": graph.units,
        "rank": int(torch.linalg.matrix_rank(columns)),
    }


def _paths(*weights: Tensor) -> Tensor:
    """Products of the weights along every path, shape (paths,)."""
    found = torch.ones(1, weights[0].shape[1], dtype=weights[0].dtype)
    for weight in weights:
        found = (found[:, :, None] * weight.T).reshape(-1, weight.shape[0])
    return found.reshape(-1)


def _networks(case: str, block: Mapping[str, Any]) -> list[tuple[float, Network]]:
    """The networks of a case, each with its `a`, which is NaN where variances are given by layer."""
    widths = block["widths"]
    if ("a" in block) == ("variances" in block):
        raise PaperError(
            f"theory: expected `a` or `variances` in case '{case}', got {', '.join(block)}. "
            "Give one of them under `theory: cases` in config.yaml."
        )
    if "variances" in block:
        return [(float("nan"), Network(widths, block["variances"], block["biases"]))]
    return [(a, Network(widths, [a / n for n in widths[:-1]], block["biases"])) for a in block["a"]]


def _expected(case: str, a: float, network: Network) -> pd.DataFrame:
    """Formula, limit and print by kind and layer."""
    if np.isnan(a):
        right = theory.expected_general(network.widths, network.variances, network.biases)
    else:
        right = theory.expected_standard(network.widths, a, network.biases)
    name = PRINTED.get(case)
    edges, biases = len(right.edge), len(right.bias)
    missing = (float("nan"),) * edges
    limit = LIMITS[name](network.widths, a).edge if name in LIMITS else missing
    printed = theory.printed_edges(name, network.widths, network.variances) if name else missing
    meant = limit if name in LIMITS else right.edge
    off = ~np.isclose(printed, meant, rtol=1e-9, atol=0.0) & ~np.isnan(printed)
    columns = {
        "case": case,
        "a": a,
        "kind": ["edge"] * edges + ["bias"] * biases,
        "layer": [*range(edges), *range(biases)],
        "formula": right.edge + right.bias,
        "limit": [*limit, *[np.nan] * biases],
        "printed": [*printed, *[np.nan] * biases],
        "printed_name": [name or ""] * edges + [""] * biases,
        "printed_off": [*off, *[False] * biases],
    }
    return pd.DataFrame(columns)


def draw_squares(network: Network, count: int, stream: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
    """Squared weights (count, n_{k+1}, n_k) of all layers and squared biases (count, n_{k+1}) of all but the last."""
    weights, biases = [], []
    for (n_in, n_out), variance in zip(pairwise(network.widths), network.variances, strict=True):
        normal = torch.randn(count, n_out, n_in + 1, generator=stream, dtype=torch.float64)
        squared = variance * normal**2
        weights.append(squared[..., :-1])
        biases.append(squared[..., -1] * network.biases)
    return weights, biases[:-1]


def average_entries(weights: Sequence[Tensor], biases: Sequence[Tensor], with_biases: bool) -> Tensor:
    """Average entry of diag(G) of each layer, shape (count, layers), weights first.

    The entry of a weight is the squared mass of the paths into its start times that of the paths out of its end, so
    the average over a layer is the product of two averages.
    """
    arriving = [weights[0].new_ones(weights[0].shape[0], weights[0].shape[2])]
    for weight, bias in zip(weights, biases, strict=False):
        arriving.append((weight * arriving[-1][:, None]).sum(2) + bias)
    leaving = [weights[-1].new_ones(weights[-1].shape[:2])]
    for weight in reversed(weights[1:]):
        leaving.insert(0, (weight * leaving[0][:, :, None]).sum(1))
    edges = [m.mean(1) * d.mean(1) for m, d in zip(arriving, leaving, strict=True)]
    return torch.stack(edges + [d.mean(1) for d in leaving[:-1]] * with_biases, 1)
