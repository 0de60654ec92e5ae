"""Panels that the figures of trained networks share. Cells with seeds that did not get there are marked, never dropped.

A table has the panels of `paper.curves`: curve, run and cell.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Transform, offset_copy

from paper.figures import ordinate, style

PAPER_LR = 1e-3  # of the paper's main figures
PAPER_DEPTH = 3  # hidden layers of the network whose curves it shows
SPREAD = 15.0  # points across which the methods' markers stand at one abscissa
SIDE = "markers at one tick stand side by side, for legibility"
OPEN = "open: target not met\nbefore the end"
SOME = "\n(k/n: by k of n seeds)"
END = "end of training"
CROSS = "cross: diverged (k/n: k of n seeds)"
EPOCHS = tuple(float(f"{first}e{power}") for power in range(4) for first in (1, 2, 3, 5, 7))  # ticks
LINES = {"enorm": "--"}  # it often lies on the baseline
LABELS = {"train_loss": "train loss", "train_accuracy": "train accuracy (%)", "test_accuracy": "test accuracy (%)"}


def methods(table: pd.DataFrame) -> list[str]:
    """Methods of a table, in the order of `style.METHODS`."""
    return [name for name in style.METHODS if name in set(table["method"])]


def panel(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one panel."""
    return table[table["panel"] == name]


def at_paper_lr(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with the paper's learning rate if it is there, else the smallest."""
    chosen = PAPER_LR if PAPER_LR in set(table["lr"]) else table["lr"].min()
    return table[table["lr"] == chosen]


def shown_depth(table: pd.DataFrame) -> int:
    """Hidden layers of the network whose curves are drawn: the one marked, else the paper's, else the middle one."""
    marked = table.loc[table["shown"], "hidden_layers"]
    if len(marked):
        return int(marked.iloc[0])
    depths = sorted({int(depth) for depth in table["hidden_layers"]})
    return PAPER_DEPTH if PAPER_DEPTH in depths else depths[len(depths) // 2]


def by_depth(table: pd.DataFrame) -> Figure:
    """Epochs to the target against parameters, then accuracy and loss of the network shown; a page wide."""
    figure, (left, middle, right) = style.panels(1, 3, style.PAGE, 2.7)
    table = at_paper_lr(table)
    depth = shown_depth(table)
    one = table[table["hidden_layers"] == depth]
    reach(left, table, "parameters")
    parameters_axis(left, table)
    epochs_axis(left, table)
    left.set_title(f"MLPs by depth, lr {one['lr'].iloc[0]:g}")
    over_epochs(middle, one, "train_accuracy", f"Train accuracy, {depth} hidden layers")
    over_epochs(right, one, "train_loss", f"Train loss, {depth} hidden layers")
    legend(figure, table)
    return figure


def parameters_axis(axes: Axes, table: pd.DataFrame) -> None:
    """An abscissa of parameters: a tick a network, with its hidden layers below."""
    found = panel(table, "cell").drop_duplicates("parameters").sort_values("parameters")
    names = [f"{p / 1e6:#.2g}\n{d:.0f}" for p, d in zip(found["parameters"], found["hidden_layers"], strict=True)]
    axes.set_xticks(found["parameters"].tolist(), names)
    axes.set(xlabel="parameters (millions)\nhidden layers", xlim=_around(found["parameters"]))


def rates_axis(axes: Axes, table: pd.DataFrame) -> None:
    """A logarithmic abscissa of learning rates, with a tick at each."""
    lrs = sorted(set(table["lr"]))
    axes.set(xscale="log", xlabel="learning rate", xlim=(lrs[0] / 1.5, lrs[-1] * 1.5))
    axes.set_xticks(lrs, [f"{lr:g}" for lr in lrs])
    axes.xaxis.set_minor_locator(NullLocator())


def epochs_axis(axes: Axes, table: pd.DataFrame, log: bool = False) -> None:
    """An ordinate of epochs up to the limit, with room above it for cells that are open."""
    limit, met = float(panel(table, "cell")["epochs"].max()), panel(table, "run")["reached"].dropna()
    low = 0.7 * max(1.0, min(met.min(), limit)) if log and len(met) else 0.7 if log else 0.0
    high = limit
    if open_cells(table):
        axes.axhline(limit, color=style.GREY, linewidth=0.6, linestyle="--", zorder=1)
        high = limit * (limit / low) ** 0.3 if log else 1.3 * limit
    elif len(met):
        high = min(1.05 * limit, 1.15 * met.max())
    axes.set(ylabel="epochs to target", yscale="log" if log else "linear", ylim=(low, high))
    if log:
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_yticks([tick for tick in EPOCHS if low <= tick <= limit])
    else:
        axes.set_yticks([tick for tick in axes.get_yticks() if tick <= min(limit, high)])


def reach(axes: Axes, table: pd.DataFrame, x: str) -> None:
    """Epochs to the target against `x`; a cell that some seed leaves open stands at its limit, open, with the count."""
    for cells, shift, look in _by_method(table, x):
        _means(axes, table, cells, x, "reached", shift, look)
        for cell in cells[cells["reached_n"] < cells["n"]].to_dict("records"):
            at, (here, above, higher) = (cell[x], cell["epochs"]), (_moved(axes, shift, up) for up in (0.0, 6.0, 11.0))
            axes.plot(*at, linestyle="", zorder=4, markerfacecolor="white", transform=here, **look)
            arrow = {"marker": r"$\uparrow$", "markersize": 5, "markeredgewidth": 0.0}
            axes.plot(*at, linestyle="", color=look["color"], transform=above, **arrow)
            if cell["reached_n"]:
                _count(axes, at, cell["reached_n"], cell["n"], look["color"], transform=higher, va="bottom")


def settled(axes: Axes, table: pd.DataFrame, x: str, value: str, log: bool = False) -> None:
    """Means of a final loss against `x`; where seeds diverged, a cross at the top with the count."""
    ordinate.losses(axes, _values(table, value), room=0.3 if len(_lost(table)) else 0.0, log=log)
    for cells, shift, look in _by_method(table, x):
        _means(axes, table, cells, x, value, shift, look)
        for cell in _lost(cells).to_dict("records"):
            top, below = (_moved(axes, shift, down, axes.get_xaxis_transform()) for down in (0.0, -5.0))
            at = cell[x], 1.0
            axes.plot(*at, color=look["color"], marker="x", transform=top, clip_on=False, zorder=4)
            _count(axes, at, cell["diverged_n"], cell["n"], look["color"], transform=below, va="top")


def over_epochs(axes: Axes, table: pd.DataFrame, value: str, title: str = "") -> None:
    """Mean and deviation over seeds of a metric after each epoch, one curve a method."""
    accuracy = value.endswith("accuracy")
    curves = _with_band(panel(table, "curve").sort_values("epoch"), value, accuracy)
    if not accuracy:
        ordinate.losses(axes, pd.concat([curves["low"], curves["high"]]))
        _note_diverged(axes, table)
    for method in methods(curves):
        rows, colour = curves[curves["method"] == method], style.METHODS[method][0]
        axes.plot(rows["epoch"], rows["middle"], color=colour, linestyle=LINES.get(method, "-"))
        axes.fill_between(rows["epoch"], rows["low"], rows["high"], color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="epoch", ylabel=LABELS[value], title=title, xlim=(0, curves["epoch"].max()))


def learning(axes: Sequence[Axes], table: pd.DataFrame) -> None:
    """Train loss, train accuracy and test accuracy in three panels."""
    for place, value in zip(axes, ("train_loss", "train_accuracy", "test_accuracy"), strict=True):
        over_epochs(place, table, value)


def final_losses(axes: Sequence[Axes], tables: Sequence[pd.DataFrame]) -> None:
    """Final train losses against the compression factor, a table a panel; logarithmic in all panels or in none."""
    log = any(ordinate.wide(_values(table, "final_train_loss")) for table in tables)
    for place, table in zip(axes, tables, strict=True):
        settled(place, table, "compression", "final_train_loss", log)
        _compressions(place, table)
    axes[0].set_ylabel("final train loss" + " (log scale)" * log)


def rescaling(axes: Axes, table: pd.DataFrame) -> None:
    """PathCond's largest log-rescaling against the compression factor, and how the paper's differ from ours."""
    for cells, shift, look in _by_method(table[table["method"] == "pathcond"], "compression"):
        _means(axes, table, cells, "compression", "max_log_scale", shift, look)
        high = (cells["max_log_scale_mean"] + cells["max_log_scale_sd"].fillna(0.0)).max()
        axes.set_ylim(0, 1.15 * high)
    axes.set(ylabel=r"largest $|\log\,\lambda|$")
    _compressions(axes, table)
    place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    axes.text(0.98, 0.04, "the paper plots twice this", fontsize="x-small", color=style.GREY, **place)


def open_cells(table: pd.DataFrame) -> bool:
    """Whether some seed of some cell never met the target."""
    cells = panel(table, "cell")
    return "reached_n" in table and bool((cells["reached_n"] < cells["n"]).any())


def legend(figure: Figure, table: pd.DataFrame, spare: Axes | None = None, markers: bool = True) -> None:
    """The methods and how gaps are drawn, above the panels or in place of a spare one."""
    handles: list[Line2D] = []
    for name in methods(table):
        colour, marker, label = style.METHODS[name]
        line: dict[str, Any] = {
            "marker": marker,
            "markersize": 3.5 if markers else 0.0,
            "linestyle": LINES.get(name, "-"),
        }
        handles.append(Line2D([], [], color=colour, label=label, **line))
    gap: dict[str, Any] = {"linestyle": "", "color": style.GREY}
    if markers and open_cells(table):
        handles.append(Line2D([], [], color=style.GREY, linewidth=0.6, linestyle="--", label=END))
        label = OPEN + SOME * bool(panel(table, "cell").eval("0 < reached_n < n").any())
        handles.append(Line2D([], [], marker="o", markerfacecolor="white", label=label, **gap))
    if markers and not table["compression"].isna().all() and len(_lost(table)):
        handles.append(Line2D([], [], marker="x", label=CROSS, **gap))
    if markers and len(methods(table)) > 1:
        style.note(figure, SIDE)
    if spare is not None:
        spare.set_axis_off()
        spare.legend(handles=handles, loc="center", handlelength=2.6)
    else:
        columns = len(handles) if len(handles) < 6 else 4
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=2.6)


def _by_method(table: pd.DataFrame, x: str) -> Iterator[tuple[pd.DataFrame, float, dict[str, Any]]]:
    """Each method's cells, how far its markers stand beside the abscissa (points), and its look."""
    cells, names = panel(table, "cell"), methods(table)
    for number, name in enumerate(names):
        colour, marker, _ = style.METHODS[name]
        shift = min(4.5, SPREAD / len(names)) * (number - (len(names) - 1) / 2)
        yield cells[cells["method"] == name].sort_values(x), shift, {"color": colour, "marker": marker}


def _means(
    axes: Axes, table: pd.DataFrame, cells: pd.DataFrame, x: str, value: str, shift: float, look: dict[str, Any]
) -> None:
    """Mean and deviation of the cells that have all their seeds, joined; of the others the seeds that have a value."""
    moved = _moved(axes, shift)
    mean, deviation = (cells[f"{value}_{part}"].replace(np.inf, np.nan) for part in ("mean", "sd"))
    line = LINES.get(cells["method"].iloc[0], "-") if len(cells) else "-"
    axes.errorbar(cells[x], mean, yerr=deviation.fillna(0.0), transform=moved, linestyle=line, **look)
    if value == "reached":  # the way to a cell at its limit
        axes.plot(cells[x], mean.fillna(cells["epochs"]), ":", color=look["color"], linewidth=0.8, transform=moved)
    runs = panel(table, "run").merge(cells.loc[mean.isna(), ["method", "network", "lr"]])
    axes.plot(runs[x], runs[value].replace(np.inf, np.nan), ".", color=look["color"], markersize=3, transform=moved)


def _with_band(curves: pd.DataFrame, value: str, accuracy: bool) -> pd.DataFrame:
    """Curves with the columns middle, low and high; accuracies in percent, and the band kept off the axes' ends."""
    mean, deviation = (curves[f"{value}_{part}"].replace(np.inf, np.nan) for part in ("mean", "sd"))
    if accuracy:
        mean, deviation = 100 * mean, 100 * deviation
    low, high = mean - deviation.fillna(0.0), mean + deviation.fillna(0.0)
    low = low.clip(lower=0.0 if accuracy else 0.3 * mean)  # zero would leave a logarithmic axis
    return curves.assign(middle=mean, low=low, high=high.clip(upper=100.0) if accuracy else high)


def _moved(axes: Axes, right: float, up: float = 0.0, transform: Transform | None = None) -> Transform:
    """Data coordinates (or others), a few points away."""
    return offset_copy(transform or axes.transData, axes.get_figure(root=True), right, up, units="points")


def _count(axes: Axes, at: tuple[float, float], part: float, whole: float, colour: str, **place: Any) -> None:
    axes.text(*at, f"{part:.0f}/{whole:.0f}", fontsize="x-small", color=colour, rotation=90, ha="center", **place)


def _around(values: pd.Series, share: float = 0.09) -> tuple[float, float]:
    """Limits with a margin."""
    margin = share * (values.max() - values.min()) or 0.1 * values.max()
    return values.min() - margin, values.max() + margin


def _compressions(axes: Axes, table: pd.DataFrame) -> None:
    """An abscissa of compression factors, with a tick at each."""
    factors = sorted(set(table["compression"]))
    axes.set(xlabel="compression factor", xlim=_around(table["compression"], 0.15))
    axes.set_xticks(factors, [f"{factor:g}" for factor in factors])


def _values(table: pd.DataFrame, value: str) -> pd.Series:
    """What is drawn of a final value: that of each run, and the ends of the cells' bars."""
    cells = panel(table, "cell")
    mean, deviation = cells[f"{value}_mean"], cells[f"{value}_sd"].fillna(0.0)
    return pd.concat([panel(table, "run")[value], mean - deviation, mean + deviation])


def _lost(table: pd.DataFrame) -> pd.DataFrame:
    """Cells with seeds that diverged."""
    cells = panel(table, "cell")
    return cells[cells["diverged_n"] > 0]


def _note_diverged(axes: Axes, table: pd.DataFrame) -> None:
    """Say whose curve ends because seeds diverged."""
    lost = _lost(table).to_dict("records")
    lines = [f"{style.METHODS[c['method']][2]}: {c['diverged_n']:.0f} of {c['n']:.0f} seeds diverged" for c in lost]
    if lines:
        axes.text(0.97, 0.97, "\n".join(lines), fontsize="x-small", ha="right", va="top", transform=axes.transAxes)
