"""Smooth activations: their graphs, and the output change that a rescaling makes."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import style

PAPER = (
    "Left: GELU and SiLU beside ReLU. Right: relative change of the output that the rescaling makes in MLPs with "
    "these activations, against depth, for two initialisations. Means over seeds; bands are one standard deviation."
)
# Colour, marker, label and graph of an activation.
ACTIVATIONS = {
    "gelu": (style.BLUE, "o", "GELU", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
    "silu": (style.ORANGE, "s", "SiLU", lambda x: x / (1 + math.exp(-x))),
    "relu": (style.BLACK, "", "ReLU", lambda x: max(x, 0.0)),
}
LINES = {"default": ("-", "default initialisation"), "he": ("--", "He initialisation")}


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `smooth`.

    Args:
        table: activation, initialisation, hidden_layers, error_mean, error_sd.

    Returns:
        Two panels, a page wide.
    """
    figure, (left, right) = style.panels(1, 2, style.PAGE, 2.5, gridspec_kw={"wspace": 0.08})
    names = list(dict.fromkeys(table["activation"]))
    _activations(left, names)
    smooth = table.query("activation != 'relu'")
    for initialisation in dict.fromkeys(smooth["initialisation"]):
        for name in names:
            rows = smooth.query(f"activation == {name!r} and initialisation == {initialisation!r}")
            _curve(right, rows, name, initialisation)
        line, label = LINES[initialisation]
        right.plot([], [], color=style.GREY, linestyle=line, label=label)
    right.set(xlabel="hidden layers", ylabel="relative output change", yscale="log", title="Change made by rescaling")
    right.set_ylim(0.2 * min(smooth["error_mean"]), max(2.0, 2 * max(smooth["error_mean"])))
    right.set_xticks(sorted(set(smooth["hidden_layers"])))
    relu = table.query("activation == 'relu'")
    if len(relu):
        text = f"ReLU: at most {max(relu['error_mean']):.0e} (rounding)"
        right.text(0.97, 0.04, text, transform=right.transAxes, ha="right", fontsize="x-small")
    right.legend(loc="lower left")
    return figure


def _activations(axes: Axes, names: list[str]) -> None:
    x = np.linspace(-4, 3, 281)
    for number, name in enumerate(names):
        colour, marker, label, function = ACTIVATIONS[name]
        look = {"color": colour, "marker": marker, "markevery": (10 * number, 40)}
        axes.plot(x, [function(value) for value in x], label=label, **look)
    axes.set(xlabel="$x$", ylabel="activation", xlim=(-4, 3), title="Activations")
    axes.legend(loc="upper left")


def _curve(axes: Axes, rows: pd.DataFrame, activation: str, initialisation: str) -> None:
    colour, marker, _, _ = ACTIVATIONS[activation]
    x, mean, deviation = rows["hidden_layers"], rows["error_mean"], rows["error_sd"].fillna(0.0)
    axes.plot(x, mean, color=colour, marker=marker, linestyle=LINES[initialisation][0])
    low = (mean - deviation).clip(lower=1e-30)  # a band down to zero runs out of the logarithmic axis
    axes.fill_between(x, low, mean + deviation, color=colour, alpha=0.2, linewidth=0)
