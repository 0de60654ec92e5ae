"""Appendix: epochs to the target of MLPs by depth, one panel per learning rate."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.settings import DepthGrid, grids
from paper.verdicts import (
    AT_LEAST,
    AT_MOST,
    BOUNDS,
    NOT_REPRODUCED,
    PARTLY,
    RANGE,
    REPRODUCED,
    Claim,
    Finding,
    NotMeasured,
    Ratio,
    Ratios,
    by,
    epochs_ratio,
    known,
    more_accurate,
    of,
    of_all,
    rank,
    ratios,
    runs,
    span,
    tuned,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(table: pd.DataFrame) -> Figure:
    """One panel per learning rate, a page wide."""
    from paper import plotting

    lrs = sorted(set(table["lr"]))
    columns = min(3, len(lrs))
    rows = -(-len(lrs) // columns)
    figure, axes = plotting.panels(rows, columns, plotting.PAGE, 0.6 + 2.0 * rows, sharey=True)
    for number, (place, lr) in enumerate(zip(axes, lrs, strict=False)):
        one = table[table["lr"] == lr]
        plotting.reach(place, one, "parameters")
        plotting.parameters_axis(place, one)
        plotting.epochs_axis(place, table, log=True)
        place.set_title(f"lr {lr:g}")
        if number % columns:
            place.set_ylabel("")
    for empty in axes[len(lrs) + 1 :]:
        empty.set_axis_off()
    plotting.letters(axes[: len(lrs)])
    plotting.legend(figure, table, axes[len(lrs)] if len(axes) > len(lrs) else None)
    return figure


MODERATE = 1e-2  # the largest learning rate we call moderate
FAR = 100.0  # times off a bound that decides nothing


def _by_lr(rows: pd.DataFrame) -> str:
    """Mean ratio over depths at each learning rate."""
    parts = []
    for lr, part in by(rows, "lr"):
        found = ratios(part, "hidden_layers")
        values = [ratio.value for ratio in found.values() if ratio is not None]
        mean = f"{sum(values) / len(values):.2f}" if values else "open"
        parts.append(f"{lr:g}: {mean} ({len(values)} of {len(found)} depths)")
    return "mean ratio at lr " + ", ".join(parts)


def _shrinks(table: pd.DataFrame) -> Finding:
    rows = runs(table)
    falls: list[bool] = []
    for _, part in by(rows, "hidden_layers"):
        found = {lr: ratio for lr, ratio in ratios(part, "lr").items() if ratio is not None}
        fall = {
            rank(dict(zip(found, values, strict=True))) <= -0.7 for values in product(*map(_could_be, found.values()))
        }
        if len(found) > 1 and len(fall) == 1:
            falls += fall
    if not falls:
        raise NotMeasured("no depth with ratios at two learning rates that decide")
    text = f"at {sum(falls)} of {len(falls)} depths; {_by_lr(rows)}"
    return Finding(text, of_all(falls), sum(falls) / len(falls))


def _could_be(ratio: Ratio) -> tuple[float, ...]:
    """A ratio, or values that stand for all that a bound leaves open: near, far and farther."""
    factor = {AT_LEAST: FAR, AT_MOST: 1 / FAR}.get(ratio.bound, 1.0)
    return tuple(dict.fromkeys(ratio.value * factor**k for k in range(3)))


def _harmless(rows: pd.DataFrame, ratio: Ratio | None) -> bool:
    if ratio is None:
        return more_accurate(rows, "pathcond", "baseline") >= -0.005
    return ratio.value >= 0.97 and ratio.bound != AT_MOST


def _moderate(table: pd.DataFrame) -> Finding:
    return _harmless_up_to(table, MODERATE)


def _any_rate(table: pd.DataFrame) -> Finding:
    return _harmless_up_to(table, runs(table)["lr"].max())


def _harmless_up_to(table: pd.DataFrame, limit: float) -> Finding:
    rows = runs(table)
    cells = [cell for lr, part in by(rows, "lr") if lr <= limit for _, cell in by(part, "hidden_layers")]
    cells = [cell for cell in cells if {"baseline", "pathcond"} <= set(cell["method"])]
    found = [epochs_ratio(of(cell, "baseline"), of(cell, "pathcond")) for cell in cells]
    fine = [_harmless(cell, ratio) for cell, ratio in zip(cells, found, strict=True)]
    if not fine:
        raise NotMeasured(f"no cell with lr up to {limit:g}")
    share = sum(fine) / len(fine)
    verdict = REPRODUCED if share == 1 else PARTLY if share >= 0.9 else NOT_REPRODUCED
    worst = min((ratio.value for ratio in found if ratio is not None), default=None)
    text = f"no slower in {sum(fine)} of {len(fine)} cells with lr up to {limit:g}; {_by_lr(rows)}"
    return Finding(text if worst is None else f"{text}; least ratio {worst:.2f}", verdict, worst)


def _large(table: pd.DataFrame) -> Finding:
    rows = runs(table)
    largest = rows["lr"].max()
    if largest <= MODERATE:
        raise NotMeasured(f"no learning rate above {MODERATE:g}")
    values = known(ratios(rows[rows["lr"] == largest], "hidden_layers"))
    low, high = span(values)
    near = [0.9 <= ratio.value <= 1.1 for ratio in values.values()]
    return Finding(f"ratios {low:.2f} to {high:.2f} at lr {largest:g}", of_all(near), low, (low, high), RANGE)


def _degrades(table: pd.DataFrame) -> Finding:
    found = _large(table)
    largest = runs(table)["lr"].max()
    values = known(ratios(runs(table, lr=largest), "hidden_layers"))
    verdict = of_all([ratio.value < 0.97 and ratio.bound != AT_LEAST for ratio in values.values()])
    return Finding(found.ours, verdict, found.value, found.interval, found.of)


def _tuned(table: pd.DataFrame) -> Finding:
    found: Ratios = {}
    for depth, rows in by(runs(table), "hidden_layers"):
        found[depth] = epochs_ratio(*(tuned(of(rows, name), "reached")[0] for name in ("baseline", "pathcond")))
    values = known(found)
    ends = {depth: ratio.interval or (ratio.value, ratio.value) for depth, ratio in values.items()}
    verdict = of_all([low > 1 for low, _ in ends.values()])
    text = ", ".join(f"{depth:g}: {values[depth]} ({low:.2f} to {high:.2f})" for depth, (low, high) in ends.items())
    return Finding(f"hidden layers {text}", verdict, span(values)[0], span(values), RANGE)


_CLAIMS = (
    Claim(
        "mlp_lrs_shrinks",
        "The larger the learning rate, the smaller PathCond's gain on MLPs",
        "largest gains at small rates",
        "rank correlation of the ratio of epochs (baseline over PathCond) with the learning rate is at most -0.7; "
        "every depth: reproduced, some: partly; depths that a missed target leaves undecided are left out",
        _shrinks,
    ),
    Claim(
        "mlp_lrs_never_hurts",
        "At small to moderate learning rates PathCond never slows an MLP down",
        "at least as good everywhere",
        "ratio of epochs at least 0.97 in every cell with lr up to 0.01: reproduced; in 90% of them: partly; a cell "
        "where targets were missed on both sides goes by final train accuracy, at most 0.5 points lower",
        _moderate,
    ),
    Claim(
        "mlp_lrs_never",
        "PathCond never makes training worse",
        "never",
        "as above, at every learning rate: ratio of epochs at least 0.97 in every cell: reproduced; in 90%: partly",
        _any_rate,
    ),
    Claim(
        "mlp_lrs_large",
        "At a large learning rate PathCond is no better than the baseline, nor worse",
        "comparable",
        f"ratio of epochs 0.9 to 1.1 at the largest rate; every depth: reproduced, some: partly; {BOUNDS}",
        _large,
    ),
    Claim(
        "mlp_lrs_degrades",
        "At a large learning rate PathCond is worse than the baseline",
        "degrades (the appendix; the main text says comparable)",
        "ratio of epochs below 0.97 at the largest rate; every depth: reproduced, some: partly",
        _degrades,
    ),
    Claim(
        "mlp_lrs_tuned",
        "With the best of these learning rates for each method, PathCond still needs fewer epochs at every depth",
        "not looked at",
        "ratio of epochs, baseline over PathCond, each at the rate where its mean is least and every seed gets there, "
        "paired by seed: its 95% interval above 1; every depth: reproduced, some: partly",
        _tuned,
        ours=True,
    ),
)


EXPERIMENT = Experiment(
    name="mlp_depth_lrs",
    title="Fully connected networks by learning rate",
    where="appendix K",
    caption=(
        "Epochs until {target:.0%} of the training images are classified correctly against the number of parameters, "
        "for MLPs of {hidden_layers_min} to {hidden_layers_max} hidden layers, one panel per learning rate. Means over "
        "{seeds_count} seeds; bars are one standard deviation. Open markers above the end of training: runs that did "
        "not reach the target."
    ),
    settings=DepthGrid,
    plot=plot,
    claims=_CLAIMS,
    keys=("epoch",),
    grids=grids,
    table=trained,
)
