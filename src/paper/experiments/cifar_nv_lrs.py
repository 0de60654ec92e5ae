"""Appendix: training and test curves of CIFAR-NV, one row per learning rate."""

from __future__ import annotations

from paper import plotting
from paper.experiments.base import Experiment
from paper.experiments.cifar_nv import CurveGrid, early, table
from paper.lazy import pd
from paper.settings import grids
from paper.verdicts import (
    LEVELS,
    LR,
    Claim,
    Estimate,
    Finding,
    NotMeasured,
    accuracy_gain,
    at_least,
    decide,
    head_starts,
    listed,
    over_cases,
    runs,
    some,
)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Three panels per learning rate, a page wide."""
    lrs = sorted(set(table["lr"]), reverse=True)
    figure, axes = plotting.panels(len(lrs), 3, plotting.PAGE, 0.5 + 1.6 * len(lrs))
    for number, lr in enumerate(lrs):
        row = axes[3 * number : 3 * number + 3]
        plotting.learning(row, table[table["lr"] == lr])
        for place in row:
            place.set_title(f"lr {lr:g}")
            if number < len(lrs) - 1:
                place.set_xlabel("")
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=plotting.seed_handles(table))
    return figure


def _saved(table: pd.DataFrame) -> dict[float, Estimate]:
    """Share of the epochs that PathCond saves, by learning rate."""
    shares = {}
    for lr in sorted(set(some(table, panel="seed")["lr"])):
        one = some(table, lr=lr)
        found, epochs = early(one), head_starts(one)["epochs"].max()
        shares[float(lr)] = Estimate(found.value / epochs, found.low / epochs, found.high / epochs, found.bound)
    return shares


def _shrinks(table: pd.DataFrame) -> Finding:
    shares = _saved(table)
    if len(shares) < 2:
        raise NotMeasured("one learning rate shows no trend")
    *smaller, largest = shares.values()
    levels = LEVELS["cifar_lrs_shrinks"]
    answers = [decide(largest, levels), *(decide(share, at_least(levels.yes[1])) for share in smaller)]
    return Finding(f"share of the epochs saved at {listed(shares, 'lr', intervals=True)}", over_cases(answers))


def _small(table: pd.DataFrame) -> Finding:
    shares = {lr: share for lr, share in _saved(table).items() if lr <= LR}
    gains = {lr: accuracy_gain(runs(table, lr=lr), "pathcond", "baseline") for lr in shares}
    levels = LEVELS["cifar_lrs_small"]
    answers = [decide(found, levels) for found in (*shares.values(), *gains.values())]
    saved = f"share of the epochs saved at {listed(shares, 'lr', intervals=True)}"
    return Finding(
        f"{saved}; points of best test accuracy at {listed(gains, 'lr', intervals=True)}", over_cases(answers)
    )


_CLAIMS = (
    Claim(
        "cifar_lrs_shrinks",
        "PathCond's advantage on CIFAR-NV fades to nothing as the learning rate grows",
        "gone at the largest rate",
        "share of the epochs saved until a seed's smoothed test accuracy reaches the baseline's final one; the "
        "threshold is for the largest rate, and every other rate must save more than that",
        _shrinks,
        cases="rate",
    ),
    Claim(
        "cifar_lrs_small",
        "At small to moderate learning rates CIFAR-NV both trains faster and generalises better with PathCond",
        "both better",
        "share of the epochs saved, as in `cifar_lrs_shrinks`, and gain in best test accuracy in points, at each "
        "learning rate up to 0.001",
        _small,
        cases="rate and measure",
    ),
)


EXPERIMENT = Experiment(
    name="cifar_nv_lrs",
    title="CIFAR-NV by learning rate",
    where="appendix L",
    caption=(
        "CIFAR-NV at {lrs_count} learning rates, one row each: loss and accuracy on the training images, accuracy on "
        "the test images, smoothed by an exponential moving average with factor {smoothing:g}. Thin lines are seeds, "
        "thick lines their means. A seed from which no method learns all ten classes, at a rate where other seeds do, "
        "is dotted and not in the mean."
    ),
    settings=CurveGrid,
    plot=plot,
    claims=_CLAIMS,
    grids=grids,
    table=table,
)
