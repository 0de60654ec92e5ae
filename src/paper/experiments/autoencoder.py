"""Figure 5: final loss of autoencoders and the size of their rescaling, by compression."""

from __future__ import annotations

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import np, pd
from paper.settings import CompressionGrid, grids
from paper.verdicts import BASELINE, LR, PATHCOND, Claim, Estimate, Estimates, NotMeasured, above, at_least


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Final loss and log-rescaling against the compression factor."""
    figure, axes = plotting.panels(1, 2, plotting.PAGE, 2.6)
    table = plotting.at_paper_lr(table)
    plotting.final_losses(axes[:1], [table])
    plotting.rescaling(axes[1], table)
    axes[0].set_title(f"Final train loss, lr {table['lr'].iloc[0]:g}")
    axes[1].set_title("Largest log-rescaling at the start")
    plotting.letters(axes)
    plotting.legend(figure, table)
    return figure


def smaller(rows: pd.DataFrame) -> Estimates:
    """Ratios of final losses, baseline and ENorm over PathCond, by compression."""
    found: Estimates = {}
    for method, name in ((BASELINE, ""), ("enorm", "ENorm, ")):
        for factor, part in verdicts.by(rows, "compression") if method in set(rows["method"]) else ():
            found[f"{name}{factor:g}"] = verdicts.loss_ratio(part, high=method)
    return found


def _slope(table: pd.DataFrame) -> Estimate:
    parts = verdicts.by(verdicts.runs(table, lr=LR), "compression")
    gaps = pd.DataFrame(
        {factor: verdicts.paired(part, "final_train_loss", BASELINE, PATHCOND) for factor, part in parts}
    )
    gaps = gaps.dropna()
    if gaps.shape[1] < 2 or gaps.empty:
        raise NotMeasured("one compression shows no trend")
    slopes = [float(np.polyfit(np.log2(list(gaps)), values, 1)[0]) for values in gaps.to_numpy()]
    return Estimate.of(slopes, digits=4)


def _growth(table: pd.DataFrame) -> Estimates:
    rows = verdicts.of(verdicts.runs(table, lr=LR), PATHCOND)
    return verdicts.steps(rows.pivot(index="seed", columns="compression", values="max_log_scale"))


_CLAIMS = (
    Claim(
        "autoencoder_loss",
        "Autoencoders end with a smaller train loss after PathCond, whatever the compression",
        "at every compression",
        "ratio of final train losses, baseline over PathCond and ENorm over PathCond, paired by seed; a run that "
        "diverged has an infinite loss",
        lambda table: smaller(verdicts.runs(table, lr=LR)),
        at_least(1.001),
        unit="times",
        cases="compression",
    ),
    Claim(
        "autoencoder_compression",
        "The more compression, the more PathCond helps",
        "a clear trend",
        "slope, over the logarithm of the compression, of the gap in the figure: final train loss of the baseline "
        "minus PathCond's",
        _slope,
        above(0.0),
        unit="more for each doubling of the compression",
    ),
    Claim(
        "autoencoder_rescaling",
        "The more compression, the larger the rescaling at the start (it does not depend on the learning rate)",
        "a clear trend, at every rate",
        "growth of the largest |log lambda| from one compression to the next",
        _growth,
        above(0.0),
        cases="step",
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
    grids=grids,
    table=trained,
)
