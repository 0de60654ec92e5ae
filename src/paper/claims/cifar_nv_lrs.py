"""Claims of the appendix on CIFAR-NV by learning rate."""

import math

import pandas as pd

from paper.claims.cifar_nv import gain
from paper.claims.rules import NOT_REPRODUCED, PARTLY, RANGE, REPRODUCED, Claim, Finding, NotMeasured, of_all, some
from paper.claims.trained import LR, head_start, runs


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


CLAIMS = (
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
