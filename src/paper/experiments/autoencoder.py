"""Figure 5: final loss of autoencoders and the rescaling they ask for, by compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.settings import CompressionGrid, grids
from paper.verdicts import (
    LR,
    NOT_REPRODUCED,
    RANGE,
    SMALLER,
    Claim,
    Finding,
    growth,
    known,
    listed,
    loss_ratios,
    of,
    of_all,
    runs,
    span,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def plot(table: pd.DataFrame) -> Figure:
    """Final loss and log-rescaling against the compression factor: two panels, a page wide."""
    from paper import plotting

    figure, axes = plotting.panels(1, 2, plotting.PAGE, 2.6)
    table = plotting.at_paper_lr(table)
    plotting.final_losses(axes[:1], [table])
    plotting.rescaling(axes[1], table)
    axes[0].set_title(f"Final train loss, lr {table['lr'].iloc[0]:g}")
    axes[1].set_title("Largest log-rescaling at the start")
    plotting.letters(axes)
    plotting.legend(figure, table)
    return figure


def smaller(rows: pd.DataFrame) -> tuple[list[bool], list[str]]:
    """For each compression, whether PathCond's final loss is below every other method's, and their ratios in words."""
    better: dict[float, bool] = {}
    texts = []
    for method, name in (("baseline", "baseline"), ("enorm", "ENorm")):
        if method in set(rows["method"]):
            found = loss_ratios(rows, "compression", high=method)
            for factor, ratio in known(found).items():
                better[factor] = better.get(factor, True) and ratio.value > SMALLER
            texts.append(f"{name} over PathCond at {listed(found, 'compression')}")
    return list(better.values()), texts


def scales(rows: pd.DataFrame) -> dict[float, float]:
    """PathCond's largest abs(log lambda) by compression, mean over seeds."""
    return of(rows, "pathcond").groupby("compression")["max_log_scale"].mean().to_dict()


def _loss(table: pd.DataFrame) -> Finding:
    rows = runs(table, lr=LR)
    better, texts = smaller(rows)
    low, high = span(known(loss_ratios(rows, "compression")))
    return Finding(f"final train loss, {'; '.join(texts)}", of_all(better), low, (low, high), RANGE)


def _compression(table: pd.DataFrame) -> Finding:
    rows = runs(table, lr=LR)
    found = loss_ratios(rows, "compression")
    values = {factor: ratio.value for factor, ratio in known(found).items()}
    verdict, most = growth(values), known(found)[max(values)]
    text = f"final train loss, baseline over PathCond at {listed(found, 'compression')}; less PathCond's: {_gaps(rows)}"
    of = f"95% at {max(values):g}:"
    return Finding(text, verdict if most.value > SMALLER else NOT_REPRODUCED, most.value, most.interval, of)


def _gaps(rows: pd.DataFrame) -> str:
    """Final train loss of the baseline less PathCond's by compression, means over seeds."""
    losses = rows.pivot_table("final_train_loss", "compression", "method")
    gaps = losses["baseline"] - losses["pathcond"]
    return ", ".join(f"{factor:g}: {gap:.2g}" for factor, gap in gaps.items())


def _rescaling(table: pd.DataFrame) -> Finding:
    values = scales(runs(table, lr=LR))
    verdict = growth(values)
    text = ", ".join(f"{factor:g}: {value:.2f}" for factor, value in values.items())
    ends = min(values.values()), max(values.values())
    return Finding(f"largest |log lambda| at compression {text}", verdict, ends[1], ends, RANGE)


_CLAIMS = (
    Claim(
        "autoencoder_loss",
        "Autoencoders end with a smaller train loss after PathCond, whatever the compression",
        "at every compression",
        "final train loss below those of baseline and ENorm by 0.1%, mean over seeds; every compression: reproduced, "
        "some: partly; a run that diverged has an infinite loss",
        _loss,
    ),
    Claim(
        "autoencoder_compression",
        "The more compression, the more PathCond helps",
        "a clear trend",
        "ratio of final train losses, baseline over PathCond, grows with every step: reproduced; larger at the end "
        "than at the start: partly; not if there is no gain of 0.1% at the end",
        _compression,
    ),
    Claim(
        "autoencoder_rescaling",
        "The more compression, the larger the rescaling at the start",
        "a clear trend (it plots twice the log)",
        "largest |log lambda|, mean over seeds, grows with every step: reproduced; larger at the end than at the "
        "start: partly",
        _rescaling,
    ),
)


EXPERIMENT = Experiment(
    name="autoencoder",
    title="Autoencoders by compression",
    where="Figure 5",
    caption=(
        "MNIST autoencoders by compression factor: loss on the training images after {epochs} epochs (a), and largest "
        "|log λ| at the start (b); the paper plots its double. Means over {seeds_count} seeds; bars are one standard "
        "deviation."
    ),
    settings=CompressionGrid,
    plot=plot,
    claims=_CLAIMS,
    keys=("epoch",),
    grids=grids,
    table=trained,
)
