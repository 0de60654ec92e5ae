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
    "Gradient descent on f(x) = u relu(v x + w) from three starts, each as it is and rescaled by PathCond: the loss, "
    "the path of Φ = (uv, uw) beside the ideal one (gradient descent on Φ itself), and the path of the parameters. "
    "The last panel is ours: a start from which PathCond is slower."
)
_Look = tuple[str, str]  # colour and marker of a start
# Line style, width and label of a run.
RUNS = {
    "raw": ("--", 1.1, "original start"),
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
    looks = dict(zip(main["start"].unique().tolist(), cycle(style.SERIES), strict=False))
    _losses(axes[0], main.query("run != 'ideal'"), looks)
    axes[0].set_title(f"Loss from {len(looks)} starts")
    _lifted(axes[1], main, looks)
    _parameters(axes[2], main.query("run != 'ideal'"), looks)
    slow = str(extra["start"].iloc[0])
    _losses(axes[3], extra, {slow: (style.BLACK, "")})
    axes[3].set_title(f"Loss from ({slow}): rescaling slows down")
    _legend(figure, looks)
    return figure


def _legend(figure: Figure, looks: Mapping[str, _Look]) -> None:
    """Two rows above the panels: starts over kinds of runs."""
    starts = [
        Line2D([], [], color=colour, marker=marker, linewidth=2.0, label=f"start ({start})")
        for start, (colour, marker) in looks.items()
    ]
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


def _losses(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, _Look]) -> None:
    for start, run, path in _runs(rows):
        (line, width, _), (colour, marker) = RUNS[run], looks[start]
        every = {"marker": marker, "markevery": 0.25}
        axes.plot(path["step"], path["loss"], color=colour, linestyle=line, linewidth=width, **every)
    axes.set(yscale="log", xlabel="iteration", ylabel=r"loss $L(\theta)$")
    axes.set_xlim(0.0, rows["step"].to_numpy().max())
    axes.set_ylim(FLOOR, 2.0 * rows["loss"].to_numpy().max())


def _path(axes: Axes, path: pd.DataFrame, x: str, y: str, look: _Look, run: str) -> None:
    """A run in the plane of two columns, with its marker where it starts."""
    (line, width, _), (colour, marker) = RUNS[run], look
    axes.plot(path[x], path[y], color=colour, linestyle=line, linewidth=width)
    axes.plot(path[x].iloc[:1], path[y].iloc[:1], color=colour, marker=marker, linestyle="")


def _lifted(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, _Look]) -> None:
    for start, run, path in _runs(rows):
        _path(axes, path, "phi_1", "phi_2", looks[start], run)
    axes.plot(1.0, 0.0, color=style.BLACK, marker="*", markersize=8.0, linestyle="")
    axes.set(xlabel=r"$\Phi_1 = uv$", ylabel=r"$\Phi_2 = uw$", title="Path in lifted space (star: optimum)")


def _parameters(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, _Look]) -> None:
    """Paths of (v, w); a rescaling moves the start along a ray, and the optima are all (v, 0) with v > 0."""
    for start, run, path in _runs(rows):
        _path(axes, path, "v", "w", looks[start], run)
    for start, path in rows.query("step == 0").groupby("start", sort=False):
        axes.plot(path["v"], path["w"], color=looks[str(start)][0], linewidth=0.5, zorder=1)
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
