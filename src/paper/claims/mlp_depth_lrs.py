"""Claims of the appendix on MLPs by learning rate."""

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, REPRODUCED, Claim, Finding, NotMeasured, of_all
from paper.claims.trained import (
    AT_MOST,
    BOUNDS,
    Ratio,
    by,
    epochs_ratio,
    known,
    more_accurate,
    of,
    rank,
    ratios,
    runs,
    span,
)

MODERATE = 1e-2  # the largest learning rate we call moderate


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
    ranks = []
    for _, part in by(rows, "hidden_layers"):
        values = {lr: ratio.value for lr, ratio in ratios(part, "lr").items() if ratio is not None}
        if len(values) > 1:
            ranks.append(rank(values))
    if not ranks:
        raise NotMeasured("no depth with ratios at two learning rates")
    falls = [value <= -0.7 for value in ranks]
    text = f"at {sum(falls)} of {len(falls)} depths; {_by_lr(rows)}"
    return Finding(text, of_all(falls), sum(falls) / len(falls))


def _harmless(rows: pd.DataFrame, ratio: Ratio | None) -> bool:
    if ratio is None:
        return more_accurate(rows, "pathcond", "baseline") >= -0.005
    return ratio.value >= 0.97 and ratio.bound != AT_MOST


def _never_hurts(table: pd.DataFrame) -> Finding:
    rows = runs(table)
    cells = [cell for lr, part in by(rows, "lr") if lr <= MODERATE for _, cell in by(part, "hidden_layers")]
    cells = [cell for cell in cells if {"baseline", "pathcond"} <= set(cell["method"])]
    found = [epochs_ratio(of(cell, "baseline"), of(cell, "pathcond")) for cell in cells]
    fine = [_harmless(cell, ratio) for cell, ratio in zip(cells, found, strict=True)]
    if not fine:
        raise NotMeasured(f"no cell with lr up to {MODERATE:g}")
    share = sum(fine) / len(fine)
    verdict = REPRODUCED if share == 1 else PARTLY if share >= 0.9 else NOT_REPRODUCED
    worst = min((ratio.value for ratio in found if ratio is not None), default=None)
    text = f"no slower in {sum(fine)} of {len(fine)} cells with lr up to {MODERATE:g}; {_by_lr(rows)}"
    return Finding(text if worst is None else f"{text}; least ratio {worst:.2f}", verdict, worst)


def _large(table: pd.DataFrame) -> Finding:
    rows = runs(table)
    largest = rows["lr"].max()
    if largest <= MODERATE:
        raise NotMeasured(f"no learning rate above {MODERATE:g}")
    values = known(ratios(rows[rows["lr"] == largest], "hidden_layers"))
    low, high = span(values)
    near = [0.9 <= ratio.value <= 1.1 for ratio in values.values()]
    return Finding(f"ratios {low:.2f} to {high:.2f} at lr {largest:g}", of_all(near), low, (low, high))


CLAIMS = (
    Claim(
        "mlp_lrs_shrinks",
        "The larger the learning rate, the smaller PathCond's gain on MLPs",
        "largest gains at small rates",
        "rank correlation of the ratio of epochs (baseline over PathCond) with the learning rate is at most -0.7; "
        f"every depth: reproduced, some: partly; {BOUNDS}",
        _shrinks,
    ),
    Claim(
        "mlp_lrs_never_hurts",
        "At small to moderate learning rates PathCond never slows an MLP down",
        "at least as good everywhere",
        "ratio of epochs at least 0.97 in every cell with lr up to 0.01: reproduced; in 90% of them: partly; a cell "
        "where targets were missed on both sides goes by final train accuracy, at most 0.5 points lower",
        _never_hurts,
    ),
    Claim(
        "mlp_lrs_large",
        "At a large learning rate PathCond is no better than the baseline, nor worse",
        "comparable",
        f"ratio of epochs 0.9 to 1.1 at the largest rate; every depth: reproduced, some: partly; {BOUNDS}",
        _large,
    ),
)
