"""Appendix: epochs to the target of MLPs by depth, one panel per learning rate."""

from __future__ import annotations

import math
from itertools import product

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import pd
from paper.settings import DepthGrid, grids
from paper.verdicts import (
    AT_LEAST,
    AT_MOST,
    NO,
    TOLERATED,
    UNDECIDED,
    YES,
    Answer,
    Claim,
    Estimate,
    Finding,
    NotMeasured,
)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """One panel per learning rate, a page wide."""
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
FAR = 100.0  # factor between a bound and the far values that stand for an open ratio


def _by_lr(rows: pd.DataFrame) -> str:
    """Mean ratio over depths at each learning rate: a bound if some ratios are, open if bounds point both ways."""
    parts = []
    for lr, part in verdicts.by(rows, "lr"):
        found = verdicts.ratios(part, "hidden_layers")
        ratios = [ratio for ratio in found.values() if ratio is not None]
        bounds = {ratio.bound for ratio in ratios} - {""}
        mean = "open"
        if ratios and len(bounds) < 2:
            mean = "".join(bounds) + f"{sum(ratio.value for ratio in ratios) / len(ratios):.2f}"
        parts.append(f"{lr:g}: {mean} ({len(ratios)} of {len(found)} depths)")
    return "mean ratio at lr " + ", ".join(parts)


def _shrinks(table: pd.DataFrame) -> Finding:
    rows = verdicts.runs(table)
    trends = verdicts.known({depth: _trend(part) for depth, part in verdicts.by(rows, "hidden_layers")})
    text = f"rank correlation at {verdicts.listed(trends, 'hidden layers', intervals=True)}; {_by_lr(rows)}"
    return Finding(text, verdicts.agreed("mlp_lrs_shrinks", trends))


def _trend(rows: pd.DataFrame) -> Estimate | None:
    """Rank correlation of the ratio of epochs with the learning rate, by seed; None if bounds leave it open."""
    pairs = {
        lr: verdicts.epochs_ratios_by_seed(verdicts.of(part, "baseline"), verdicts.of(part, "pathcond"))
        for lr, part in verdicts.by(rows, "lr")
    }
    found = {lr: ratio for lr, ratio in pairs.items() if ratio is not None}
    if len(found) < 2:
        return None
    values = []
    for seed in set.intersection(*(set(ratio.index) for ratio, _ in found.values())):
        possible = {
            verdicts.rank(list(found), choice)
            for choice in product(*(_could_be(r[seed], bound) for r, bound in found.values()))
        }
        if len(possible) > 1 or math.isnan(*possible):
            return None
        values += possible
    return verdicts.correlation(values) if values else None


def _could_be(ratio: float, bound: str) -> tuple[float, ...]:
    """A ratio, or values that stand for all that a bound leaves open: near, far and farther."""
    factor = {AT_LEAST: FAR, AT_MOST: 1 / FAR}.get(bound, 1.0)
    return tuple(dict.fromkeys(float(ratio) * factor**k for k in range(3)))


def _harmless_up_to(table: pd.DataFrame, limit: float | None, tolerated: float) -> Finding:
    rows = verdicts.runs(table)
    limit = rows["lr"].max() if limit is None else limit
    pairs = [
        part for lr, one in verdicts.by(rows, "lr") if lr <= limit for _, part in verdicts.by(one, "hidden_layers")
    ]
    pairs = [part for part in pairs if {"baseline", "pathcond"} <= set(part["method"])]
    if not pairs:
        raise NotMeasured(f"no pair of runs with lr up to {limit:g}")
    answers = [_harmless(part) for part in pairs]
    found = [verdicts.epochs_ratio(verdicts.of(part, "baseline"), verdicts.of(part, "pathcond")) for part in pairs]
    worst = min((ratio for ratio in found if ratio is not None), key=lambda ratio: ratio.value, default=None)
    counts = f"no slower in {answers.count(YES)} of {len(answers)} networks and rates, slower in {answers.count(NO)}"
    text = f"{counts}, undecided in {answers.count(UNDECIDED)}, with lr up to {limit:g}; {_by_lr(rows)}"
    return Finding(text if worst is None else f"{text}; least ratio {worst}", verdicts.never(answers, tolerated))


def _harmless(rows: pd.DataFrame) -> Answer:
    """By the ratio of epochs; where targets were missed on both sides, by final train accuracy."""
    ratio = verdicts.epochs_ratio(verdicts.of(rows, "baseline"), verdicts.of(rows, "pathcond"))
    if ratio is not None:
        return verdicts.decide(ratio, "mlp_lrs_never_hurts")
    return verdicts.decide(
        verdicts.accuracy_gain(rows, "pathcond", "baseline", "final_train_accuracy"), verdicts.at_least(-0.5)
    )


def _large(table: pd.DataFrame) -> Finding:
    rows = verdicts.runs(table)
    largest = rows["lr"].max()
    if largest <= MODERATE:
        raise NotMeasured(f"no learning rate above {MODERATE:g}")
    found = verdicts.ratios(rows[rows["lr"] == largest], "hidden_layers")
    values = [ratio.value for ratio in verdicts.known(found).values()]
    low, high = min(values), max(values)
    which = "the appendix's reading" if high < 0.97 else "the main text's reading" if low > 0.9 else "between both"
    text = (
        f"{low:.2f} to {high:.2f} at lr {largest:g}, {which}: {verdicts.listed(found, 'hidden layers', intervals=True)}"
    )
    return Finding(text, verdicts.agreed("mlp_lrs_large", found))


_CLAIMS = (
    Claim(
        "mlp_lrs_shrinks",
        "The larger the learning rate, the smaller PathCond's gain on MLPs",
        "largest gains at small rates",
        "rank correlation of the ratio of epochs (baseline over PathCond) with the learning rate; depths where missed "
        "targets leave the correlation open are left out",
        _shrinks,
        cases="depth",
    ),
    Claim(
        "mlp_lrs_never_hurts",
        "At small to moderate learning rates PathCond never slows an MLP down",
        "at least as good everywhere",
        "ratio of epochs, baseline over PathCond, for each depth and each rate up to 0.01; where both methods miss the "
        "target, final train accuracy at most 0.5 points lower; slower in at most "
        f"{TOLERATED:.0%} of the cases: partly",
        lambda table: _harmless_up_to(table, MODERATE, TOLERATED),
    ),
    Claim(
        "mlp_lrs_never",
        "PathCond never makes training worse",
        "never",
        "as in `mlp_lrs_never_hurts`, at every learning rate; slower anywhere: not reproduced",
        lambda table: _harmless_up_to(table, None, 0.0),
    ),
    Claim(
        "mlp_lrs_large",
        "At a large learning rate PathCond is no better than the baseline",
        "comparable (main text), degrades (appendix)",
        "ratio of epochs, baseline over PathCond, at the largest rate",
        _large,
        cases="depth",
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
    grids=grids,
    table=trained,
)
