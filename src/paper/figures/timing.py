"""Time of the rescaling as a share of one epoch of training, for three networks."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import style

PAPER = (
    "Time of the whole rescaling at initialisation as a share of one training epoch on CIFAR-10, for three networks; "
    "means over runs after a warm-up, bars are one standard deviation. The MLP has no pools: both ways to count them "
    "are one computation, and drawn once."
)
POOLINGS = {
    "plain": (style.METHODS["pathcond"][0], "^", "pools as they are"),
    "exact": (style.BLUE, "s", "exact pools"),
}
NO_POOLS = "mlp"  # both ways to count pools are one computation


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
    epochs = _rows(table, networks, poolings[0], "epoch")
    for number, pooling in enumerate(poolings):
        colour, marker, label = POOLINGS[pooling]
        axes.plot([], [], color=colour, marker=marker, linestyle="", label=label)
        for place, total in enumerate(_rows(table, networks, pooling, "total")):
            alone = networks[place] == NO_POOLS
            if number and alone:
                continue
            x = place + (0.0 if alone else 0.4 * (number - (len(poolings) - 1) / 2))
            _dot(axes, x, total, epochs[place]["seconds_mean"], colour, marker)
    axes.set(ylabel="time of the rescaling,\n% of one training epoch", title=hardware_note(table))
    axes.set(xlim=(-0.5, len(networks) - 0.5), ylim=(0.0, 1.35 * axes.get_ylim()[1]))
    axes.set_xticks(range(len(networks)), [_name(*pair) for pair in zip(networks, epochs, strict=True)])
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", borderaxespad=0.1, ncols=2)
    return figure


def percent(share: float) -> str:
    """A share as text with two digits or more, such as 0.86% or 103%."""
    return f"{100 * share:#.2g}%" if share < 0.0995 else f"{100 * share:.0f}%"


def duration(seconds: float) -> str:
    """A time as text with three digits, such as 38.2 ms or 1.25 s."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


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


def _name(network: str, epoch: dict[str, Any]) -> str:
    """A network, and how long its epoch takes."""
    pools = " (no pools)" if network == NO_POOLS else ""
    spread = f" ± {float(f'{_deviation(epoch):.1g}'):g}" if _deviation(epoch) else ""
    seconds = epoch["seconds_mean"]
    mean = f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}"
    return f"{style.NETWORKS[network][2]}{pools}\nepoch:\n{mean}{spread} s"


def _dot(axes: Axes, x: float, total: dict[str, Any], epoch: float, colour: str, marker: str) -> None:
    """Share of an epoch with its deviation, and the share and the time in words."""
    share, deviation = total["seconds_mean"] / epoch, _deviation(total) / epoch
    axes.errorbar(x, 100 * share, 100 * deviation, color=colour, marker=marker)
    place = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    text = f"{percent(share)}\n{duration(total['seconds_mean'])}"
    axes.annotate(text, (x, 100 * (share + deviation)), fontsize="x-small", **place)
