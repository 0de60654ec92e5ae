"""Expected diag(G) by layer: formula, random networks, and what the paper prints where that is something else."""

import math
from collections.abc import Mapping
from itertools import cycle

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from paper.figures import style

PAPER = (
    "Proposition and appendix: expected diag(G) of fully connected networks at initialisation, by layer and by "
    "a = n sigma^2. Lines are the formulas as corrected, dots the mean over random networks with two standard errors, "
    "crosses what the paper prints where it differs."
)
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


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `theory`.

    Args:
        table: case, kind, layer, a, formula, monte_carlo, standard_error, printed, printed_off.

    Returns:
        One panel a case, a page wide.
    """
    cases = dict(list(table.groupby("case", sort=False)))
    names = [case for case in TITLES if case in cases] + [case for case in cases if case not in TITLES]
    several = [a for rows in cases.values() if len(set(rows["a"].dropna())) > 1 for a in rows["a"]]
    colours = dict(zip(sorted(set(several)), cycle(style.SERIES), strict=False))
    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    figure, axes = style.panels(lines, columns, style.PAGE, 0.6 + 1.9 * lines)
    for place, name in zip(axes, names, strict=False):
        _panel(place, cases[name], colours)
        place.set_title(_title(str(name), cases[name]))
        place.set_xlabel("layer $k$")
    for place in axes[len(names) :]:
        place.set_visible(False)
    for place in axes[::columns]:
        place.set_ylabel("expected $g$")
    figure.legend(
        handles=_handles(colours),
        loc="outside upper center",
        ncols=8,
        columnspacing=0.9,
        handlelength=1.5,
        handletextpad=0.5,
    )
    return figure


def _title(case: str, rows: pd.DataFrame) -> str:
    values = set(rows["a"].dropna())
    title = TITLES.get(case, case.replace("_", " "))
    return f"{title}\n$a$ = {values.pop():g}" if len(values) == 1 else title


def _panel(axes: Axes, rows: pd.DataFrame, colours: Mapping[float, str]) -> None:
    """Weights; biases too, unless they would hide how far a printed formula is off."""
    biases = not rows["printed_off"].any()
    for (a, kind), found in rows.groupby(["a", "kind"], dropna=False):
        if kind == "bias" and not biases:
            continue
        colour = colours.get(a, style.BLACK)
        line, face = ("-", colour) if kind == "edge" else (":", "white")
        first = found.drop_duplicates("layer")
        axes.plot(first["layer"], first["formula"], color=colour, linestyle=line, linewidth=1.0)
        axes.errorbar(
            found["layer"], found["monte_carlo"], 2.0 * found["standard_error"],
            color=colour, marker="o", markerfacecolor=face, linestyle="",
        )  # fmt: skip
    off = rows.query("printed_off")
    axes.vlines(off["layer"], off["formula"], off["printed"], color=style.RED, linewidth=0.7, zorder=3)
    axes.plot(off["layer"], off["printed"], color=style.RED, marker="x", markersize=4.5, linestyle="", zorder=3)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    narrow = high < 100.0 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    if narrow:
        axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _handles(colours: Mapping[float, str]) -> list[Line2D]:
    series = [Line2D([], [], color=colour, linewidth=3.0, label=f"$a$ = {a:.2g}") for a, colour in colours.items()]
    black, red = style.BLACK, style.RED
    return [
        *series,
        Line2D([], [], color=black, linewidth=1.0, label="formula"),
        Line2D([], [], color=black, linestyle="", marker="o", label="random networks"),
        Line2D([], [], color=black, linewidth=1.0, linestyle=":", marker="o", markerfacecolor="white", label="biases"),
        Line2D([], [], color=red, linestyle="", marker="x", markersize=4.5, label="paper's formula, where wrong"),
    ]
