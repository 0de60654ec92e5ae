"""Figure 4: how far PathCond rescales networks with uneven widths and small weights, at initialization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from paper import plotting, verdicts
from paper import settings as fields
from paper.aggregate import joined
from paper.cli import PaperError
from paper.experiments.base import Experiment, Part, Runs
from paper.lazy import nn, pathcond, pd, ticker, torch
from paper.seeds import generator, seeded
from paper.verdicts import ERRATUM, Claim, Estimate, Estimates, NotMeasured, above, at_least, at_most


class LogSpace(fields.Block):
    """Exponents of 10, evenly spaced from first to last."""

    first: fields.Number
    last: fields.Number
    count: fields.GridSize

    @property
    def values(self) -> list[float]:
        """The powers of 10, computed from the nearer end."""
        step = (self.last - self.first) / (self.count - 1)
        first = [self.first + step * number for number in range(self.count // 2)]
        last = [self.last - step * (self.count - 1 - number) for number in range(self.count // 2, self.count)]
        return [10.0**exponent for exponent in (*first, *last)]


class Settings(fields.Block):
    """Networks with `neurons` in all hidden layers together; `more_alphas` are added to the evenly spaced ones."""

    hidden_layers: fields.PositiveInt
    neurons: fields.PositiveInt
    inputs: fields.PositiveInt
    outputs: fields.PositiveInt
    variances: fields.Distinct[fields.Positive]
    log10_alpha: LogSpace
    more_alphas: list[fields.Positive] = fields.Field(default=[])
    sweeps: fields.PositiveInt
    seeds: fields.SeedList

    @fields.model_validator(mode="after")
    def _fills_every_layer(self) -> Settings:
        if self.neurons < self.hidden_layers:
            raise ValueError(
                f"neurons: expected at least one per layer ({self.hidden_layers}), got {self.neurons}; raise neurons "
                "or lower hidden_layers"
            )
        return self

    @property
    def alphas(self) -> list[float]:
        """All concentrations, smallest first."""
        return sorted({*self.log10_alpha.values, *self.more_alphas})


def parts(settings: Settings) -> Iterator[Part]:
    """One part per variance and seed, with one row per alpha."""
    shared = {
        name: fields.plain(settings)[name] for name in ("hidden_layers", "neurons", "inputs", "outputs", "sweeps")
    }
    for variance in sorted(settings.variances):
        for seed in sorted(settings.seeds):
            one = {"variance": variance, "seed": seed, "alphas": settings.alphas}
            yield f"variance{variance:g}-seed{seed}", shared | one


COLUMNS = ["variance", "alpha", "seed", "max_log_scale", "printed_root_fails", "widths"]


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Draw the widths of one network per alpha and its weights, and rescale it, on a CPU.

    At one seed and alpha all variances share the widths and, up to their size, the weights; biases are drawn like
    weights, with one variance for all layers. There is one row per alpha: variance, alpha, seed, max_log_scale (largest
    |log lambda| = |u| / 2), printed_root_fails, widths of the hidden layers joined by hyphens.
    """
    variance, seed = settings["variance"], settings["seed"]
    example = torch.ones(1, settings["inputs"], dtype=torch.float64)
    rows = []
    for alpha in settings["alphas"]:
        hidden = hidden_widths(settings["hidden_layers"], settings["neurons"], alpha, seed)
        stream = generator(seed, "init", f"{alpha:.6g}")
        model = _network([settings["inputs"], *hidden, settings["outputs"]], stream, variance)
        graph = pathcond.extract_graph(model, example)
        g = pathcond.compute_diag_g(model, example, graph=graph)
        log_scales = pathcond.solve(graph, g, sweeps=settings["sweeps"]).log_scales
        fails, widths = printed_root_fails(graph, g), "-".join(map(str, hidden))
        rows.append((variance, alpha, seed, float(log_scales.abs().max()), fails, widths))
    return pd.DataFrame(rows, columns=COLUMNS)


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


def largest_remainder(shares: torch.Tensor, total: int) -> list[int]:
    """Integers near `shares * total` (shares sum to 1) with exactly that total: the largest fractions round up."""
    quotas = shares * total
    counts = quotas.floor().long()
    order = (quotas - counts).argsort(descending=True, stable=True)
    counts[order[: total - int(counts.sum())]] += 1
    return counts.tolist()


def printed_root_fails(graph: pathcond.ScaleGraph, g: Mapping[str, torch.Tensor]) -> bool:
    """Whether the root of some unit's first update, computed as printed in the paper, is not positive in float64.

    The positive root of b (a + p) x^2 + a d x + c (a - p) is printed as (-a d + sqrt(..)) / (2 b (a + p)), which
    cancels where a d > 0. Here p is the number of parameters; a is how many more enter the unit than leave it; b, c
    and d are the sums of g over those that leave it, enter it, and do neither.
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


def _network(widths: Sequence[int], stream: torch.Generator, variance: float) -> nn.Sequential:
    """Linear layers with ReLU between them, in float64; all have a bias but the last. All parameters are normal."""
    layers: list[nn.Module] = []
    for number, (n_in, n_out) in enumerate(pairwise(widths), start=2):
        linear = nn.utils.skip_init(nn.Linear, n_in, n_out, bias=number < len(widths), dtype=torch.float64)
        for parameter in linear.parameters():
            parameter.data = torch.randn(parameter.shape, generator=stream, dtype=torch.float64) * variance**0.5
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Median and quartiles of the largest log-rescaling over seeds, by variance and alpha.

    `ratio` is the mean over seeds of that rescaling over the one at the next larger variance, with the same widths,
    and `ratio_sd` its deviation.
    """
    every = joined(runs, settings).sort_values(["variance", "alpha", "seed"])
    wide = every.pivot(index=["alpha", "seed"], columns="variance", values="max_log_scale")
    next_larger = dict(pairwise(sorted(wide)))
    scale = {variance: wide[variance] / wide[larger] for variance, larger in next_larger.items()}
    paired = pd.DataFrame(scale, index=wide.index).rename_axis(columns="variance").stack().rename("ratio")
    every = every.merge(paired.reset_index(), on=["variance", "alpha", "seed"], how="left")
    rows = every.groupby(["variance", "alpha"], sort=False)
    scales = rows["max_log_scale"]
    columns = {
        "median": scales.median(),
        "low": scales.quantile(0.25),
        "high": scales.quantile(0.75),
        "ratio": rows["ratio"].mean(),
        "ratio_sd": rows["ratio"].std(),
        "printed_root_fails": rows["printed_root_fails"].mean(),
        "n": rows.size(),
    }
    return pd.DataFrame(columns).reset_index()


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Medians and quartiles against alpha, one curve per variance: one panel, a column wide."""
    figure, (axes,) = plotting.panels(1, 1, plotting.COLUMN, 2.5)
    for (variance, rows), (colour, marker) in zip(table.groupby("variance"), cycle(plotting.SERIES), strict=False):
        rows = rows.sort_values("alpha").rename(columns={"median": "middle"})
        plotting.band(axes, rows, "alpha", {"color": colour, "marker": marker}, f"variance {variance:g}")
    axes.set(xscale="log", yscale="log", title="Rescaling needed at initialization")
    axes.set(xlabel=r"Dirichlet $\alpha$ (uneven to even layer widths)", ylabel=r"largest $|\log\,\lambda|$")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.legend(loc="lower left", borderaxespad=0.2)
    return figure


def _irregular(table: pd.DataFrame) -> Estimates:
    if table["alpha"].nunique() < 2:
        raise NotMeasured("one value of alpha shows no trend")
    return {
        f"variance {variance:g}": verdicts.rank_estimate(rows["alpha"].tolist(), rows["median"].tolist())
        for variance, rows in table.groupby("variance")
    }


def _variance(table: pd.DataFrame) -> Estimates:
    """The least ratio over the values of alpha, by variance."""
    found: Estimates = {}
    for variance, rows in table.dropna(subset="ratio").groupby("variance"):
        each = [Estimate(r.ratio, *verdicts.interval(r.ratio, r.ratio_sd, int(r.n))) for r in rows.itertuples()]
        found[f"variance {variance:g}"] = min(each, key=lambda ratio: ratio.low)
    return found


def _root(table: pd.DataFrame) -> Estimates:
    shares = table.groupby("variance")["printed_root_fails"].mean()
    return {f"variance {variance:g}": Estimate.exact(share, digits=3) for variance, share in shares.items()}


_CLAIMS = (
    Claim(
        "regimes_irregular_widths",
        "The largest rescaling grows as the widths of the layers become more irregular (their Dirichlet concentration "
        "alpha falls)",
        "a clear trend at every variance",
        "rank correlation of the largest |log lambda|, median over networks, with alpha; interval by bootstrap over "
        "the values of alpha",
        _irregular,
        at_most(-0.8),
        unit="rank correlation",
        cases="variance",
    ),
    Claim(
        "regimes_small_variance",
        "The largest rescaling grows as the variance of the weights falls",
        "a clear trend",
        "largest |log lambda| over that of the same widths at the next larger variance, at the alpha where it is least",
        _variance,
        above(1.0),
        unit="times",
        cases="variance",
    ),
    Claim(
        "regimes_printed_root",
        "Computed as printed, the root of an update loses its digits by cancellation: in some networks it is not "
        "positive in float64",
        "printed in the algorithm",
        "share of the networks in which some unit's first update has no positive root (our solver uses a form without "
        "cancellation)",
        _root,
        at_least(0.001),
        ERRATUM,
        unit="of the networks",
        cases="variance",
    ),
)


EXPERIMENT = Experiment(
    name="regimes",
    title="When PathCond has something to do",
    where="Figure 4",
    caption=(
        "Largest |log λ| of PathCond at initialization, against the Dirichlet concentration alpha of the widths of the "
        "hidden layers (the larger, the more even), for {variances_count} variances of the weights. Medians over "
        "{seeds_count} networks; bands are the quartiles."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("variance", "alpha"),
    version=2,
    measure=measure,
    parts=parts,
    rows="alphas",
    table=table,
)
