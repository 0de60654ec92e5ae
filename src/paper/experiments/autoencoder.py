"""Figure 5: final loss of autoencoders and the size of their rescaling, by compression."""

from __future__ import annotations

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import np, pd
from paper.settings import CompressionGrid, grids
from paper.verdicts import LR, Answer, Claim, Estimate, Finding, NotMeasured


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


def smaller(rows: pd.DataFrame) -> tuple[list[Answer], list[str]]:
    """For each compression, whether PathCond's final loss is below every other method's, and their ratios in words."""
    answers: dict[float, list[Answer]] = {}
    texts = []
    for method, name in (("baseline", "baseline"), ("enorm", "ENorm")):
        if method in set(rows["method"]):
            found = verdicts.loss_ratios(rows, "compression", high=method)
            for factor, ratio in verdicts.known(found).items():
                answers.setdefault(factor, []).append(verdicts.decide(ratio, "autoencoder_loss"))
            texts.append(f"{name} over PathCond at {verdicts.listed(found, 'compression', intervals=True)}")
    return list(map(verdicts.worst, answers.values())), texts


def scales(rows: pd.DataFrame) -> pd.DataFrame:
    """PathCond's largest abs(log lambda), one row per seed and one column per compression."""
    return verdicts.of(rows, "pathcond").pivot(index="seed", columns="compression", values="max_log_scale")


def grows(rows: pd.DataFrame) -> Answer:
    """Whether the largest abs(log lambda) grows from each compression to the next."""
    return verdicts.over_cases(verdicts.decide(step, "autoencoder_rescaling") for step in verdicts.steps(scales(rows)))


def _loss(table: pd.DataFrame) -> Finding:
    rows = verdicts.runs(table, lr=LR)
    answers, texts = smaller(rows)
    enorm = {
        f"enorm {factor:g}": ratio for factor, ratio in verdicts.loss_ratios(rows, "compression", high="enorm").items()
    }
    cases = verdicts.loss_ratios(rows, "compression") | enorm
    return Finding(f"final train loss, {'; '.join(texts)}", verdicts.over_cases(answers), cases=cases)


def _compression(table: pd.DataFrame) -> Finding:
    rows = verdicts.runs(table, lr=LR)
    pair = ("final_train_loss", "baseline", "pathcond")
    gaps = pd.DataFrame(
        {factor: verdicts.paired(part, *pair) for factor, part in verdicts.by(rows, "compression")}
    ).dropna()
    if gaps.shape[1] < 2 or gaps.empty:
        raise NotMeasured("one compression shows no trend")
    slopes = [float(np.polyfit(np.log2(list(gaps)), values, 1)[0]) for values in gaps.to_numpy()]
    slope = Estimate.of(slopes, digits=4)
    each = {factor: Estimate.of(gaps[factor], digits=4) for factor in gaps}
    text = f"final train loss, baseline minus PathCond at {verdicts.listed(each, 'compression', intervals=True)}"
    unit = "more for each doubling of the compression"
    return Finding(text, verdicts.decide(slope, "autoencoder_compression"), slope, unit)


def _rescaling(table: pd.DataFrame) -> Finding:
    rows = verdicts.runs(table, lr=LR)
    text = ", ".join(f"{factor:g}: {value:.2f}" for factor, value in scales(rows).mean().items())
    return Finding(f"largest |log lambda| at compression {text}", grows(rows))


_CLAIMS = (
    Claim(
        "autoencoder_loss",
        "Autoencoders end with a smaller train loss after PathCond, whatever the compression",
        "at every compression",
        "ratio of final train losses, baseline over PathCond and ENorm over PathCond; a run that diverged has an "
        "infinite loss",
        _loss,
        cases="compression",
    ),
    Claim(
        "autoencoder_compression",
        "The more compression, the more PathCond helps",
        "a clear trend",
        "slope, over the logarithm of the compression, of the gap in the figure: final train loss of the baseline "
        "minus PathCond's",
        _compression,
    ),
    Claim(
        "autoencoder_rescaling",
        "The more compression, the larger the rescaling at the start",
        "a clear trend (the paper plots twice the log)",
        "growth of the largest |log lambda| from one compression to the next",
        _rescaling,
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
