"""Appendix: final loss of autoencoders and the size of their rescaling, one panel per learning rate."""

from __future__ import annotations

from paper import plotting
from paper.aggregate import trained
from paper.experiments.autoencoder import smaller
from paper.experiments.base import Experiment
from paper.lazy import pd
from paper.settings import CompressionGrid, grids
from paper.verdicts import BASELINE, PATHCOND, Claim, Estimates, at_least, by, runs


def plot(table: pd.DataFrame) -> plotting.Figure:
    """One panel per learning rate and one for the start, a page wide."""
    lrs = sorted(set(table["lr"]), reverse=True)
    figure, axes = plotting.panels(1, len(lrs) + 1, plotting.PAGE, 2.6)
    plotting.final_losses(axes[:-1], [table[table["lr"] == lr] for lr in lrs])
    for place, lr in zip(axes, lrs, strict=False):
        place.set_title(f"lr {lr:g}")
    plotting.rescaling(axes[-1], table[table["lr"] == lrs[0]])  # the same at every rate
    axes[-1].set_title("at the start")
    plotting.letters(axes)
    plotting.legend(figure, table)
    return figure


def _smaller(table: pd.DataFrame) -> Estimates:
    return {
        f"lr {lr:g}, compression {factor}": ratio
        for lr, rows in by(runs(table), "lr")
        for factor, ratio in smaller(rows[rows["method"].isin([BASELINE, PATHCOND])]).items()
    }


_CLAIMS = (
    Claim.ours(
        "autoencoder_lrs_loss",
        "At every learning rate and compression the final train loss is smaller after PathCond",
        "ratio of final train losses, baseline over PathCond, paired by seed; a run that diverged has an infinite loss",
        _smaller,
        at_least(1.001),
        paper="drawn for three rates, stated for one",
        unit="times",
        cases="rate and compression",
    ),
)


EXPERIMENT = Experiment(
    name="autoencoder_lrs",
    title="Autoencoders by learning rate",
    where="appendix M",
    caption=(
        "MNIST autoencoders by compression factor: loss on the training images after {epochs} epochs, one panel per "
        "learning rate, each with its own logarithmic axis. Last panel: largest |log λ| at the start, the same for "
        "every rate; the paper plots its double. Means over {seeds_count} seeds; bars are one standard deviation."
    ),
    settings=CompressionGrid,
    plot=plot,
    claims=_CLAIMS,
    grids=grids,
    table=trained,
)
