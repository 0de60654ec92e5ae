"""Ours: the library's default on the paper's MLPs, PathCond with a bound, and longer training without BatchNorm.

The paper scales the weights before a BatchNorm, which changes the function in train mode; the library scales the
BatchNorm's own parameters and keeps it. docs/hypotheses.md has the hypotheses, committed before the runs.
"""

from __future__ import annotations

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.experiments.cifar_nv import CurveGrid
from paper.lazy import pd
from paper.settings import Block, DepthGrid, grids_of_blocks
from paper.verdicts import LR, Claim, Estimate, above, accuracy_gain, at_most, by, epochs_ratios, runs, some

DEFAULT = "half"  # what the library does
NO_BATCHNORM, SMALL = "_no_bn", "_gain0.3"  # ends of the names of networks


class Settings(Block):
    """Training grids of MLPs: by depth, depths that are also trained with a bound, and depths without BatchNorm."""

    mlp: DepthGrid
    bounded: DepthGrid | None = None
    longer: DepthGrid | None = None  # without BatchNorm
    small: DepthGrid | None = None  # without BatchNorm, from a start of small variance
    cifar_nv: CurveGrid | None = None


def _with_batchnorm(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of MLPs with BatchNorm."""
    return table[table["hidden_layers"].notna() & ~table["network"].str.contains(NO_BATCHNORM)]


def _paper(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of the paper's MLPs at its learning rate."""
    return runs(_with_batchnorm(table), lr=LR)


def _longer(table: pd.DataFrame) -> pd.DataFrame:
    """The runs without BatchNorm; the target is the accuracy with which the baseline of a seed ended."""
    found = runs(table[table["network"].str.endswith(NO_BATCHNORM)])
    return found.assign(reached=found["reached_end"])


def _small(table: pd.DataFrame) -> dict[float, Estimate]:
    """Gains in final train accuracy from a start of small variance, by learning rate."""
    rows = runs(table[table["network"].str.endswith(SMALL)])
    return {lr: accuracy_gain(part, value="final_train_accuracy") for lr, part in by(rows, "lr")}


def plot(table: pd.DataFrame) -> plotting.Figure:
    """MLPs by depth: epochs and best test accuracy; below, if they are there, the other blocks."""
    mlps, without = _with_batchnorm(table), table[table["network"].str.endswith(NO_BATCHNORM)]
    conv = table[(table["network"] == "cifar_nv") & (table["panel"] == "run")]
    small = table[table["network"].str.endswith(SMALL)]
    lines = 1 + bool(len(without) or len(conv)) + bool(len(small))  # a small preset leaves some out
    figure, axes = plotting.panels(lines, 2, plotting.PAGE, 0.6 + 2.0 * lines)
    _epochs(axes[0], mlps, "Train accuracy reaches the target")
    plotting.accuracies(axes[1], mlps, "hidden_layers", "best_test_accuracy")
    axes[1].set(xlabel="hidden layers", ylabel="best test accuracy (%)", title="Best test accuracy")
    axes[1].set_xticks(sorted(mlps["hidden_layers"].unique()))
    if len(without):
        _epochs(axes[2], without, "No BatchNorm")
    if len(conv):
        plotting.best_tests(axes[3], {"CIFAR-NV": conv})
        axes[3].set_title("CIFAR-NV")
    if len(small):
        plotting.accuracies(axes[4], small, "lr", "final_train_accuracy")
        axes[4].set(
            xlabel="learning rate", ylabel="final train accuracy (%)", xscale="log", title="Start of small variance"
        )
    for place, rows in zip(axes[2:], (without, conv, small, ()), strict=False):
        place.set_visible(bool(len(rows)))
    plotting.letters([place for place in axes if place.get_visible()])
    plotting.legend(figure, mlps, markers=True)
    return figure


def _epochs(axes: plotting.Axes, rows: pd.DataFrame, title: str) -> None:
    """Epochs to the target by depth."""
    plotting.reach(axes, rows, "hidden_layers")
    plotting.epochs_axis(axes, rows)
    axes.set(xlabel="hidden layers", title=title)
    axes.set_xticks(sorted(rows["hidden_layers"].unique()))


_CLAIMS = (
    Claim.ours(
        "default_speed",
        "The library's default brings the paper's MLPs to 99% train accuracy at most 1.1 times faster",
        "epochs of the baseline over those of the default at lr 1e-3, paired by seed",
        lambda table: epochs_ratios(_paper(table), "hidden_layers", DEFAULT),
        at_most(1.1),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "default_bounded",
        "With a bound on every |log lambda|, eight hidden layers need fewer epochs with PathCond than without it",
        "epochs of PathCond over those of PathCond with the bound at lr 1e-3, paired by seed",
        lambda table: epochs_ratios(some(_paper(table), hidden_layers=8), "hidden_layers", "bounded", "pathcond"),
        above(1.0),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "default_longer",
        "Without BatchNorm, in 500 epochs, PathCond reaches the baseline's final train accuracy over 1.1 times sooner",
        "epochs of the baseline until its final train accuracy over those of PathCond, at lr 1e-3, paired by seed",
        lambda table: epochs_ratios(_longer(table), "hidden_layers"),
        above(1.1),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "default_small_start",
        "From a start of small variance, MLPs without BatchNorm end with a higher train accuracy after PathCond",
        "train accuracy after the last epoch, PathCond minus baseline, all start weights times 0.3, paired by seed",
        _small,
        above(0.0),
        paper="small initial variance is one of the two most favorable regimes",
        unit="points",
        cases="learning rate",
    ),
)


EXPERIMENT = Experiment(
    name="default",
    title="The library's default on the paper's networks",
    where="ours",
    caption=(
        "MLPs on CIFAR-10 at lr 1e-3: epochs to the target (a) and best test accuracy (b) against the number of hidden "
        "layers, for the baseline, the paper's PathCond, PathCond with every |log lambda| at most 1.5, and half of ten "
        "sweeps, the library's default here, which keeps the function in train mode. Epochs to the target without "
        "BatchNorm, in longer training (c). Best test accuracy of CIFAR-NV, a marker per seed and a line at their mean "
        "(d). Final train accuracy of MLPs without BatchNorm whose start weights were multiplied by 0.3 (e). Means "
        "over seeds; bars are one standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=trained,
)
