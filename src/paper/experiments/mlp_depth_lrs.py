"""Appendix: epochs to the target of MLPs by depth, one panel per learning rate."""

from __future__ import annotations

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import pd
from paper.settings import Block, DepthGrid, grids_of_blocks
from paper.verdicts import BASELINE, END, PATHCOND, Claim, Estimate, Estimates, NotMeasured, at_least, at_most


class Settings(Block):
    """A training grid of MLPs, and others with more seeds of some of its depths and rates."""

    mlp: DepthGrid
    mlp_seeds: DepthGrid | None = None
    mlp_dense: DepthGrid | None = None


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


def _trends(table: pd.DataFrame) -> Estimates:
    return {depth: _trend(part) for depth, part in verdicts.by(verdicts.runs(table), "hidden_layers")}


def _trend(rows: pd.DataFrame) -> Estimate | None:
    """Rank correlation of the ratio of epochs with the learning rate, by seed; None if fewer than three rates are left.

    Rates at which a target is missed are left out: a ratio at another accuracy, or a bound, cannot be ranked.
    """
    found = {}
    for lr, part in verdicts.by(rows, "lr"):
        ratio = verdicts.bounds_by_seed(verdicts.of(part, BASELINE), verdicts.of(part, PATHCOND))
        if ratio is not None and not ratio[1] and ratio[2] != END:
            found[lr] = ratio[0]
    by_seed = pd.DataFrame(found).dropna()
    if by_seed.shape[1] < 3 or by_seed.empty:
        return None
    rates = ", ".join(f"{lr:g}" for lr in found)
    trend = verdicts.correlation([verdicts.rank(list(by_seed), list(values)) for values in by_seed.to_numpy()])
    return verdicts.noted(trend, f"lr {rates}")


def _by_rate(table: pd.DataFrame) -> Estimates:
    """Ratios of epochs at every depth and every rate up to a moderate one."""
    return {
        f"{depth:g} hidden layers, lr {lr:g}": verdicts.epochs_ratio(part)
        for lr, one in verdicts.by(verdicts.runs(table), "lr")
        if lr <= MODERATE
        for depth, part in verdicts.by(one, "hidden_layers")
    }


def _at_largest(table: pd.DataFrame) -> Estimates:
    rows = verdicts.runs(table)
    if rows["lr"].max() <= MODERATE:
        raise NotMeasured(f"no learning rate above {MODERATE:g}")
    return verdicts.epochs_ratios(rows[rows["lr"] == rows["lr"].max()], "hidden_layers")


_CLAIMS = (
    Claim(
        "mlp_lrs_shrinks",
        "The larger the learning rate, the smaller PathCond's gain on MLPs",
        "largest gains at small rates",
        "rank correlation of the ratio of epochs (baseline over PathCond) with the learning rate, mean over seeds; "
        "rates at which some seed misses the target are left out",
        _trends,
        at_most(-0.7),
        unit="rank correlation",
        cases="depth",
    ),
    Claim(
        "mlp_lrs_never_hurts",
        "At small to moderate learning rates PathCond never slows an MLP down",
        "at least as good everywhere",
        "ratio of epochs, baseline over PathCond, paired by seed, at every depth and every rate up to 0.01",
        _by_rate,
        at_least(0.97),
        unit="times",
        cases="depth and rate",
    ),
    Claim(
        "mlp_lrs_large",
        "At a large learning rate PathCond is no better than the baseline",
        "comparable (main text), degrades (appendix)",
        "ratio of epochs, baseline over PathCond, paired by seed, at the largest rate",
        _at_largest,
        at_most(1.1),
        unit="times",
        cases="depth",
    ),
)


EXPERIMENT = Experiment(
    name="mlp_depth_lrs",
    title="Fully connected networks by learning rate",
    where="appendix K",
    caption=(
        "Epochs until {mlp[target]:.0%} of the training images are classified correctly against the number of "
        "parameters, for MLPs of different depths, one panel per learning rate. Means over all recorded seeds, three "
        "or ten; bars are one standard deviation. Open markers above the end of training: runs that did not reach the "
        "target."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=trained,
)
