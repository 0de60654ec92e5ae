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
from paper.verdicts import LR, Claim, accuracy_gain, at_least, epochs_ratios, runs, some

DEFAULT = "half"  # what the library does
NO_BATCHNORM = "_no_bn"  # end of the names of networks


class Settings(Block):
    """Training grids of MLPs: by depth, depths that are also trained with a bound, and depths without BatchNorm."""

    mlp: DepthGrid
    bounded: DepthGrid | None = None
    longer: DepthGrid | None = None  # without BatchNorm
    cifar_nv: CurveGrid | None = None


def _with_batchnorm(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of MLPs with BatchNorm."""
    return table[table["hidden_layers"].notna() & ~table["network"].str.endswith(NO_BATCHNORM)]


def _paper(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of the paper's MLPs at its learning rate."""
    return runs(_with_batchnorm(table), lr=LR)


def _longer(table: pd.DataFrame) -> pd.DataFrame:
    """The runs without BatchNorm."""
    return runs(table[table["network"].str.endswith(NO_BATCHNORM)])


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Epochs to the target and best test accuracy against depth, side by side."""
    table = _with_batchnorm(table)
    cells = table[table["panel"] == "cell"]
    figure, axes = plotting.panels(1, 2, plotting.PAGE, 2.6)
    plotting.reach(axes[0], table, "hidden_layers")
    plotting.epochs_axis(axes[0], table)
    axes[0].set(xlabel="hidden layers", title="Train accuracy reaches the target")
    percent = table.assign(**{name: 100 * table[name] for name in table if name.startswith("best_test_accuracy")})
    plotting.accuracies(axes[1], percent, "hidden_layers", "best_test_accuracy")
    axes[1].set(xlabel="hidden layers", ylabel="best test accuracy (%)", title="Best test accuracy")
    for place in axes:
        place.set_xticks(sorted(cells["hidden_layers"].unique()))
    plotting.letters(axes)
    plotting.legend(figure, table, markers=True)
    return figure


_CLAIMS = (
    Claim.ours(
        "default_speed",
        "The library's default brings the paper's MLPs to 99% train accuracy in fewer epochs than the baseline",
        "epochs of the baseline over those of the default at lr 1e-3, paired by seed",
        lambda table: epochs_ratios(_paper(table), "hidden_layers", DEFAULT),
        at_least(1.0),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "default_cifar_nv",
        "The library's default raises the best test accuracy of CIFAR-NV",
        "best test accuracy, default minus baseline at lr 1e-3, paired by seed",
        lambda table: accuracy_gain(runs(table[table["network"] == "cifar_nv"], lr=LR), DEFAULT),
        at_least(0.0),
        unit="points",
    ),
    Claim.ours(
        "default_bounded",
        "With a bound on every |log lambda|, eight hidden layers need fewer epochs with PathCond than without it",
        "epochs of PathCond over those of PathCond with the bound at lr 1e-3, paired by seed",
        lambda table: epochs_ratios(some(_paper(table), hidden_layers=8), "hidden_layers", "bounded", "pathcond"),
        at_least(1.0),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "default_longer",
        "Without BatchNorm, in 500 epochs, PathCond reaches 99% train accuracy at least 1.1 times sooner",
        "epochs of the baseline over those of PathCond at lr 1e-3, paired by seed",
        lambda table: epochs_ratios(_longer(table), "hidden_layers"),
        at_least(1.1),
        unit="times",
        cases="depth",
    ),
)


EXPERIMENT = Experiment(
    name="default",
    title="The library's default on the paper's networks",
    where="ours",
    caption=(
        "MLPs on CIFAR-10 at lr 1e-3: epochs to the target and best test accuracy against the number of hidden "
        "layers, for the baseline, the paper's PathCond, PathCond with every |log lambda| at most 1.5, and the "
        "library's default, which keeps the function in train mode. Means over seeds; bars are one standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=trained,
)
