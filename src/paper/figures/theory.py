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
    "Expected diag(G) of fully connected networks at initialisation, by layer and by a = n σ². Lines are the formulas "
    "as corrected, markers the means over random networks (two standard errors are smaller than the markers), crosses "
    "what the paper prints where it differs, each tied to its own curve."
)
ASIDE = 0.07  # layers between the crosses of two values of a
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
    looks = dict(zip(sorted(set(several)), cycle(style.SERIES), strict=False))
    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    figure, axes = style.panels(lines, columns, style.PAGE, 0.6 + 1.9 * lines)
    for place, name in zip(axes, names, strict=False):
        _panel(place, cases[name], looks)
        place.set_title(_title(str(name), cases[name]))
        place.set_xlabel("layer $k$")
    for place in axes[len(names) :]:
        place.set_visible(False)
    for place in axes[::columns]:
        place.set_ylabel("expected $g$")
    figure.legend(
        handles=_handles(looks),
        loc="outside upper center",
        ncols=8,
        columnspacing=0.9,
        handlelength=1.5,
        handletextpad=0.5,
    )
    if len(looks) > 1:
        style.note(figure, "crosses of several values of $a$ stand side by side, each tied to its own curve")
    return figure


def _title(case: str, rows: pd.DataFrame) -> str:
    values = set(rows["a"].dropna())
    title = TITLES.get(case, case.replace("_", " "))
    return f"{title}\n$a$ = {values.pop():g}" if len(values) == 1 else title


def _panel(axes: Axes, rows: pd.DataFrame, looks: Mapping[float, tuple[str, str]]) -> None:
    """Weights; biases too, unless they would hide how far a printed formula is off."""
    biases = not rows["printed_off"].any()
    for (a, kind), found in rows.groupby(["a", "kind"], dropna=False):
        if kind == "bias" and not biases:
            continue
        colour, marker = looks.get(a, (style.BLACK, "o"))
        line, face = ("-", colour) if kind == "edge" else (":", "white")
        first = found.drop_duplicates("layer")
        axes.plot(first["layer"], first["formula"], color=colour, linestyle=line, linewidth=1.0)
        axes.errorbar(
            found["layer"], found["monte_carlo"], 2.0 * found["standard_error"],
            color=colour, marker=marker, markerfacecolor=face, linestyle="",
        )  # fmt: skip
    _printed(axes, rows.query("printed_off"), looks)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    narrow = high < 100.0 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    if narrow:
        axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _printed(axes: Axes, off: pd.DataFrame, looks: Mapping[float, tuple[str, str]]) -> None:
    """Crosses at what the paper prints, tied to the formula's dots; a little aside, or those of two values overlap."""
    values = list(looks)
    for a, found in off.groupby("a", dropna=False):
        colour = looks[a][0] if a in looks else style.RED
        x = found["layer"] + (ASIDE * (values.index(a) - (len(values) - 1) / 2) if a in looks else 0.0)
        axes.vlines(x, found["formula"], found["printed"], color=colour, linewidth=0.7)
        axes.plot(x, found["printed"], color=style.RED, marker="x", markersize=4.5, linestyle="", zorder=3)


def _handles(looks: Mapping[float, tuple[str, str]]) -> list[Line2D]:
    series = [Line2D([], [], color=c, marker=m, label=f"$a$ = {a:.2g}") for a, (c, m) in looks.items()]
    black, red = style.BLACK, style.RED
    return [
        *series,
        Line2D([], [], color=black, linewidth=1.0, label="formula"),
        Line2D([], [], color=black, linestyle="", marker="o", label="random networks"),
        Line2D([], [], color=black, linewidth=1.0, linestyle=":", marker="o", markerfacecolor="white", label="biases"),
        Line2D([], [], color=red, linestyle="", marker="x", markersize=4.5, label="paper's formula, where wrong"),
    ]
