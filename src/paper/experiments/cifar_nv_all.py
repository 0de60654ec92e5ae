"""Ours: CIFAR-NV on all training images, as in the authors' code; the paper's text keeps 10,000 for validation."""

from __future__ import annotations

from paper.experiments.base import Experiment
from paper.experiments.cifar_nv import PAPER_BEST, CurveGrid, best_accuracies, earlier, table
from paper.lazy import pd, plotting
from paper.settings import grids
from paper.verdicts import Claim

PANELS = {
    "train_loss": "Train loss, eval mode",
    "running_train_loss": "Train loss, train mode",
    "test_accuracy": "Test accuracy",
}


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Train loss in both modes, and test accuracy with the paper's best: three panels, a page wide."""
    figure, axes = plotting.panels(1, 3, plotting.PAGE, 2.6)
    for place, (value, title) in zip(axes, PANELS.items(), strict=True):
        plotting.by_seed(place, table, value)
        place.set_title(title)
    losses = [place.get_ylim() for place in axes[:2]]
    for place in axes[:2]:
        place.set_ylim(min(low for low, _ in losses), max(high for _, high in losses))
    more = plotting.seed_handles(table)
    if axes[2].get_ylim()[1] > min(PAPER_BEST.values()) / 2:  # else, in miniature, they would only squeeze the curves
        for method, best in PAPER_BEST.items():
            axes[2].axhline(best, color=plotting.METHODS[method].colour, linewidth=0.7, linestyle="--", zorder=1)
        more.append(plotting.handle(color=plotting.GREY, linewidth=0.7, linestyle="--", label="the paper's best"))
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=more)
    return figure


_CLAIMS = (
    Claim.ours(
        "cifar_all_best",
        "On all training images, as in the authors' code, CIFAR-NV's best test accuracy is that of the paper with "
        "PathCond and without",
        "statistic and levels of `cifar_best_test`",
        best_accuracies,
        paper="80% against 77%",
    ),
    Claim.ours(
        "cifar_all_earlier",
        "On all training images, PathCond gets near its best test accuracy on CIFAR-NV about 20 epochs before the "
        "baseline, as the paper says",
        "statistic and levels of `cifar_earlier`",
        earlier,
        paper="about 20",
    ),
)


EXPERIMENT = Experiment(
    name="cifar_nv_all",
    title="CIFAR-NV on all training images",
    where="ours",
    caption=(
        "CIFAR-NV trained on {images:,} images over {epochs} epochs: loss on the training images measured in eval mode "
        "after each epoch (a) and as the mean over the steps of an epoch in train mode (b), accuracy on the test "
        "images (c). Smoothed by an exponential moving average with factor {smoothing:g}. Thin lines are seeds, thick "
        "lines their means. Dashed: the paper's best test accuracies with PathCond and without."
    ),
    settings=CurveGrid,
    plot=plot,
    claims=_CLAIMS,
    grids=grids,
    table=table,
)
