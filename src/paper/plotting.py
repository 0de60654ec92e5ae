"""The look of all figures, and the panels that figures of trained networks share.

Sizes, colors and labels are defined once: those of methods in `paper.methods`, all others here. Runs that miss the
target or diverge are marked, never dropped. `paper.aggregate` describes the tables of trained networks.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from paper.lazy import mpl, np, pd, sns, ticker
from paper.methods import BLACK, BLUE, GREEN, GREY, METHODS, ORANGE, PINK, RED, SKY, YELLOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.transforms import Transform

# Widths of the paper's columns, in inches.
COLUMN, PAGE = 3.25, 6.75
# Color, marker and label of the paper's networks, where a figure compares them.
NETWORKS = {
    "mlp": (BLUE, "o", "MLP"),
    "cifar_nv": (ORANGE, "s", "CIFAR-NV"),
    "resnet18_c": (GREEN, "^", "ResNet-18-C"),
    "resnet18_c_held": (PINK, "D", "ResNet-18-C, paper's units"),
}
# Colors and labels of the steps of the rescaling, where a figure splits its time.
STEPS = {"diag_g": (SKY, "diag(G)"), "graph": (GREEN, "graph"), "solve": (RED, "solve"), "apply": (YELLOW, "apply")}
# Colors and markers for all other values, used in this order.
UNDER = {"markersize": 6.0, "linewidth": 2.2}  # of the baseline, so that it is seen under another method
SERIES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PINK, "D"), (SKY, "v"), (BLACK, "P"))

PAPER_LR = 1e-3  # learning rate of the paper's main figures
PAPER_DEPTH = 3  # hidden layers of the network whose curves the paper shows
ROW = 7.0  # points between rows of markers beyond the end of training
OPEN = "open: target not reached"
SOME = " (k/n: by k of n seeds)"
END = "end of training"
CROSS = "cross: diverged (k/n: k of n seeds)"
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10)  # ticks
EPOCHS = tuple(float(f"{first}e{power}") for power in range(4) for first in (1, 2, 3, 5, 7))  # ticks
SEPARATOR = "  ·  "  # between the parts of the line below a figure
LINE = 22.0  # characters per inch of that line
LABELS = {
    "train_loss": "train loss", "running_train_loss": "train loss", "train_accuracy": "train accuracy (%)",
    "test_accuracy": "test accuracy (%)",
}  # fmt: skip
PALETTE = {name: method.colour for name, method in METHODS.items()}


@contextmanager
def theme(font_size: float) -> Iterator[None]:
    """Seaborn's theme, of which matplotlib has a copy that loads faster, with our sizes, within the block."""
    from matplotlib.style import library as styles

    settings: dict[str, Any] = {
        **styles["seaborn-v0_8-whitegrid"],
        **styles["seaborn-v0_8-paper"],
        "font.size": font_size,
        "font.family": "DejaVu Sans",
        "axes.titlesize": font_size,
        "axes.labelsize": font_size,
        "xtick.labelsize": font_size - 1,
        "ytick.labelsize": font_size - 1,
        "legend.fontsize": font_size - 1,
        "legend.title_fontsize": font_size - 1,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": BLACK,
        "axes.linewidth": 0.6,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.4,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "lines.markeredgewidth": 0.8,
        "errorbar.capsize": 2.0,
        "patch.edgecolor": "white",
        "patch.force_edgecolor": True,
        "patch.linewidth": 0.8,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "xtick.major.pad": 3.5,
        "ytick.major.pad": 3.5,
        "xtick.minor.size": 1.2,
        "ytick.minor.size": 1.2,
        "xtick.minor.width": 0.3,
        "ytick.minor.width": 0.3,
        "figure.dpi": 150,
        "pdf.fonttype": 42,
        "svg.hashsalt": "pathcond",
    }
    with mpl.rc_context(settings):
        yield


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of axes, in reading order, that leaves room below for the line of `stamp`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def letters(axes: Sequence[Axes]) -> None:
    """Put a letter before the title of each panel, and align the title to the left."""
    for letter, place in zip(ascii_lowercase, axes, strict=False):
        title = place.get_title()
        place.set_title("")
        place.set_title(rf"$\mathbf{{{letter}}}$" + (f"  {title}" if title else ""), loc="left")


def band(axes: Axes, rows: pd.DataFrame, x: str, look: dict[str, Any], label: str | None = None) -> None:
    """A curve through the column `middle` with its spread, from `low` to `high`, shaded."""
    line = {"markeredgecolor": "white", "markeredgewidth": 0.3, **look}
    axes.plot(rows[x], rows["middle"], label=label, **line)
    axes.fill_between(rows[x], rows["low"], rows["high"], color=look["color"], alpha=0.2, linewidth=0)


def spread(rows: pd.DataFrame, value: str, least: float = 0.0) -> pd.DataFrame:
    """Rows with the columns middle, low and high: from mean and deviation; `low` is at least `least` times the mean."""
    mean, deviation = rows[f"{value}_mean"], rows[f"{value}_sd"].fillna(0.0)
    return rows.assign(middle=mean, low=(mean - deviation).clip(lower=least * mean), high=mean + deviation)


def handle(**look: Any) -> Line2D:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def note(figure: Figure, text: str) -> None:
    """Store a remark about the figure, which `stamp` prints above its own line."""
    figure.supxlabel(text)


def stamp(figure: Figure, text: str) -> None:
    """Gray lines of similar length under the figure and its note: preset, images, epochs, seeds, hardware."""
    parts = text.split(SEPARATOR)
    widest = round(LINE * figure.get_figwidth())
    fewest = len(_wrapped(parts, widest))
    wrapped = next(rows for width in range(widest + 1) if len(rows := _wrapped(parts, width)) == fewest)
    lines = [line for line in (figure.get_supxlabel(), *wrapped) if line]
    figure.supxlabel("\n".join(lines), x=0.5, fontsize=mpl.rcParams["font.size"] - 2, color=GREY)


def pictures(figure: Figure, text: str, dpi: int) -> dict[str, bytes]:
    """A figure with its stamp, as the bytes of a PNG and a PDF file that hold no date or version."""
    stamp(figure, text)
    # Both files share one layout, computed here: otherwise matplotlib draws the figure once more to find it.
    figure.set_dpi(dpi)
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    figure.set_layout_engine(None)
    found = {}
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        # Written to memory first: the PNG writer hides why a write to disk fails, such as a full disk.
        drawn = io.BytesIO()
        figure.savefig(drawn, format=suffix, dpi=dpi, metadata=metadata)
        found[suffix] = drawn.getvalue()
    return found


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Parts joined to rows of at most `width` characters, where a part is not longer."""
    rows = [parts[0]]
    for part in parts[1:]:
        joined = f"{rows[-1]}{SEPARATOR}{part}"
        rows[-1:] = [joined] if len(joined) <= width else [rows[-1], part]
    return rows


def ratios(axis: Axis) -> None:
    """Ticks of a logarithmic axis of ratios."""
    low, high = axis.get_view_interval()
    axis.set_ticks([tick for tick in RATIOS if low <= tick <= high])
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter("{x:g}")


# Vertical axes of losses.


def wide(values: pd.Series) -> bool:
    """Whether losses span a factor of three or more."""
    finite = _finite(values)
    return len(finite) > 0 and bool(finite.max() >= 3 * finite.min())


def losses(axes: Axes, values: pd.Series, room: float = 0.0, log: bool = False) -> None:
    """Limits of a vertical axis of losses, logarithmic with `log` or if they span a factor of three or more.

    Only finite positive losses count; `room` is the fraction of the height left free at the top.
    """
    finite = _finite(values)
    if finite.empty:
        return
    low, high = float(finite.min()), float(finite.max())
    if log or wide(values):
        axes.set_yscale("log")
        ratio = high / low
        digits = (1.0,) if ratio > 200 else (1.0, 2.0, 5.0) if ratio > 10 else (1.0, 2.0, 3.0, 5.0, 7.0)
        fine = (
            ticker.LogLocator(subs=digits, numticks=20) if wide(values) else ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
        )
        axes.yaxis.set_major_locator(fine)
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        ratio = ratio if high > low else 1.1
        axes.set_ylim(low * ratio**-0.06, high * ratio ** (0.06 + room))
    else:
        span = (high - low) or 0.1 * high
        axes.set_ylim(low - 0.08 * span, high + (0.08 + room) * span)


def _finite(values: pd.Series) -> pd.Series:
    """Values that a logarithmic axis can show."""
    return values[np.isfinite(values) & (values > 0)]


# Panels of trained networks.


def methods(table: pd.DataFrame) -> list[str]:
    """Methods of a table, in the order of legends."""
    found = set(table["method"].unique())
    return [name for name in METHODS if name in found]


def panel(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one panel."""
    return table[table["panel"] == name]


def at_paper_lr(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with the paper's learning rate if it is there, else the smallest."""
    chosen = PAPER_LR if (table["lr"] == PAPER_LR).any() else table["lr"].min()
    return table[table["lr"] == chosen]


def shown_network(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the network whose curves are drawn: the one marked, else the paper's depth, else the middle one."""
    networks = panel(table, "cell").drop_duplicates("network").sort_values("parameters")
    marked = networks[networks["shown"]]
    paper = networks[networks["hidden_layers"] == PAPER_DEPTH]
    chosen = next(found for found in (marked, paper, networks.iloc[len(networks) // 2 :]) if len(found))
    return table[table["network"] == chosen["network"].iloc[0]]


def network_label(table: pd.DataFrame) -> str:
    """The network of the rows, in words."""
    row = table.iloc[0]
    if pd.notna(row["hidden_layers"]):
        return f"{row['hidden_layers']:.0f} hidden layers"
    return NETWORKS[row["network"]][2] if row["network"] in NETWORKS else str(row["network"])


def by_depth(table: pd.DataFrame) -> Figure:
    """Epochs to the target against parameters, then accuracy and loss of one network: three panels, a page wide."""
    figure, axes = panels(1, 3, PAGE, 2.6)
    table = at_paper_lr(table)
    one = shown_network(table)
    reach(axes[0], table, "parameters")
    parameters_axis(axes[0], table)
    epochs_axis(axes[0], table)
    axes[0].set_title(f"MLPs by depth, lr {one['lr'].iloc[0]:g}")
    over_epochs(axes[1], one, "train_accuracy", f"Train accuracy, {network_label(one)}")
    over_epochs(axes[2], one, "train_loss", f"Train loss, {network_label(one)}")
    letters(axes)
    legend(figure, table)
    return figure


def parameters_axis(axes: Axes, table: pd.DataFrame) -> None:
    """A horizontal axis of parameters: a tick per network, with its number of hidden layers below."""
    found = panel(table, "cell").drop_duplicates("parameters").sort_values("parameters")
    depths = ["" if pd.isna(depth) else f"\n{depth:.0f}" for depth in found["hidden_layers"]]
    names = [f"{size / 1e6:#.2g}{depth}" for size, depth in zip(found["parameters"], depths, strict=True)]
    axes.set_xticks(found["parameters"].tolist(), names)
    axes.set(xlabel="parameters (millions)" + "\nhidden layers" * any(depths), xlim=_around(found["parameters"]))


def rates_axis(axes: Axes, table: pd.DataFrame) -> None:
    """A logarithmic horizontal axis of learning rates, with a tick at each."""
    lrs = sorted(set(table["lr"]))
    # Where rates are dense, powers of ten alone have room for a label.
    dense = any(math.log(high / low) < 0.2 * math.log(lrs[-1] / lrs[0]) for low, high in pairwise(lrs))
    axes.set(xscale="log", xlabel="learning rate", xlim=(lrs[0] / 1.5, lrs[-1] * 1.5))
    names = [f"{lr:.0e}".replace("e-0", "e-").replace("e+00", "") for lr in lrs]
    bare = [dense and not math.log10(lr).is_integer() for lr in lrs]
    axes.set_xticks(lrs, ["" if hidden else name for name, hidden in zip(names, bare, strict=True)])
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def epochs_axis(axes: Axes, table: pd.DataFrame, log: bool = False) -> None:
    """A vertical axis of epochs to the end of training, with a row above for each method whose runs miss the target."""
    limit, met = float(panel(table, "cell")["epochs"].max()), panel(table, "run")["reached"].dropna()
    low = 0.7 * max(1.0, min(met.min(), limit)) if log and len(met) else 0.7 if log else 0.0
    high = limit
    if open_runs(table):
        axes.axhline(limit, color=GREY, linewidth=0.6, linestyle="--", zorder=1)
        room = 0.1 + 0.08 * len(_open_methods(table))
        high = limit * (limit / low) ** room if log else (1 + room) * limit
    elif len(met):
        high = min(1.05 * limit, 1.15 * met.max())
    axes.set(ylabel="epochs to target", yscale="log" if log else "linear", ylim=(low, high))
    if log:
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_yticks([tick for tick in EPOCHS if low <= tick <= limit])
    else:
        axes.set_yticks([tick for tick in axes.get_yticks() if tick <= min(limit, high)])


def reach(axes: Axes, table: pd.DataFrame, x: str) -> None:
    """Epochs to the target against `x`; where a seed misses it, an open marker above the end, one row per method."""
    rows = _open_methods(table)
    for cells, look in _by_method(table, x):
        _means(axes, table, cells, x, "reached", look)
        for cell in cells[cells["reached_n"] < cells["n"]].to_dict("records"):
            up = 6.0 + ROW * rows.index(cell["method"])
            count = f"{cell['reached_n']:.0f}/{cell['n']:.0f}" if cell["reached_n"] else ""
            hollow = {"linestyle": "", "markerfacecolor": "white", **look}
            _mark(axes, cell[x], cell["epochs"], up, axes.transData, count, **hollow)


def settled(axes: Axes, table: pd.DataFrame, x: str, value: str, log: bool = False) -> None:
    """Means of a final loss against `x`; where seeds diverged, a cross at the top, one row per method."""
    losses(axes, _values(table, value), room=0.3 if len(_diverged(table)) else 0.0, log=log)
    for number, (cells, look) in enumerate(_by_method(table, x)):
        _means(axes, table, cells, x, value, look)
        for cell in _diverged(cells).to_dict("records"):
            count = f"{cell['diverged_n']:.0f}/{cell['n']:.0f}"
            top = axes.get_xaxis_transform()
            _mark(axes, cell[x], 1.0, -ROW * number, top, count, color=look["color"], marker="x", clip_on=False)


def accuracies(axes: Axes, table: pd.DataFrame, x: str, value: str) -> None:
    """Means and deviations of an accuracy in percent against `x`, one curve per method."""
    table = table.assign(**{name: 100 * table[name] for name in table if str(name).startswith(value)})
    for cells, look in _by_method(table, x):
        _means(axes, table, cells, x, value, look)


def best_tests(axes: Axes, groups: Mapping[str, pd.DataFrame]) -> None:
    """The best test accuracy of every seed, and their mean as a line, by group of runs and method."""
    for at, rows in enumerate(groups.values()):
        names = methods(rows)
        for number, name in enumerate(names):
            look: dict[str, Any] = {"color": METHODS[name].colour}
            values = 100 * rows.loc[rows["method"] == name, "best_test_accuracy"]
            x = at + 0.32 * (number - (len(names) - 1) / 2)
            axes.plot([x] * len(values), values, linestyle="", marker=METHODS[name].marker, alpha=0.7, **look)
            axes.plot([x - 0.12, x + 0.12], [values.mean()] * 2, linewidth=1.2, **look)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(xlim=(-0.6, len(groups) - 0.4), ylabel="best test accuracy (%)")


def over_epochs(axes: Axes, table: pd.DataFrame, value: str, title: str = "") -> None:
    """Mean and deviation over seeds of a metric after each epoch, one curve per method."""
    accuracy = value.endswith("accuracy")
    rows = panel(table, "curve").sort_values("epoch")
    factor = 100 if accuracy else 1
    finite = {name: factor * rows[name].replace(np.inf, np.nan) for name in (f"{value}_mean", f"{value}_sd")}
    curves = spread(rows.assign(**finite), value, 0.0 if accuracy else 0.3)
    if accuracy:
        curves["high"] = curves["high"].clip(upper=100.0)
    else:
        losses(axes, pd.concat([curves["low"], curves["high"]]))
        _note_diverged(axes, table)
    for name in methods(curves):
        method = METHODS[name]
        look: dict[str, Any] = {"color": method.colour, "linestyle": method.dash}
        look |= {"linewidth": UNDER["linewidth"]} if name == "baseline" and "enorm" in methods(curves) else {}
        band(axes, curves[curves["method"] == name], "epoch", look)
    axes.set(xlabel="epoch", ylabel=LABELS[value], title=title, xlim=(0, curves["epoch"].max()))


def by_seed(axes: Axes, table: pd.DataFrame, value: str) -> None:
    """A metric after each epoch: a thin line per seed, dotted for a lost class, and the median of the other seeds."""
    accuracy = value.endswith("accuracy")
    rows = panel(table, "seed")
    rows = rows.assign(drawn=(100 if accuracy else 1) * rows[value].replace(np.inf, np.nan), lost=rows["lost"] == True)  # noqa: E712
    if not accuracy:
        losses(axes, rows["drawn"])
        _note_diverged(axes, table)
    common: dict[str, Any] = {"x": "epoch", "y": "drawn", "hue": "method", "palette": PALETTE, "legend": False}
    for lost, line in ((False, "-"), (True, ":")):
        some = rows[rows["lost"] == lost]
        thin = {"linewidth": 0.9 if lost else 0.5, "alpha": 0.9 if lost else 0.6, "linestyle": line}
        if len(some):
            sns.lineplot(some, units="seed", estimator=None, ax=axes, **common, **thin)
    # Where a seed diverged there is no median.
    whole = rows[~rows["lost"]].groupby(["method", "epoch"], sort=False)["drawn"]
    middle = whole.median().where(~whole.agg(lambda values: values.isna().any())).reset_index()
    for name in methods(middle):
        sns.lineplot(middle[middle["method"] == name], errorbar=None, linestyle=METHODS[name].dash, ax=axes, **common)
    axes.set(xlabel="epoch", ylabel=LABELS[value], xlim=(0, rows["epoch"].max()))


def learning(axes: Sequence[Axes], table: pd.DataFrame) -> None:
    """Train loss, train accuracy and test accuracy by seed, in three panels."""
    for place, value in zip(axes, ("train_loss", "train_accuracy", "test_accuracy"), strict=True):
        by_seed(place, table, value)


def seed_handles(table: pd.DataFrame) -> list[Line2D]:
    """Legend entries for the lines of seeds."""
    rows = panel(table, "seed")
    lost = sorted({f"{seed:.0f}" for seed in rows.loc[rows["lost"] == True, "seed"]})  # noqa: E712
    handles = [handle(color=GREY, linewidth=0.5, label="one seed")]
    if lost:
        seeds = ("seed " if len(lost) == 1 else "seeds ") + ", ".join(lost)
        label = f"{seeds}: a class is never learned,\nnot in the median"
        handles.append(handle(color=GREY, linewidth=0.9, linestyle=":", label=label))
    return handles


def final_losses(axes: Sequence[Axes], tables: Sequence[pd.DataFrame]) -> None:
    """Final train losses against the compression factor, a table per panel; logarithmic in all panels or in none."""
    log = any(wide(_values(table, "final_train_loss")) for table in tables)
    for place, table in zip(axes, tables, strict=True):
        settled(place, table, "compression", "final_train_loss", log)
        _compressions(place, table)
    axes[0].set_ylabel("final train loss" + " (log scale)" * log)


def rescaling(axes: Axes, table: pd.DataFrame) -> None:
    """PathCond's largest log-rescaling against the compression factor, and how the paper's axis differs."""
    for cells, look in _by_method(table[table["method"] == "pathcond"], "compression"):
        _means(axes, table, cells, "compression", "max_log_scale", look)
        high = (cells["max_log_scale_mean"] + cells["max_log_scale_sd"].fillna(0.0)).max()
        axes.set_ylim(0, 1.15 * high)
    axes.set(ylabel=r"largest $|\log\,\lambda|$")
    _compressions(axes, table)
    place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    axes.text(0.98, 0.04, "the paper plots twice this", fontsize="x-small", color=GREY, **place)


def open_runs(table: pd.DataFrame) -> bool:
    """Whether some seed never reached the target."""
    return "reached_n" in table and bool(_open_methods(table))


def _open_methods(table: pd.DataFrame) -> list[str]:
    """Methods with a seed that never reached the target."""
    cells = panel(table, "cell")
    return methods(cells[cells["reached_n"] < cells["n"]])


def legend(
    figure: Figure, table: pd.DataFrame, spare: Axes | None = None, markers: bool = True, more: Sequence[Line2D] = ()
) -> None:
    """A legend of methods and of the markers of missed targets, above the panels or in an empty one."""
    handles: list[Line2D] = []
    for name in methods(table):
        method = METHODS[name]
        line: dict[str, Any] = {"marker": method.marker, "markersize": 3.5 if markers else 0.0}
        handles.append(handle(color=method.colour, linestyle=method.dash, label=method.label, **line))
    gap: dict[str, Any] = {"linestyle": "", "color": GREY}
    if markers and open_runs(table):
        handles.append(handle(color=GREY, linewidth=0.6, linestyle="--", label=END))
        label = OPEN + SOME * bool(panel(table, "cell").eval("0 < reached_n < n").any())
        handles.append(handle(marker="o", markerfacecolor="white", label=label, **gap))
    if markers and not table["compression"].isna().all() and len(_diverged(table)):
        handles.append(handle(marker="x", label=CROSS, **gap))
    handles += more
    if spare is not None:
        spare.set_axis_off()
        spare.legend(handles=handles, loc="center", handlelength=2.6)
    else:
        wide = sum(len(str(handle.get_label())) for handle in handles) > 90  # characters in one row
        columns = 4 if wide or len(handles) > 5 else len(handles)
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=2.6)


def _by_method(table: pd.DataFrame, x: str) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The rows of the panel `cell` of each method, with its color and marker."""
    cells = panel(table, "cell")
    for name in methods(table):
        look: dict[str, Any] = {"color": METHODS[name].colour, "marker": METHODS[name].marker}
        look |= UNDER if name == "baseline" and "enorm" in methods(table) else {}
        yield cells[cells["method"] == name].sort_values(x), look


def _means(axes: Axes, table: pd.DataFrame, cells: pd.DataFrame, x: str, value: str, look: dict[str, Any]) -> None:
    """Mean and deviation where all seeds have a value, joined; elsewhere the seeds that have one."""
    mean, deviation = (cells[f"{value}_{part}"].replace(np.inf, np.nan) for part in ("mean", "sd"))
    line = METHODS[cells["method"].iloc[0]].dash if len(cells) else "-"
    axes.errorbar(cells[x], mean, yerr=deviation.fillna(0.0), linestyle=line, **look)
    if value == "reached":  # dotted lines lead to runs that miss the target, at the end of training
        axes.plot(cells[x], mean.fillna(cells["epochs"]), ":", color=look["color"], linewidth=0.8)
    runs = panel(table, "run").merge(cells.loc[mean.isna(), ["method", "network", "lr"]])
    axes.plot(runs[x], runs[value].replace(np.inf, np.nan), ".", color=look["color"], markersize=3)


def _mark(axes: Axes, x: float, y: float, up: float, transform: Transform, count: str, **look: Any) -> None:
    """A marker that is moved up by a few points, and a count to the right of it."""
    from matplotlib.transforms import offset_copy

    figure = axes.get_figure(root=True)
    there, beside = (offset_copy(transform, figure, right, up, units="points") for right in (0.0, 3.0))
    axes.plot(x, y, zorder=4, transform=there, **look)
    place: dict[str, Any] = {"ha": "left", "va": "center", "transform": beside}
    if count:
        axes.text(x, y, count, fontsize="xx-small", color=look["color"], **place)


def _around(values: pd.Series, share: float = 0.09) -> tuple[float, float]:
    """Limits with a margin."""
    margin = share * (values.max() - values.min()) or 0.1 * values.max()
    return values.min() - margin, values.max() + margin


def _compressions(axes: Axes, table: pd.DataFrame) -> None:
    """A horizontal axis of compression factors, with a tick at each."""
    factors = sorted(set(table["compression"]))
    axes.set(xlabel="compression factor", xlim=_around(table["compression"], 0.15))
    axes.set_xticks(factors, [f"{factor:g}" for factor in factors])


def _values(table: pd.DataFrame, value: str) -> pd.Series:
    """All numbers that a panel of a final value shows: one per run, and the ends of the bars."""
    cells = panel(table, "cell")
    mean, deviation = cells[f"{value}_mean"], cells[f"{value}_sd"].fillna(0.0)
    return pd.concat([panel(table, "run")[value], mean - deviation, mean + deviation])


def _diverged(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the panel `cell` with seeds that diverged."""
    cells = panel(table, "cell")
    return cells[cells["diverged_n"] > 0]


def _note_diverged(axes: Axes, table: pd.DataFrame) -> None:
    """Name the methods whose curve ends because seeds diverged."""
    found = _diverged(table).to_dict("records")
    lines = [f"{METHODS[c['method']].label}: {c['diverged_n']:.0f} of {c['n']:.0f} seeds diverged" for c in found]
    if lines:
        axes.text(0.97, 0.97, "\n".join(lines), fontsize="x-small", ha="right", va="top", transform=axes.transAxes)
