"""Claims of Figure 5: MNIST autoencoders by compression, at lr 1e-3."""

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, RANGE, Claim, Finding, of_all
from paper.claims.trained import LR, SMALLER, growth, known, listed, loss_ratios, of, runs, span


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


CLAIMS = (
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
