"""Figure 3: training and test curves of CIFAR-NV."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paper.aggregate import LACKING, LEARNT, trained
from paper.experiments.base import Experiment, Runs
from paper.settings import Fraction, TrainingGrid, grids, model_validator, plain
from paper.verdicts import (
    LR,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    Claim,
    Finding,
    NotMeasured,
    head_start,
    interval,
    of,
    runs,
    some,
    within,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class CurveGrid(TrainingGrid):
    """One network, whose curves are smoothed: `smoothing` is the weight of the newest value in the average."""

    smoothing: Fraction

    @model_validator(mode="after")
    def _one_network(self) -> CurveGrid:
        model = plain(self.model)
        if ("width" in model and model["kind"] == "mlp") or (
            model["kind"] == "autoencoder" and "compression" not in model
        ):
            raise ValueError(f"model: expected one network, with its hidden widths or compression, got {model}")
        return self


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment, with the curves of every seed."""
    return trained(runs, settings, by_seed=True)


def plot(table: pd.DataFrame) -> Figure:
    """Train loss, train accuracy and test accuracy: three panels, a page wide."""
    from paper import plotting

    figure, axes = plotting.panels(1, 3, plotting.PAGE, 2.6)
    table = plotting.at_paper_lr(table)
    plotting.learning(axes, table)
    for place, title in zip(axes, ("Train loss", "Train accuracy", "Test accuracy"), strict=True):
        place.set_title(f"{title}, lr {table['lr'].iloc[0]:g}")
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=plotting.seed_handles(table))
    return figure


LEVELS = (0.6, 0.7, 0.8, 0.9)  # of train accuracy, on the way


def best_test(rows: pd.DataFrame, method: str) -> pd.Series:
    """Best test accuracy over the epochs, in percent, by seed.

    Raises:
        NotMeasured: the method was left out.
    """
    values = of(rows, method).set_index("seed")["best_test_accuracy"]
    if values.empty:
        raise NotMeasured(f"no {method}")
    return 100 * values


def gain(rows: pd.DataFrame, method: str) -> tuple[float, tuple[float, float]]:
    """Points of best test accuracy above the baseline, paired by seed, with its interval."""
    difference = (best_test(rows, method) - best_test(rows, "baseline")).dropna()
    mean = float(difference.mean())
    return mean, interval(mean, float(difference.std()), len(difference))


def _earlier(table: pd.DataFrame) -> Finding:
    table = some(table, lr=LR)
    early, epochs = head_start(table, "train_accuracy")
    by_loss, _ = head_start(table, "train_loss")
    if math.isnan(early):
        return Finding(f"PathCond is not there within {epochs} epochs", NOT_REPRODUCED)
    other = "never" if math.isnan(by_loss) else f"{by_loss:.0f} epochs earlier"
    text = f"{early:.0f} epochs earlier by train accuracy ({other} by train loss{_at_levels(table)}), of {epochs}"
    return Finding(text, within(early, (10, 30), (5, math.inf)), early)


def _at_levels(table: pd.DataFrame) -> str:
    """How many epochs earlier at levels on the way, those that both get to."""
    found = ((level, head_start(table, "train_accuracy", level)[0]) for level in LEVELS)
    return "".join(f"; {early:.0f} at {100 * level:.0f}%" for level, early in found if not math.isnan(early))


def _best(table: pd.DataFrame) -> Finding:
    rows = runs(table, lr=LR)
    ours, base = (float(best_test(rows, method).mean()) for method in ("pathcond", "baseline"))
    if 78.5 <= ours <= 81.5 and 75.5 <= base <= 78.5:
        verdict = REPRODUCED
    else:
        verdict = PARTLY if ours - base > 1 else NOT_REPRODUCED
    difference, ends = gain(rows, "pathcond")
    return Finding(f"{ours:.1f}% against {base:.1f}%", verdict, difference, ends)


def _not_degraded(table: pd.DataFrame) -> Finding:
    difference, ends = gain(runs(table, lr=LR), "pathcond")
    text = f"best test accuracy {difference:+.1f} points ({ends[0]:+.1f} to {ends[1]:+.1f})"
    return Finding(text, within(difference, (-0.5, math.inf), (-1.5, math.inf)), difference, ends)


def _enorm(table: pd.DataFrame) -> Finding:
    rows = runs(table, lr=LR)
    difference, ends = gain(rows, "enorm")
    text = f"{best_test(rows, 'enorm').mean():.1f}%, {difference:+.1f} points from the baseline"
    return Finding(text, within(difference, (-0.5, 0.5), (-1.5, 1.5)), difference, ends)


def _all_classes(table: pd.DataFrame) -> Finding:
    rows = runs(table, lr=LR)
    most = rows.groupby("seed")["best_train_accuracy"].max()
    if not (most > LEARNT).any():
        raise NotMeasured(f"no run has learnt {100 * LEARNT:.0f}% of its training images")
    lacking = sorted(int(seed) for seed in most.index[~(most > LACKING)])
    share, text = 1 - len(lacking) / len(most), f"{len(most) - len(lacking)} of {len(most)} seeds"
    if not lacking:
        return Finding(text, REPRODUCED, share)
    whole = rows[~rows["seed"].isin(lacking)]
    ours, base = (float(best_test(whole, method).mean()) for method in ("pathcond", "baseline"))
    seeds = ("seed " if len(lacking) == 1 else "seeds ") + ", ".join(str(seed) for seed in lacking)
    text += f"; with {seeds} no method passes {100 * most[lacking].max():.1f}% of the training images"
    text += f"; best test accuracy of the others {ours:.1f}% against {base:.1f}%"
    return Finding(text, PARTLY if share >= 0.5 else NOT_REPRODUCED, share)


_CLAIMS = (
    Claim(
        "cifar_earlier",
        "On CIFAR-NV, PathCond is near its best some 20 epochs before the baseline",
        "about 20",
        "first epoch at which the smoothed mean train accuracy is what the baseline's is at the end, baseline less "
        "PathCond; 10 to 30: reproduced, at least 5: partly",
        _earlier,
    ),
    Claim(
        "cifar_best_test",
        "CIFAR-NV's best test accuracy is 80% with PathCond, 77% without",
        "80% against 77%",
        "mean over seeds of each run's best epoch: 78.5 to 81.5 with, 75.5 to 78.5 without: reproduced; more than a "
        "point higher with: partly",
        _best,
    ),
    Claim(
        "cifar_generalisation",
        "The faster training of CIFAR-NV does not cost test accuracy",
        "no loss",
        "best test accuracy, PathCond less baseline, paired by seed: at least -0.5 points: reproduced, -1.5: partly",
        _not_degraded,
    ),
    Claim(
        "cifar_enorm",
        "ENorm's best test accuracy is that of the baseline",
        "no gain, 77% both",
        "best test accuracy, ENorm less baseline, paired by seed: within 0.5 points: reproduced, 1.5: partly",
        _enorm,
    ),
    Claim(
        "cifar_all_classes",
        "From every start CIFAR-NV learns all ten classes at lr 1e-3",
        "not discussed",
        "some method passes 90.1% of the training images, which is more than nine of ten classes; all seeds: "
        "reproduced, at least half of them: partly",
        _all_classes,
        ours=True,
    ),
)


EXPERIMENT = Experiment(
    name="cifar_nv",
    title="Training and test curves of CIFAR-NV",
    where="Figure 3",
    caption=(
        "CIFAR-NV on CIFAR-10 over {epochs} epochs: loss (a) and accuracy (b) on the training images, accuracy on the "
        "test images (c), smoothed by an exponential moving average with factor {smoothing:g}. Thin lines are seeds, "
        "thick lines their means. A seed from which no method learns all ten classes is dotted and not in the mean."
    ),
    settings=CurveGrid,
    plot=plot,
    claims=_CLAIMS,
    keys=("epoch",),
    grids=grids,
    table=table,
)
