"""How every figure looks: sizes, colours by meaning, labels. Nothing is drawn here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Widths of the paper's columns, in inches.
COLUMN, PAGE = 3.25, 6.75

# Okabe and Ito's palette, told apart by all common kinds of colour blindness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#777777"

# One colour, marker and label a method, in every figure.
METHODS = {
    "baseline": (GREY, "o", "Baseline"),
    "enorm": (GREEN, "s", "ENorm"),
    "pathcond": (RED, "^", "PathCond"),
    "rows": (BLUE, "v", "rows alone"),
    "columns": (ORANGE, "D", "columns alone"),
    "exact": (SKY, "P", "exact BatchNorm"),
    "optimum": (PINK, "<", "optimum"),
    "teleport": (BLACK, "*", "every 10 epochs"),
}
# The paper's networks, where a figure compares them.
NETWORKS = {
    "mlp": (BLUE, "o", "MLP"),
    "cifar_nv": (ORANGE, "s", "CIFAR-NV"),
    "resnet18_c": (GREEN, "^", "ResNet-18-C"),
    "resnet18_c_held": (PINK, "D", "ResNet-18-C, held"),
}
# Steps of the rescaling, where a figure splits its time.
STEPS = {
    "diag_g": (SKY, "diag(G)"),
    "graph": (GREEN, "graph"),
    "solve": (RED, "solve"),
    "apply": (YELLOW, "apply"),
}
# Colours and markers of values that are not of a kind above: take them in this order.
SERIES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PINK, "D"), (SKY, "v"), (BLACK, "P"))


@contextmanager
def look(font_size: float) -> Iterator[None]:
    """Matplotlib's settings for our figures, put back afterwards."""
    settings: dict[str, Any] = {
        "font.size": font_size,
        "font.family": "DejaVu Sans",
        "axes.titlesize": font_size,
        "axes.labelsize": font_size,
        "xtick.labelsize": font_size - 1,
        "ytick.labelsize": font_size - 1,
        "legend.fontsize": font_size - 1,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.4,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "errorbar.capsize": 2.0,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "figure.dpi": 150,
        "pdf.fonttype": 42,
        "svg.hashsalt": "pathcond",
    }
    with mpl.rc_context(settings):
        yield


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of axes, in reading order, that leaves room below for the line of `stamp`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def band(
    axes: Axes, x: Sequence[float], middle: Sequence[float], low: Sequence[float], high: Sequence[float],
    colour: str, label: str | None = None, marker: str = "",
) -> None:  # fmt: skip
    """A curve with its spread shaded."""
    axes.plot(x, middle, color=colour, marker=marker, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def note(figure: Figure, text: str) -> None:
    """Something to know about the figure, which `stamp` sets above its own line."""
    figure.supxlabel(text)


def stamp(figure: Figure, text: str) -> None:
    """One grey line under the figure and its note: scale, images, epochs, seeds, hardware."""
    lines = [line for line in (figure.get_supxlabel(), text) if line]
    figure.supxlabel("\n".join(lines), x=0.5, fontsize=mpl.rcParams["font.size"] - 2, color=GREY)
