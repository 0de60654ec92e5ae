"""Time of the rescaling by depth of an MLP, and its split by step."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import style
from paper.figures.timing import duration, hardware_note

PAPER = (
    "Left: time of the rescaling of MLPs against depth, beside that of one training epoch; means over runs, bars are "
    "one standard deviation. Right: how the time of the rescaling splits into its four steps, for three networks."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `timing_depth`.

    Args:
        table: panel ("depth" or "split"), step, seconds_mean, seconds_sd, batches, epoch_batches, hardware, and for
            depth hidden_layers, parameters, for split network, pooling.

    Returns:
        Two panels, a page wide.
    """
    figure, (left, right) = style.panels(1, 2, style.PAGE, 2.8, gridspec_kw={"wspace": 0.1})
    depth = table.query("panel == 'depth'")
    _depth(left, depth)
    _split(right, table.query("panel == 'split'"))
    figure.suptitle(hardware_note(depth).replace("\n", "; "), fontsize="medium", color=style.GREY)
    return figure


def _depth(axes: Axes, table: pd.DataFrame) -> None:
    for step, method, label in (("epoch", "baseline", "one training epoch"), ("total", "pathcond", "rescaling")):
        rows = table.query(f"step == {step!r}").sort_values("hidden_layers")
        x, mean, deviation = rows["hidden_layers"], rows["seconds_mean"], rows["seconds_sd"].fillna(0.0)
        colour, marker, _ = style.METHODS[method]
        axes.errorbar(x, mean, yerr=deviation, color=colour, marker=marker, label=label)
    sizes = dict(sorted(zip(table["hidden_layers"], table["parameters"], strict=True)))
    axes.set_xticks(list(sizes), [f"{layers:.0f}\n{_short(size)}" for layers, size in sizes.items()])
    axes.set(yscale="log", xlabel="hidden layers, parameters", ylabel="seconds", title="Rescaling of MLPs, by depth")
    axes.legend(loc="best")


def _short(count: float) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.1f}k"


def _split(axes: Axes, table: pd.DataFrame) -> None:
    pooling = "plain" if "plain" in set(table["pooling"]) else table["pooling"].tolist()[0]
    rows = table.query(f"pooling == {pooling!r}")
    networks = [name for name in style.NETWORKS if name in set(rows["network"])]
    seconds = dict(zip(zip(rows["network"], rows["step"], strict=True), rows["seconds_mean"], strict=True))
    for x, network in enumerate(networks):
        total, bottom = seconds[network, "total"], 0.0
        for step, (colour, label) in style.STEPS.items():
            share = 100 * seconds[network, step] / total
            axes.bar(x, share, 0.62, bottom, color=colour, label=None if x else label)
            at, side = (x, "center") if share >= 6 else (x + 0.33, "left")  # beside a part too thin for it
            axes.text(at, bottom + share / 2, f"{share:.0f}%", ha=side, va="center", fontsize="x-small")
            bottom += share
        place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center"}
        axes.annotate(duration(total), (x, 100), **place)
    axes.set(ylabel="share of the time, %", ylim=(0, 110), title="Rescaling by step")
    axes.set_xticks(range(len(networks)), [style.NETWORKS[network][2] for network in networks])
    axes.set_yticks(range(0, 101, 25))
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
