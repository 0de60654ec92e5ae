"""A :class:`pathcond.Rescaling` as a figure and as an HTML table; matplotlib is optional."""

from __future__ import annotations

import html
from typing import Any

import torch

from pathcond.checks import optional_package


def plot(report: Any, axes: Any = None) -> Any:
    """Draw the scale of every channel by module: one point per channel, 1 is the scale before.

    Orange points are at the bound, gray crosses have no path; frozen channels are counted above their module.

    Args:
        report: what is drawn.
        axes: matplotlib axes to draw on; None for a new figure.

    Returns:
        The axes. Needs matplotlib.
    """
    plt = optional_package("matplotlib.pyplot", "plot", "Install pathcond[plot].")
    graph, names = report.graph, report.modules
    if axes is None:
        _, axes = plt.subplots(figsize=(max(4.0, min(12.0, 1.5 + 0.5 * len(names))), 3.6), layout="constrained")
    # The bound holds before damping for all units alike, so those at the bound are the ones with the largest scales.
    log_scales = report.solution.log_scales.cpu()
    bound = torch.zeros(graph.units, dtype=torch.bool)
    bound[log_scales.abs().argsort(descending=True)[: report.at_bound]] = True
    dead = torch.zeros(graph.units, dtype=torch.bool)
    dead[list(report.solution.dead)] = True
    for place, name in enumerate(names):
        numbers = graph.layers.get(name, torch.zeros(0, dtype=torch.int64))
        units = numbers[numbers != 0].abs() - 1
        x = place + 0.5 * torch.linspace(-0.5, 0.5, len(units)) if len(units) > 1 else torch.full((len(units),), place)
        y = report.scales[name].cpu()[numbers != 0] if len(units) else torch.zeros(0)
        for chosen, style in (
            (~bound[units] & ~dead[units], {"color": "#0072B2", "marker": "."}),
            (bound[units], {"color": "#D55E00", "marker": "."}),
            (dead[units], {"color": "#777777", "marker": "x"}),
        ):
            axes.plot(x[chosen].tolist(), y[chosen].tolist(), linestyle="", markersize=4, **style)
        if frozen := sum(entry.channels for entry in graph.frozen_by_module.get(name, ())):
            at = {"xycoords": ("data", "axes fraction"), "fontsize": "small", "color": "#777777", "ha": "center"}
            axes.annotate(f"{frozen} frozen", (place, 1.01), **at)
    axes.axhline(1.0, color="#777777", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), [name or "(model)" for name in names], rotation=90 if len(names) > 8 else 0)
    axes.set_ylabel("scale lambda of a channel (before: 1)")
    return axes


def to_html(report: Any) -> str:
    """The summary and the table by module, for notebooks."""
    head, *rows = report.rows()
    cells = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    return f"<pre>{html.escape(str(report))}</pre><table><tr>{titles}</tr>{''.join(cells)}</table>"
