"""Convergence of the alternating minimisation, by sweep."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import style

PAPER = (
    "Left: how far the objective is above its last value, as a fraction of its whole decrease, after each sweep. "
    "Right: mean absolute change of u = 2 log λ in each sweep. Means over seeds; bands of one standard deviation are "
    'smaller than the lines. The MLP has no pools: both ways to count them are one, and so are its curves. In "held", '
    "the channels before the last layer are not rescaled, as in the paper's solver."
)
LINES = {"plain": ("-", "pools as they are"), "exact": ("--", "exact pools")}
USED = 10  # sweeps of the paper's experiments


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `bcd`.

    Args:
        table: network, pooling, sweep, normalised_mean, normalised_sd, update_mean, update_sd.

    Returns:
        Two panels, a page wide.
    """
    figure, (left, right) = style.panels(1, 2, style.PAGE, 2.5, gridspec_kw={"wspace": 0.08})
    networks = [name for name in style.NETWORKS if name in set(table["network"])]
    poolings = [name for name in LINES if name in set(table["pooling"])]
    for axes, value in ((left, "normalised"), (right, "update")):
        for network in networks:
            for pooling in poolings:
                rows = table.query(f"network == {network!r} and pooling == {pooling!r} and sweep > 0")
                _curve(axes, rows, value, network, pooling)
        axes.set(xlabel="sweep", xscale="log", xlim=(1, max(2, *table["sweep"])))
        axes.xaxis.set_major_formatter("{x:g}")
        if max(table["sweep"]) > USED:
            axes.axvline(USED, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    left.set(ylabel="share of the decrease left", ylim=(-0.02, 1.02), title="Normalised objective")
    right.set(ylabel=r"mean $|u^{(k)} - u^{(k-1)}|$", yscale="log", title=r"Mean update of $u = 2\,\log\,\lambda$")
    if max(table["sweep"]) > USED:
        place = {"xytext": (3, 0), "textcoords": "offset points", "va": "top", "color": style.GREY}
        top = (USED, 0.98)
        right.annotate("the paper's\n10 sweeps", top, xycoords=right.get_xaxis_transform(), fontsize="x-small", **place)
    _legend(left, networks, poolings)
    return figure


def _curve(axes: Axes, rows: pd.DataFrame, value: str, network: str, pooling: str) -> None:
    mean, deviation = rows[f"{value}_mean"], rows[f"{value}_sd"].fillna(0.0)
    colour, marker, _ = style.NETWORKS[network]
    axes.plot(rows["sweep"], mean, color=colour, marker=marker, markevery=0.12, linestyle=LINES[pooling][0])
    low = (mean - deviation).clip(lower=0.01 * mean)  # zero would leave the logarithmic axis
    axes.fill_between(rows["sweep"], low, mean + deviation, color=colour, alpha=0.2, linewidth=0)


def _legend(axes: Axes, networks: list[str], poolings: list[str]) -> None:
    for network in networks:
        colour, marker, label = style.NETWORKS[network]
        axes.plot([], [], color=colour, marker=marker, label=label)
    for pooling in poolings:
        axes.plot([], [], color=style.GREY, linestyle=LINES[pooling][0], label=LINES[pooling][1])
    axes.legend(loc="upper right")
