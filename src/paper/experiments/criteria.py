"""Appendix C: criteria that other work minimizes, on products of numbers, each along an orbit of rescalings.

Symbols of the paper and their names here:

    f(x) = u_L .. u_1 x     theta    numbers in the order the input meets them, shape (points, L); (v, u) for f = u v x
    Phi = u_1 .. u_L        phi      the loss is (Phi - target)^2 / 2
    lambda                           multiplies u_1 and divides u_2; the others stay at their balanced size
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from paper import plotting
from paper.cli import PaperError
from paper.experiments.base import Experiment
from paper.lazy import np, pd, ticker, torch
from paper.seeds import generator
from paper.settings import AtLeast2, AtLeast3, Block, Distinct, Field, Number, Positive, SeedList
from paper.verdicts import ERRATUM, Claim, Estimate, NotMeasured, at_least, at_most, noted


class Settings(Block):
    """Lengths of the products, points of a curve, and the largest abs(log lambda) drawn."""

    target: Number
    lengths: Distinct[Annotated[AtLeast2, Field(le=8)]]
    grid: AtLeast3
    log_range: Positive
    seeds: SeedList


# Points of each search grid; the next grid lies between the neighbors of the smallest value.
POINTS, ROUNDS = 41, 6

Criterion = Callable[["torch.Tensor", float], "torch.Tensor"]


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Every criterion along one random orbit per seed and length, on a CPU: one row per point of the grid.

    `balanced` and `minimiser` are constant along an orbit. PathCond's objective F is given as exp(F / p) up to a
    factor, which makes it the arithmetic over the geometric mean of diag(G).
    """
    grid = torch.linspace(-1.0, 1.0, settings["grid"], dtype=torch.float64) * settings["log_range"]
    tables = []
    for length in settings["lengths"]:
        for seed in settings["seeds"]:
            start = _orbit(length, seed)
            for name, criterion in {**CRITERIA, **(WEIGHTED if length == 2 else {})}.items():
                value = partial(_value, criterion, start, settings["target"])
                columns = {"example": "uv" if length == 2 else f"chain{length}", "criterion": name, "seed": seed}
                columns |= {"log_scale": grid.tolist(), "value": value(grid).tolist()}
                columns |= {"balanced": float((start[1] / start[0]).abs().log()) / 2.0}
                tables.append(pd.DataFrame(columns | {"minimiser": least(value, grid, f"{name}, seed {seed}")}))
    return pd.concat(tables, ignore_index=True)


def _value(criterion: Criterion, start: torch.Tensor, target: float, log_scales: torch.Tensor) -> torch.Tensor:
    """A criterion at points of an orbit; log-scales are those of the first two numbers."""
    scale = log_scales.exp()
    factors = torch.ones(len(scale), len(start), dtype=start.dtype)
    factors[:, 0], factors[:, 1] = scale, 1.0 / scale
    return criterion(start * factors, target)


def least(function: Callable[[torch.Tensor], torch.Tensor], grid: torch.Tensor, where: str) -> float:
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


def _orbit(length: int, seed: int) -> torch.Tensor:
    """Random numbers of any sign, those after the second at the size they have where all sizes are equal."""
    stream = generator(seed, "init", length)
    size = torch.exp(torch.randn(length, generator=stream, dtype=torch.float64) / 2.0)
    sign = torch.randint(0, 2, (length,), generator=stream) * 2 - 1
    even = size.log().mean().exp()
    ratio = (size[0] / size[1]).sqrt()
    return sign * torch.cat((torch.stack((even * ratio, even / ratio)), even.expand(length - 2)))


def _phi_gradient(theta: torch.Tensor) -> torch.Tensor:
    return theta.prod(1, keepdim=True) / theta


def _loss_gradient(theta: torch.Tensor, target: float) -> torch.Tensor:
    return (theta.prod(1, keepdim=True) - target) * _phi_gradient(theta)


def _hessian(theta: torch.Tensor, target: float) -> torch.Tensor:
    """Second derivatives of the loss: outer product of grad Phi, and the residual times those of Phi."""
    slope = _phi_gradient(theta)
    phi = theta.prod(1)[:, None, None]
    second = phi / (theta[:, :, None] * theta[:, None, :]) * (1.0 - torch.eye(theta.shape[1]))
    return slope[:, :, None] * slope[:, None, :] + (phi - target) * second


def _spectrum(theta: torch.Tensor, target: float) -> torch.Tensor:
    return torch.linalg.eigvalsh(_hessian(theta, target)).abs()


def _weighted(pairs: torch.Tensor) -> torch.Tensor:
    """The norm sqrt(x^2 + 4 y^2) of (u, v); pairs hold v first."""
    return (pairs[:, 1] ** 2 + 4.0 * pairs[:, 0] ** 2).sqrt()


CRITERIA: Mapping[str, Criterion] = {
    "theta_norm": lambda theta, target: theta.norm(dim=1),
    "inverse_norm": lambda theta, target: (1.0 / theta).norm(dim=1),
    "gradient_norm": lambda theta, target: _loss_gradient(theta, target).norm(dim=1),
    "hessian_trace": lambda theta, target: _hessian(theta, target).diagonal(dim1=1, dim2=2).sum(1),
    "hessian_norm": lambda theta, target: _spectrum(theta, target).amax(1),
    "condition": lambda theta, target: (values := _spectrum(theta, target)).amax(1) / values.amin(1),
    "pathcond": lambda theta, target: (g := _phi_gradient(theta) ** 2).mean(1) / g.log().mean(1).exp(),
}
# A norm that is not the same in both coordinates, for f = u v x: a counterexample to "for any norm".
WEIGHTED: Mapping[str, Criterion] = {
    "weighted_theta": lambda theta, target: _weighted(theta),
    "weighted_gradient": lambda theta, target: _weighted(_loss_gradient(theta, target)),
}


class _Look(NamedTuple):
    label: str
    colour: str
    line: str | tuple[float, tuple[float, float]]
    width: float

    @property
    def style(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.line, "linewidth": self.width}


def _looks() -> tuple[dict[str, _Look], dict[str, _Look]]:
    """Criteria of the paper, then those of the counterexample.

    Curves that coincide are drawn one inside the other: wide and solid first, then thin interleaved dashes.
    """
    criteria = {
        "theta_norm": _Look(r"$\Vert\theta\Vert$", plotting.SKY, "-", 3.0),
        "gradient_norm": _Look(r"$\Vert\nabla L\Vert$", plotting.BLUE, (0.0, (3.0, 3.0)), 1.2),
        "inverse_norm": _Look(r"$\Vert\theta^{-1}\Vert$", plotting.BLACK, (3.0, (3.0, 3.0)), 1.2),
        "hessian_trace": _Look(r"$\mathrm{tr}\,\nabla^2 L$", plotting.YELLOW, "-", 3.0),
        "pathcond": _Look("PathCond", plotting.RED, "--", 1.2),
        "hessian_norm": _Look(r"$\Vert\nabla^2 L\Vert$", plotting.GREEN, "-", 1.2),
        "condition": _Look(r"$\kappa(\nabla^2 L)$", plotting.PINK, "-", 1.2),
    }
    weighted = {
        "weighted_theta": _Look(r"weighted $\Vert\theta\Vert$", plotting.SKY, "-", 1.2),
        "weighted_gradient": _Look(r"weighted $\Vert\nabla L\Vert$", plotting.BLUE, "--", 1.2),
    }
    return criteria, weighted


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Curves of one orbit per example above the minima of all orbits; the last column is the counterexample."""
    from matplotlib.ticker import FixedLocator, MultipleLocator

    examples = dict(list(table.groupby("example", sort=False)))
    reach = float(table["log_scale"].to_numpy().max() - np.abs(table["balanced"].to_numpy()).max())
    columns = len(examples) + 1
    criteria, weighted = _looks()
    figure, axes = plotting.panels(
        2, columns, plotting.PAGE, 3.4, sharex=True, sharey="row", gridspec_kw={"height_ratios": (2.0, 1.0)}
    )
    for number, (example, rows) in enumerate(examples.items()):
        _column(axes[number], axes[columns + number], rows, criteria, reach)
        length = str(example).removeprefix("chain")
        axes[number].set_title("$f = u v x$" if example == "uv" else f"product of {length}")
    _column(axes[columns - 1], axes[-1], examples["uv"], weighted, reach)
    axes[columns - 1].set_title(r"norm $\sqrt{x^2 + 4 y^2}$")
    axes[0].set(ylabel="criterion / its minimum", yscale="log", ylim=(0.8, None))
    axes[0].yaxis.set(major_locator=FixedLocator([1.0, 10.0, 100.0, 1000.0]), major_formatter="{x:g}")
    axes[0].yaxis.set_minor_locator(ticker.NullLocator())
    axes[columns].set(ylabel=f"minima of\n{len(set(table['seed']))} orbits", ylim=(len(criteria) - 0.4, -0.6))
    axes[columns].set_yticks([])
    for place in axes[columns:]:
        place.set(xlim=(-reach, reach), xlabel=r"$\log\,\lambda$ from balance")
        place.xaxis.set_major_locator(MultipleLocator(1.0))
    plotting.letters(axes[:columns])
    handles = [
        plotting.handle(label=look.label, marker="o", markersize=2.5, **look.style) for look in criteria.values()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=7, columnspacing=1.2, handlelength=2.4)
    return figure


def _column(
    curves: plotting.Axes, minima: plotting.Axes, rows: pd.DataFrame, looks: Mapping[str, _Look], reach: float
) -> None:
    """Criteria along the first orbit above, and below, one row per criterion, where each is least on every orbit."""
    for place in (curves, minima):
        place.axvline(0.0, color=plotting.GREY, linewidth=0.8)
    found = dict(list(rows.groupby("criterion")))
    for number, (criterion, look) in enumerate(looks.items()):
        orbits = found[criterion].drop_duplicates("seed")
        first = found[criterion].query(f"seed == {orbits['seed'].iloc[0]}")
        x, value = (first["log_scale"] - first["balanced"]).to_numpy(), first["value"].to_numpy()
        value = np.where(np.abs(x) <= reach, value / value.min(), np.nan)
        curves.plot(x, value, **look.style)
        least = (orbits["minimiser"] - orbits["balanced"]).to_numpy()
        minima.plot(least, np.full(len(least), number), color=look.colour, marker="o", markersize=2.5, linestyle="")


TOLERANCE = 1e-3


def _minimisers(table: pd.DataFrame, criteria: tuple[str, ...], chains: bool) -> pd.DataFrame:
    rows = table[table["criterion"].isin(criteria) & (table["example"].ne("uv") == chains)]
    if rows.empty:
        raise NotMeasured("no such example")
    return rows.drop_duplicates(["example", "criterion", "seed"])


def _farthest(criteria: tuple[str, ...], chains: bool) -> Callable[[pd.DataFrame], Estimate]:
    """The largest distance of a minimizer from the balanced point."""

    def estimate(table: pd.DataFrame) -> Estimate:
        rows = _minimisers(table, criteria, chains)
        found = Estimate.exact((rows["minimiser"] - rows["balanced"]).abs().max(), digits=None)
        return noted(found, f"{len(rows)} minimizers")

    return estimate


def _apart(table: pd.DataFrame) -> Estimate:
    rows = _minimisers(table, ("weighted_theta", "weighted_gradient"), chains=False)
    wide = rows.pivot(index="seed", columns="criterion", values="minimiser")
    return Estimate.exact((wide["weighted_gradient"] - wide["weighted_theta"]).abs().min(), digits=3)


_FARTHEST = "largest distance of a minimizer from the balanced point, over random orbits"
_COMMON = ("theta_norm", "gradient_norm", "hessian_trace", "hessian_norm", "condition")
_CLAIMS = (
    Claim(
        "criteria_uv",
        "For f = u v x, the norm, gradient norm, Hessian trace, Hessian norm and condition number are smallest at the "
        "same rescaling",
        "all coincide",
        _FARTHEST,
        _farthest(_COMMON, chains=False),
        at_most(TOLERANCE),
        unit="in log lambda",
    ),
    Claim(
        "criteria_chain",
        "For a product of L numbers, the gradient norm, Hessian trace and norm of the inverses are smallest at the "
        "same rescaling",
        "all coincide",
        _FARTHEST,
        _farthest(("gradient_norm", "hessian_trace", "inverse_norm"), chains=True),
        at_most(TOLERANCE),
        unit="in log lambda",
    ),
    Claim(
        "criteria_any_norm",
        "Parameters and gradient have their smallest norm at the same rescaling only for norms that treat all entries "
        "alike",
        "any norm",
        "least distance of the two minimizers for a norm that does not, sqrt(x^2 + 4 y^2), over random orbits",
        _apart,
        at_least(TOLERANCE),
        ERRATUM,
        unit="in log lambda",
    ),
)


EXPERIMENT = Experiment(
    name="criteria",
    title="Criteria on toy examples",
    where="appendix C",
    caption=(
        "Criteria along rescalings of products of numbers: the norm of the parameters, of their inverses, of the "
        "gradient and of the Hessian, the Hessian's trace and condition number, and PathCond's objective. An orbit is "
        "the set of all rescalings of one point. Top: values along one orbit, relative to the minimum. Bottom: where "
        "each criterion is smallest on {seeds_count} orbits, always at the balanced rescaling. Last column, not in the "
        "paper: two minima differ for a norm that treats the coordinates differently."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("example", "criterion", "log_scale"),
    measure=measure,
)
