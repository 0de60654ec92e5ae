"""A :class:`pathcond.Rescaling` as a figure; matplotlib is optional."""

from __future__ import annotations

from typing import Any

from pathcond.checks import optional_package


def plot(report: Any, axes: Any = None) -> Any:
    """Draw the scale of every channel by module: one point per channel with a free scale, 1 is the scale before.

    Args:
        report: what is drawn.
        axes: matplotlib axes to draw on; None for a new figure.

    Returns:
        The axes. Needs matplotlib.
    """
    plt = optional_package("matplotlib.pyplot", "plot", "Install pathcond[plot].")
    names = report.modules
    if axes is None:
        _, axes = plt.subplots(figsize=(max(4.0, min(12.0, 1.5 + 0.5 * len(names))), 3.6), layout="constrained")
    for place, name in enumerate(names):
        scales = report.scales[name][report.graph.layers[name] != 0].tolist() if name in report.scales else []
        x = [place - 0.25 + 0.5 * (i + 0.5) / len(scales) for i in range(len(scales))]
        axes.plot(x, scales, linestyle="", marker=".", markersize=4, color="#0072B2")
    axes.axhline(1.0, color="#777777", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), [name or "(model)" for name in names], rotation=90 if len(names) > 8 else 0)
    axes.set_ylabel("scale lambda of a channel (before: 1)")
    return axes
