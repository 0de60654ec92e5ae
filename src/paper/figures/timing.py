"""Time of the rescaling against one epoch of training, for three networks."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import style

PAPER = (
    "Wall time of the whole rescaling at initialisation beside that of one training epoch on CIFAR-10, for three "
    "networks; mean and deviation over runs after a warm-up. Percentages are shares of the epoch."
)
POOLINGS = {
    "plain": (style.METHODS["pathcond"][0], "PathCond, pools as they are"),
    "exact": (style.ORANGE, "PathCond, exact pools"),
}


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `timing`.

    Args:
        table: network, pooling, step, seconds_mean, seconds_sd, batches, epoch_batches, hardware.

    Returns:
        One panel, a column wide.
    """
    figure, (axes,) = style.panels(1, 1, style.COLUMN, 2.7)
    networks = [name for name in style.NETWORKS if name in set(table["network"])]
    poolings = [name for name in POOLINGS if name in set(table["pooling"])]
    width = 0.84 / (len(poolings) + 1)
    epochs = _rows(table, networks, poolings[0], "epoch")
    for number, pooling in enumerate(poolings):
        places = [place + (number - len(poolings) / 2) * width for place in range(len(networks))]
        totals = _rows(table, networks, pooling, "total")
        _bars(axes, places, totals, width, *POOLINGS[pooling])
        for x, total, epoch in zip(places, totals, epochs, strict=True):
            share = percent(total["seconds_mean"] / epoch["seconds_mean"])
            top = total["seconds_mean"] + _deviation(total)
            place = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            axes.annotate(share, (x, top), rotation=90, fontsize="x-small", **place)
    places = [place + len(poolings) / 2 * width for place in range(len(networks))]
    _bars(axes, places, epochs, width, style.METHODS["baseline"][0], "one training epoch")
    shown = table.query("step == 'total' or step == 'epoch'")["seconds_mean"]
    axes.set(yscale="log", ylabel="seconds", ylim=(0.3 * min(shown), 30 * max(shown)), title=hardware_note(table))
    axes.set_xticks(range(len(networks)), [style.NETWORKS[network][2] for network in networks])
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", borderaxespad=0.1)
    return figure


def percent(share: float) -> str:
    """A share as text with two digits or more, such as 0.86% or 103%."""
    return f"{100 * share:#.2g}%" if share < 0.0995 else f"{100 * share:.0f}%"


def hardware_note(table: pd.DataFrame) -> str:
    """What was timed on, and how much of an epoch, in two lines."""
    pairs = dict.fromkeys(zip(table["batches"], table["epoch_batches"], strict=True))
    scaled = [f"{part:.0f} of {whole:.0f}" for part, whole in pairs if part < whole]
    note = f"epoch scaled up from {' or '.join(scaled)} batches" if scaled else "whole epochs timed"
    return f"{' and '.join(dict.fromkeys(table['hardware']))}\n{note}"


def _rows(table: pd.DataFrame, networks: list[str], pooling: str, step: str) -> list[dict[str, Any]]:
    rows = table.query(f"pooling == {pooling!r} and step == {step!r}").set_index("network")
    return rows.reindex(index=networks).to_dict("records")


def _deviation(row: dict[str, Any]) -> float:
    """Zero where there was one run."""
    return 0.0 if math.isnan(row["seconds_sd"]) else row["seconds_sd"]


def _bars(axes: Axes, places: list[float], rows: list[dict[str, Any]], width: float, colour: str, label: str) -> None:
    means, deviations = [row["seconds_mean"] for row in rows], [_deviation(row) for row in rows]
    error = {"elinewidth": 0.8, "capthick": 0.8}
    axes.bar(places, means, 0.92 * width, yerr=deviations, color=colour, label=label, error_kw=error)
