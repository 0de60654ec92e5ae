"""Gradient descent on the one-neuron example: loss, paths in lifted and in parameter space, and a start that loses."""

from collections.abc import Iterator, Mapping
from itertools import cycle, zip_longest
from typing import cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paper.figures import style

PAPER = (
    "Gradient descent on f(x) = u relu(v x + w) from three starts, as drawn and rescaled by PathCond: loss, path of "
    "Phi = (uv, uw) beside the ideal one (gradient descent on Phi itself), and path of the parameters. The last panel "
    "is ours: a start that PathCond slows down."
)
# Line style, width and label of a run.
RUNS = {
    "raw": ("--", 1.1, "as drawn"),
    "rescaled": ("-", 1.6, "rescaled by PathCond"),
    "ideal": (":", 1.3, r"ideal: descent on $\Phi$"),
}
# Losses below this are as good as zero.
FLOOR = 1e-6


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `toy`.

    Args:
        table: start, extra, run, seed, step, loss, u, v, w, phi_1, phi_2.

    Returns:
        Four panels, a page wide.
    """
    figure, axes = style.panels(2, 2, style.PAGE, 4.6)
    main, extra = table.query("not extra"), table.query("extra")
    colours = dict(zip(main["start"].unique().tolist(), cycle(style.SERIES), strict=False))
    _losses(axes[0], main.query("run != 'ideal'"), colours)
    axes[0].set_title(f"Loss from {len(colours)} starts")
    _lifted(axes[1], main, colours)
    _parameters(axes[2], main.query("run != 'ideal'"), colours)
    slow = str(extra["start"].iloc[0])
    _losses(axes[3], extra, {slow: style.BLACK})
    axes[3].set_title(f"Loss from ({slow}): rescaling slows down")
    _legend(figure, colours)
    return figure


def _legend(figure: Figure, colours: Mapping[str, str]) -> None:
    """Two rows above the panels: starts over kinds of runs."""
    starts = [Line2D([], [], color=c, linewidth=3.0, label=f"start ({start})") for start, c in colours.items()]
    runs = [
        Line2D([], [], color=style.BLACK, linestyle=line, linewidth=width, label=label)
        for line, width, label in RUNS.values()
    ]
    pairs = zip_longest([*starts, Line2D([], [], color=style.BLACK, linewidth=0.5, label="the rescaling itself")], runs)
    handles = [handle for pair in pairs for handle in pair if handle is not None]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, columnspacing=2.0)


def _runs(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    for keys, path in rows.groupby(["start", "run", "seed"], sort=False):
        start, run, _ = cast(tuple[str, str, int], keys)
        yield start, run, path


def _losses(axes: Axes, rows: pd.DataFrame, colours: Mapping[str, str]) -> None:
    for start, run, path in _runs(rows):
        line, width, _ = RUNS[run]
        axes.plot(path["step"], path["loss"], color=colours[start], linestyle=line, linewidth=width)
    axes.set(yscale="log", xlabel="iteration", ylabel=r"loss $L(\theta)$")
    axes.set_xlim(0.0, rows["step"].to_numpy().max())
    axes.set_ylim(FLOOR, 2.0 * rows["loss"].to_numpy().max())


def _path(axes: Axes, path: pd.DataFrame, x: str, y: str, colour: str, run: str) -> None:
    """A run in the plane of two columns, with a dot where it starts."""
    line, width, _ = RUNS[run]
    axes.plot(path[x], path[y], color=colour, linestyle=line, linewidth=width)
    axes.plot(path[x].iloc[:1], path[y].iloc[:1], color=colour, marker="o", linestyle="")


def _lifted(axes: Axes, rows: pd.DataFrame, colours: Mapping[str, str]) -> None:
    for start, run, path in _runs(rows):
        _path(axes, path, "phi_1", "phi_2", colours[start], run)
    axes.plot(1.0, 0.0, color=style.BLACK, marker="*", markersize=8.0, linestyle="")
    axes.set(xlabel=r"$\Phi_1 = uv$", ylabel=r"$\Phi_2 = uw$", title="Path in lifted space (star: optimum)")


def _parameters(axes: Axes, rows: pd.DataFrame, colours: Mapping[str, str]) -> None:
    """Paths of (v, w); a rescaling moves the start along a ray, and the optima are all (v, 0) with v > 0."""
    for start, run, path in _runs(rows):
        _path(axes, path, "v", "w", colours[start], run)
    for start, path in rows.query("step == 0").groupby("start", sort=False):
        axes.plot(path["v"], path["w"], color=colours[str(start)], linewidth=0.5, zorder=1)
    axes.plot(
        [0.0, rows["v"].to_numpy().max()],
        [0.0, 0.0],
        color=style.GREY,
        linewidth=3.0,
        alpha=0.4,
        zorder=0,
        solid_capstyle="butt",
    )
    axes.set(xlabel="incoming weight $v$", ylabel="bias $w$", title="Path in parameter space (grey: optima)")
