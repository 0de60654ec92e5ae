"""Proposition 5.1 and appendix: expected diag(G) of fully connected networks, formulas against random networks.

Symbols of the paper and their names here:

    n_0 .. n_L       widths       input, hidden layers, output
    sigma_k^2        variances    of a weight of layer k, and of its biases; a / n_k for a standard initialization
    E[g_i]           formula      expected entry of diag(G), the same for all parameters of one kind in one layer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Annotated, Any, Literal, NamedTuple

from paper import plotting, theory
from paper import settings as fields
from paper.experiments.base import Experiment
from paper.experiments.conditioning import path_jacobian
from paper.lazy import nn, np, pathcond, pd, ticker, torch
from paper.seeds import generator
from paper.verdicts import ERRATUM, Claim, Estimate, Estimates, NotMeasured, at_least, at_most, noted, some

# Panel titles, in the order they are drawn; other cases follow under their own name.
TITLES = {
    "constant": "equal widths\nwith biases",
    "constant_no_bias": "equal widths\nno biases",
    "varying": "unequal widths\nwith biases",
    "varying_no_bias": "unequal widths\nno biases",
    "small": "equal widths",
    "small_varying": "unequal widths",
    "large_varying": "unequal widths",
    "by_layer": "unequal widths\nvariances by layer",
}


class Case(fields.Block):
    """Widths n_0 .. n_L, and `a` = n sigma^2 of all layers, or `variances` of each."""

    widths: Annotated[list[fields.PositiveInt], fields.Field(min_length=3)]
    a: fields.Distinct[fields.Positive] | None = None
    variances: fields.Some[fields.Positive] | None = None
    biases: fields.Flag

    @fields.model_validator(mode="after")
    def _one_spread(self) -> Case:
        if (self.a is None) == (self.variances is None):
            raise ValueError(f"expected either a or variances, got {'neither' if self.a is None else 'both'}")
        if self.variances is not None and len(self.variances) != len(self.widths) - 1:
            need, got = len(self.widths) - 1, len(self.variances)
            raise ValueError(f"variances: expected {need}, one per layer, got {got}; give one for each")
        return self


class Settings(fields.Block):
    """Random networks per case, and the cases."""

    draws: fields.AtLeast2
    seeds: fields.SeedList
    cases: dict[fields.Name, Case] = fields.Field(min_length=1)


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
# Printed formulas that are leading terms as a grows or falls; the others claim equality.
LIMITS = ("small_variance", "small_variance_widths", "large_variance_widths")
# Networks drawn at once: keeps the working memory near 100 MB.
CHUNK = 10_000


class Network(NamedTuple):
    """Widths n_0 .. n_L, variances of the L layers, and whether all layers but the last have biases."""

    widths: Sequence[int]
    variances: Sequence[float]
    biases: bool


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Compare the formula, the printed formula and random networks for every case, `a`, seed, kind and layer, on a CPU.

    `limit` is the right leading term where the printed formula is one. `printed_off` says whether what is printed
    differs from it, or from the formula where equality is claimed: exact comparisons of formulas, free of noise. The
    last columns are those of :func:`even_network`.
    """
    tables = []
    for case, block in settings["cases"].items():
        for a, network in _networks(block):
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
    """Mean over networks of the average entry of diag(G) of each layer, weights before biases, and its error."""
    sizes = [min(CHUNK, draws - first) for first in range(0, draws, CHUNK)]
    entries = torch.cat([average_entries(*draw_squares(network, size, stream), network.biases) for size in sizes])
    return entries.mean(0).numpy(), (entries.std(0) / draws**0.5).numpy()


def even_network(widths: Sequence[int], stream: torch.Generator) -> dict[str, float | int]:
    """A network without biases whose weights have one size and random signs: diag(G) is constant if all widths are.

    `even_spread` is the largest over the least entry of diag(G), less 1; `even_u` the largest absolute u that PathCond
    finds; `rank` that of the Jacobian of the path-lifting, hence of G.
    """
    layers = [nn.Linear(n_in, n_out, bias=False, dtype=torch.float64) for n_in, n_out in pairwise(widths)]
    module = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]
    for weight in module.parameters():
        signs = torch.randint(0, 2, weight.shape, generator=stream, dtype=torch.float64)
        weight.data.copy_(0.5 * (2.0 * signs - 1.0))
    x = torch.ones(1, widths[0], dtype=torch.float64)
    graph, g = pathcond.extract_graph(module, x), pathcond.compute_diag_g(module, x)
    entries = torch.cat([values.reshape(-1) for values in g.values()])
    columns = path_jacobian(module)
    return {
        "even_spread": float(entries.max() / entries.min() - 1.0),
        "even_u": 2 * float(pathcond.solve(graph, g).log_scales.abs().amax()),
        "parameters": columns.shape[1],
        "units": graph.units,
        "rank": int(torch.linalg.matrix_rank(columns)),
    }


def _networks(block: Mapping[str, Any]) -> list[tuple[float, Network]]:
    """The networks of a case, each with its `a`, which is NaN where variances are given by layer."""
    widths = block["widths"]
    if "variances" in block:
        return [(float("nan"), Network(widths, block["variances"], block["biases"]))]
    return [(a, Network(widths, [a / n for n in widths[:-1]], block["biases"])) for a in block["a"]]


def _expected(case: str, a: float, network: Network) -> pd.DataFrame:
    """Formula, limit and printed formula by kind and layer."""
    if np.isnan(a):
        right = theory.expected_general(network.widths, network.variances, network.biases)
    else:
        right = theory.expected_standard(network.widths, a, network.biases)
    name = PRINTED.get(case)
    edges, biases = len(right.edge), len(right.bias)
    missing = (np.nan,) * edges
    leading = theory.large_variance_limit if name == "large_variance_widths" else theory.small_variance_limit
    limit = leading(network.widths, a).edge if name in LIMITS else missing
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


Tensors = list["torch.Tensor"]


def draw_squares(network: Network, count: int, stream: torch.Generator) -> tuple[Tensors, Tensors]:
    """Squared weights (count, n_{k+1}, n_k) of all layers and squared biases (count, n_{k+1}) of all but the last."""
    weights, biases = [], []
    for (n_in, n_out), variance in zip(pairwise(network.widths), network.variances, strict=True):
        normal = torch.randn(count, n_out, n_in + 1, generator=stream, dtype=torch.float64)
        squared = variance * normal**2
        weights.append(squared[..., :-1])
        biases.append(squared[..., -1] * network.biases)
    return weights, biases[:-1]


def average_entries(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], with_biases: bool) -> torch.Tensor:
    """Average entry of diag(G) of each layer, shape (count, layers), weights first.

    The entry of a weight is the path sum of the squared paths into its start times that out of its end, so the average
    over a layer is the product of two averages.
    """
    arriving = [weights[0].new_ones(weights[0].shape[0], weights[0].shape[2])]
    for weight, bias in zip(weights, biases, strict=False):
        arriving.append((weight * arriving[-1][:, None]).sum(2) + bias)
    leaving = [weights[-1].new_ones(weights[-1].shape[:2])]
    for weight in reversed(weights[1:]):
        leaving.insert(0, (weight * leaving[0][:, :, None]).sum(1))
    edges = [m.mean(1) * d.mean(1) for m, d in zip(arriving, leaving, strict=True)]
    return torch.stack(edges + [d.mean(1) for d in leaving[:-1]] * with_biases, 1)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Expected diag(G) by layer, one panel per case, a page wide."""
    cases = dict(list(table.groupby("case", sort=False)))
    names = [case for case in TITLES if case in cases] + [case for case in cases if case not in TITLES]
    several = [a for rows in cases.values() if len(set(rows["a"].dropna())) > 1 for a in rows["a"]]
    looks = dict(zip(sorted(set(several)), cycle(plotting.SERIES), strict=False))
    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    figure, axes = plotting.panels(lines, columns, plotting.PAGE, 0.6 + 1.9 * lines)
    for place, name in zip(axes, names, strict=False):
        _panel(place, cases[name], looks)
        values, title = set(cases[name]["a"].dropna()), TITLES.get(str(name), str(name).replace("_", " "))
        place.set(title=f"{title}\n$a$ = {values.pop():g}" if len(values) == 1 else title, xlabel="layer $k$")
    for place in axes[len(names) :]:
        place.set_visible(False)
    for place in axes[::columns]:
        place.set_ylabel("expected $g$")
    spacing = {"columnspacing": 1.6, "handlelength": 1.5, "handletextpad": 0.5}
    figure.legend(handles=_handles(looks), loc="outside upper center", ncols=4, **spacing)
    plotting.letters(axes[: len(names)])
    return figure


def _panel(axes: plotting.Axes, rows: pd.DataFrame, looks: Mapping[float, tuple[str, str]]) -> None:
    """Weights; biases too, unless they would hide how far a printed formula is off."""
    biases = not rows["printed_off"].any()
    for (a, kind), found in rows.groupby(["a", "kind"], dropna=False):
        if kind == "bias" and not biases:
            continue
        colour, marker = looks.get(a, (plotting.BLACK, "o"))
        line, face = ("-", colour) if kind == "edge" else (":", "white")
        first = found.drop_duplicates("layer")
        axes.plot(first["layer"], first["formula"], color=colour, linestyle=line, linewidth=1.0)
        look: dict[str, Any] = {"color": colour, "marker": marker, "markerfacecolor": face, "linestyle": ""}
        axes.errorbar(found["layer"], found["monte_carlo"], 2.0 * found["standard_error"], **look)
    for a, found in rows.query("printed_off").groupby("a", dropna=False):  # what the paper prints, tied to the formula
        colour = looks[a][0] if a in looks else plotting.RED
        axes.vlines(found["layer"], found["formula"], found["printed"], color=colour, linewidth=0.7)
        axes.plot(found["layer"], found["printed"], color=colour, marker="x", markersize=4.5, linestyle="", zorder=3)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    narrow = high < 100.0 * low
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=6))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    if narrow:
        axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def _handles(looks: Mapping[float, tuple[str, str]]) -> list[plotting.Line2D]:
    series = [plotting.handle(color=c, marker=m, label=f"$a$ = {a:.2g}") for a, (c, m) in looks.items()]
    black, hollow = plotting.BLACK, {"linestyle": ":", "marker": "o", "markerfacecolor": "white"}
    return [
        *series,
        plotting.handle(color=black, linewidth=1.0, label="formula"),
        plotting.handle(color=black, linestyle="", marker="o", label="random networks"),
        plotting.handle(color=black, linewidth=1.0, label="biases", **hollow),
        plotting.handle(color=black, linestyle="", marker="x", markersize=4.5, label="paper's formula, where wrong"),
    ]


# Standard errors that the mean of random networks may be away from a right formula.
FAR = 4.0


def _farthest(rows: pd.DataFrame, column: str = "z") -> Estimate:
    """The largest distance of a mean of random networks from a formula."""
    if rows.empty:
        raise NotMeasured("no such case")
    return noted(Estimate.exact(rows[column].abs().max(), digits=1), f"{len(rows)} values")


def _expected_diagonal(table: pd.DataFrame) -> Estimates:
    layers = table[(table["case"] == "by_layer") & (table["kind"] == "bias")]
    cases = {"equal widths": some(table, case="constant"), "unequal widths": some(table, case="varying")}
    return {name: _farthest(rows) for name, rows in (cases | {"variances by layer, biases": layers}).items()}


def _unit_gain(table: pd.DataFrame) -> Estimate:
    """Distance of random networks from 1 + k/n, not from our formula."""
    rows = some(table, case="constant", a=1.0, kind="edge")
    stated = 1 + rows["layer"] / (rows["units"] / rows["layer"].max())
    return _farthest(rows.assign(z=(rows["monte_carlo"] - stated) / rows["standard_error"]))


def _constant(table: pd.DataFrame) -> Estimate:
    even = table["even_spread"] < 1e-9
    if not even.any():
        raise NotMeasured("no network with a constant diagonal")
    return Estimate.exact(table.loc[even, "even_u"].max(), digits=None)


def _printed(name: str) -> Callable[[pd.DataFrame], Estimate]:
    """The largest distance of random networks from a printed formula, over the layers in which algebra corrects it."""

    def estimate(table: pd.DataFrame) -> Estimate:
        rows = some(table, printed_name=name, kind="edge")
        off = rows[rows["printed_off"].astype(bool)]
        if off.empty:
            return noted(Estimate.exact(0.0), "it holds in every layer")
        layers = ", ".join(str(layer) for layer in sorted(off["layer"].unique()))
        ours = f"{rows['z'].abs().max():.1f} from the corrected one"
        return noted(_farthest(off, "printed_z"), f"layers {layers} of 0 to {rows['layer'].max()}; {ours}")

    return estimate


_NEAR = "largest distance of the mean of random networks from the formula"
_OFF = "largest distance of the mean of random networks from the printed formula, in layers where algebra corrects it"
_CLAIMS = (
    Claim(
        "theory_with_biases",
        "The expected diagonal of networks with biases is as printed",
        "formulas (appendix)",
        _NEAR,
        _expected_diagonal,
        at_most(FAR),
        unit="standard errors",
        cases="case",
    ),
    Claim(
        "theory_unit_gain",
        "At constant width n and a = 1 the expected diagonal is 1 + k/n in layer k, so nearly constant",
        "1 + k/n",
        "largest distance of the mean of random networks from 1 + k/n",
        _unit_gain,
        at_most(FAR),
        unit="standard errors",
    ),
    Claim(
        "constant_diagonal",
        "Where diag(G) is constant, PathCond leaves the network as it is",
        "u = 0",
        "largest |u| in networks of equal widths and weights of one size",
        _constant,
        at_most(1e-9),
        unit="is the largest |u|",
    ),
)
# Errors in printed formulas: id, name of the formula, what the paper says, claim.
_ERRATA = (
    ("theory_no_biases", "without_biases", "stated without biases",
     "Proposition 5.1 is the formula of networks with biases, though it is stated for those without"),
    ("theory_general", "expected_ak", "formula (appendix)",
     "Expected diagonal of the weights for any variances by layer: the printed product must leave out one more factor"),
    ("theory_small_variance", "small_variance", "a^(L-k) / n in all layers (main text)",
     "The limit of small variance at constant width misses terms in the first two layers"),
    ("theory_small_variance_widths", "small_variance_widths", "limit (appendix)",
     "The limit of small variance at varying width misses a factor in layer 1"),
    ("theory_large_variance_widths", "large_variance_widths", "limit (appendix)",
     "The limit of large variance at varying width misses a factor from layer 1 on"),
)  # fmt: skip
_CLAIMS += tuple(
    Claim(id, text, paper, _OFF, _printed(name), at_least(FAR), ERRATUM, unit="standard errors")
    for id, name, paper, text in _ERRATA
)


EXPERIMENT = Experiment(
    name="theory",
    title="Expected diagonal of G",
    where="Proposition 5.1 and appendix J",
    caption=(
        "Expected diag(G) of fully connected networks at initialization, by layer and by a = n σ². Lines: corrected "
        "formulas. Markers: means over {draws:,} random networks, with two standard errors. Crosses: the paper's "
        "formula where it differs, each joined to its curve."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("case", "a", "kind", "layer"),
    version=2,
    measure=measure,
)
