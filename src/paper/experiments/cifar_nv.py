"""Figure 3: training and test curves of CIFAR-NV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import plotting, verdicts
from paper.aggregate import LACKING, LEARNT, trained
from paper.experiments.base import Experiment, Runs
from paper.lazy import pd
from paper.settings import Fraction, TrainingGrid, grids
from paper.verdicts import LR, Claim, Estimate, NotMeasured, at_least


class CurveGrid(TrainingGrid):
    """One network, whose curves are smoothed: `smoothing` is the weight of the newest value in the average."""

    smoothing: Fraction


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment, with the curves of every seed."""
    return trained(runs, settings, by_seed=True)


def of_shared_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the rows of seeds that some method lacks, to be drawn; means over seeds stay as they are."""
    rows = table[table["seed"].notna()]
    count = rows.groupby("seed")["method"].nunique()
    return table[~table["seed"].isin(count.index[count < rows["method"].nunique()])]


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Train loss, train accuracy and test accuracy: three panels, a page wide."""
    figure, axes = plotting.panels(1, 3, plotting.PAGE, 2.6)
    table = of_shared_seeds(plotting.at_paper_lr(table))
    plotting.learning(axes, table)
    for place, title in zip(axes, ("Train loss", "Train accuracy", "Test accuracy"), strict=True):
        place.set_title(f"{title}, lr {table['lr'].iloc[0]:g}")
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=plotting.seed_handles(table))
    return figure


def all_classes(table: pd.DataFrame) -> Estimate:
    """Share of the starts from which some method classifies more training images than nine classes have."""
    most = verdicts.runs(table, lr=LR).groupby("seed")["best_train_accuracy"].max()
    if not (most > LEARNT).any():
        raise NotMeasured(f"no run has learned {100 * LEARNT:.0f}% of its training images")
    learnt = int((most > LACKING).sum())
    return verdicts.noted(Estimate.exact(learnt / len(most)), f"{learnt} of {len(most)} starts")


_BEST = "best test accuracy over the epochs, {} minus baseline, paired by seed"
_CLAIMS = (
    Claim(
        "cifar_generalization",
        "The faster training of CIFAR-NV does not cost test accuracy",
        "no loss, rather a gain",
        _BEST.format("PathCond"),
        lambda table: verdicts.accuracy_gain(verdicts.runs(table, lr=LR)),
        at_least(-0.5),
        unit="points",
    ),
    Claim(
        "cifar_enorm",
        "On CIFAR-NV, ENorm's best test accuracy equals the baseline's",
        "no gain, 77% both",
        _BEST.format("ENorm"),
        lambda table: verdicts.accuracy_gain(verdicts.runs(table, lr=LR), "enorm"),
        (-1.5, 1.5),
        unit="points",
    ),
    Claim.ours(
        "cifar_all_classes",
        "From every start CIFAR-NV learns all ten classes at lr 1e-3",
        "share of the seeds from which some method classifies more than 90.1% of the training images correctly, which "
        "takes all ten classes",
        all_classes,
        at_least(1.0),
        paper="not discussed",
        unit="of the starts",
    ),
)


EXPERIMENT = Experiment(
    name="cifar_nv",
    title="Training and test curves of CIFAR-NV",
    where="Figure 3",
    caption=(
        "CIFAR-NV on CIFAR-10 over {epochs} epochs: loss (a) and accuracy (b) on the training images, accuracy on the "
        "test images (c), smoothed by an exponential moving average with factor {smoothing:g}. Thin lines are seeds, "
        "thick lines their medians. A seed from which no method learns all ten classes is dotted and not in the median."
    ),
    settings=CurveGrid,
    plot=plot,
    claims=_CLAIMS,
    grids=grids,
    table=table,
)
