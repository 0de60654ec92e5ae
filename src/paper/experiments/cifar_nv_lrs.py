"""Appendix: training and test curves of CIFAR-NV, one row per learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paper.experiments.base import Experiment
from paper.experiments.cifar_nv import CurveGrid, gain, table
from paper.settings import grids
from paper.verdicts import (
    LR,
    NOT_REPRODUCED,
    PARTLY,
    RANGE,
    REPRODUCED,
    Claim,
    Finding,
    NotMeasured,
    head_start,
    of_all,
    runs,
    some,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(table: pd.DataFrame) -> Figure:
    """Three panels per learning rate, a page wide."""
    from paper import plotting

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


def _saved(table: pd.DataFrame) -> dict[float, float]:
    """Share of the epochs that PathCond saves, by learning rate; NaN where it never gets to the baseline's end."""
    shares = {}
    for lr in sorted(set(some(table, panel="curve")["lr"])):
        early, epochs = head_start(some(table, lr=lr), "train_accuracy")
        shares[float(lr)] = early / epochs
    return shares


def _listed(shares: dict[float, float]) -> str:
    parts = ("none" if math.isnan(share) else f"{100 * share:.0f}%" for share in shares.values())
    return ", ".join(f"{lr:g}: {part}" for lr, part in zip(shares, parts, strict=True))


def _shrinks(table: pd.DataFrame) -> Finding:
    shares = _saved(table)
    if len(shares) < 2:
        raise NotMeasured("one learning rate shows no trend")
    # Where PathCond never gets there, it saves nothing.
    values = [0.0 if math.isnan(share) else share for share in shares.values()]
    *smaller, largest = values
    verdict = REPRODUCED if largest <= 0.05 < min(smaller) else PARTLY if largest < smaller[0] else NOT_REPRODUCED
    return Finding(f"epochs saved at lr {_listed(shares)}", verdict, largest, (min(values), max(values)), RANGE)


def _small(table: pd.DataFrame) -> Finding:
    shares = {lr: share for lr, share in _saved(table).items() if lr <= LR}
    better, parts = [], []
    for lr, share in shares.items():
        points, (low, high) = gain(runs(table, lr=lr), "pathcond")
        better.append(share > 0 and points > 0)
        parts.append(f"{lr:g}: {points:+.1f} ({low:+.1f} to {high:+.1f})")
    text = f"epochs saved at lr {_listed(shares)}; points of best test accuracy at lr {', '.join(parts)}"
    return Finding(text, of_all(better), sum(better))


_CLAIMS = (
    Claim(
        "cifar_lrs_shrinks",
        "PathCond's advantage on CIFAR-NV fades to nothing as the learning rate grows",
        "gone at the largest rate",
        "share of the epochs saved until the smoothed mean train accuracy is what the baseline's is at the end: at "
        "most 5% at the largest rate and more at every other: reproduced; less at the largest than at the smallest: "
        "partly",
        _shrinks,
    ),
    Claim(
        "cifar_lrs_small",
        "At small to moderate learning rates CIFAR-NV both trains faster and generalises better with PathCond",
        "both better",
        "epochs are saved and best test accuracy is higher at lr up to 0.001; every rate: reproduced, some: partly",
        _small,
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
    keys=("epoch",),
    grids=grids,
    table=table,
)
