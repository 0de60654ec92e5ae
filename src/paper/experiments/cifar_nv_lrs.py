"""Appendix: training and test curves of CIFAR-NV, one row per learning rate."""

from __future__ import annotations

from paper import plotting, verdicts
from paper.experiments.base import Experiment
from paper.experiments.cifar_nv import CurveGrid, of_shared_seeds, table
from paper.lazy import pd
from paper.settings import grids
from paper.verdicts import LR, Claim, Estimate, Estimates, NotMeasured, above, at_most


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Three panels per learning rate, a page wide."""
    table = of_shared_seeds(table)
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
    """Epochs that PathCond saves to the baseline's last smoothed train accuracy, by learning rate."""
    rates = sorted(set(verdicts.some(table, panel="seed")["lr"]))
    return {float(lr): verdicts.head_start(verdicts.some(table, lr=lr), "train_accuracy") for lr in rates}


def _at_largest(table: pd.DataFrame) -> Estimate:
    found = _saved(table)
    if len(found) < 2:
        raise NotMeasured("one learning rate shows no trend")
    return found[max(found)]


def _small(table: pd.DataFrame) -> Estimates:
    saved = {lr: found for lr, found in _saved(table).items() if lr <= LR}
    gains = {lr: verdicts.accuracy_gain(verdicts.runs(table, lr=lr)) for lr in saved}
    found: Estimates = {f"epochs earlier at lr {lr:g}": estimate for lr, estimate in saved.items()}
    return found | {f"points of best test accuracy at lr {lr:g}": estimate for lr, estimate in gains.items()}


_CLAIMS = (
    Claim(
        "cifar_lrs_shrinks",
        "PathCond's advantage on CIFAR-NV is gone at the largest learning rate",
        "converges to the baseline",
        "first epoch at which a seed's smoothed train accuracy reaches the baseline's final one, baseline minus "
        "PathCond, at the largest rate",
        _at_largest,
        at_most(6.4),  # 5% of the epochs
        unit="epochs earlier",
    ),
    Claim(
        "cifar_lrs_small",
        "At small to moderate learning rates CIFAR-NV both trains faster and generalizes better with PathCond",
        "both better",
        "epochs saved until a seed's smoothed train accuracy reaches the baseline's final one, and gain in best test "
        "accuracy in points, at each learning rate up to 0.001",
        _small,
        above(0.0),
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
        "thick lines their medians. A seed from which no method learns all ten classes, at a rate where other seeds "
        "do, is dotted and not in the median."
    ),
    settings=CurveGrid,
    plot=plot,
    claims=_CLAIMS,
    grids=grids,
    table=table,
)
