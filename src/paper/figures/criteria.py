"""Criteria along orbits of rescalings, and where each is least; with a norm for which the paper's statement fails."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator

from paper.figures import style

PAPER = (
    "Criteria along rescalings of products of numbers: the norm of the parameters, of their inverses, of the gradient "
    "and of the Hessian, the Hessian's trace and condition number, and PathCond's objective. Dots below the curves "
    "are their minima, all at the balanced rescaling. The last panel is ours: two minima part for a norm that treats "
    "the coordinates differently."
)


_Line = str | tuple[float, tuple[float, float]]


class _Look(NamedTuple):
    label: str
    colour: str
    line: _Line
    width: float


# Curves that coincide are drawn one inside the other: wide and solid first, then thin dashes that take turns.
CRITERIA = {
    "theta_norm": _Look(r"$\Vert\theta\Vert$", style.SKY, "-", 3.0),
    "gradient_norm": _Look(r"$\Vert\nabla L\Vert$", style.BLUE, (0.0, (3.0, 3.0)), 1.2),
    "inverse_norm": _Look(r"$\Vert\theta^{-1}\Vert$", style.BLACK, (3.0, (3.0, 3.0)), 1.2),
    "hessian_trace": _Look(r"$\mathrm{tr}\,\nabla^2 L$", style.YELLOW, "-", 3.0),
    "pathcond": _Look("PathCond", style.RED, "--", 1.2),
    "hessian_norm": _Look(r"$\Vert\nabla^2 L\Vert$", style.GREEN, "-", 1.2),
    "condition": _Look(r"$\kappa(\nabla^2 L)$", style.PINK, "-", 1.2),
}
WEIGHTED = {
    "weighted_theta": _Look(r"weighted $\Vert\theta\Vert$", style.SKY, "-", 1.2),
    "weighted_gradient": _Look(r"weighted $\Vert\nabla L\Vert$", style.BLUE, "--", 1.2),
}
# Height, in decades below the curves, of the row of minima of one criterion.
ROW = 0.16


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `criteria`.

    Args:
        table: example, criterion, seed, log_scale, value, balanced, minimiser.

    Returns:
        One panel an example and one for the counterexample, a page wide.
    """
    examples = dict(list(table.groupby("example", sort=False)))
    reach = float(table["log_scale"].to_numpy().max() - np.abs(table["balanced"].to_numpy()).max())
    figure, axes = style.panels(1, len(examples) + 1, style.PAGE, 2.6, sharey=True)
    for place, (example, rows) in zip(axes, examples.items(), strict=False):
        _panel(place, rows, CRITERIA, reach)
        length = str(example).removeprefix("chain")
        place.set_title("$f = u v x$" if example == "uv" else f"product of {length} numbers")
    _panel(axes[-1], examples["uv"], WEIGHTED, reach)
    axes[-1].set_title(r"$f = u v x$, norm $\sqrt{x^2 + 4 y^2}$")
    for place in axes:
        place.set(xlim=(-reach, reach), xlabel=r"$\log\,\lambda$ from balance")
        place.xaxis.set_major_locator(MultipleLocator(1.0))
    axes[0].set(ylabel="criterion / its minimum", yscale="log")
    axes[0].set_ylim(bottom=10.0 ** (-ROW * (len(CRITERIA) + 1)))
    axes[0].yaxis.set(major_locator=FixedLocator([1.0, 10.0, 100.0, 1000.0]), major_formatter="{x:g}")
    axes[0].yaxis.set_minor_locator(NullLocator())
    handles = _handles(len(set(table["seed"])))
    figure.legend(handles=handles, loc="outside upper center", ncols=8, columnspacing=1.2, handlelength=2.0)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, _Look], reach: float) -> None:
    """Curves of the first orbit, and in rows below them the minima of all, against the distance to balance."""
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    found = dict(list(rows.groupby("criterion")))
    for number, (criterion, look) in enumerate(looks.items(), start=1):
        orbits = found[criterion].drop_duplicates("seed")
        first = found[criterion].query(f"seed == {orbits['seed'].iloc[0]}")
        x, value = (first["log_scale"] - first["balanced"]).to_numpy(), first["value"].to_numpy()
        value = np.where(np.abs(x) <= reach, value / value.min(), np.nan)
        axes.plot(x, value, color=look.colour, linestyle=look.line, linewidth=look.width)
        least = (orbits["minimiser"] - orbits["balanced"]).to_numpy()
        height = np.full(len(least), 10.0 ** (-ROW * number))
        axes.plot(least, height, color=look.colour, marker="o", markersize=2.5, linestyle="")


def _handles(orbits: int) -> list[Line2D]:
    curves = [
        Line2D([], [], color=look.colour, linestyle=look.line, linewidth=look.width, label=look.label)
        for look in CRITERIA.values()
    ]
    label = f"minima of {orbits} orbits"
    return [*curves, Line2D([], [], color=style.GREY, marker="o", markersize=2.5, linestyle="", label=label)]
