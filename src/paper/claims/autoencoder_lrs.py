"""Claims of the appendix on autoencoders by learning rate."""

import pandas as pd

from paper.claims.autoencoder import scales, smaller
from paper.claims.rules import REPRODUCED, Claim, Finding, of_all
from paper.claims.trained import by, growth, runs


def _rescaling(table: pd.DataFrame) -> Finding:
    grows, parts = [], []
    for lr, rows in by(runs(table), "lr"):
        values = scales(rows)
        grows.append(growth(values) == REPRODUCED)
        parts.append(f"{lr:g}: {min(values.values()):.2f} to {max(values.values()):.2f}")
    return Finding(f"largest |log lambda| at lr {', '.join(parts)}", of_all(grows), sum(grows) / len(grows))


def _loss(table: pd.DataFrame) -> Finding:
    better, parts = [], []
    for lr, rows in by(runs(table), "lr"):
        found, texts = smaller(rows)
        better += found
        parts.append(f"lr {lr:g}: {sum(found)} of {len(found)} compressions ({''.join(texts[:1])})")
    return Finding("; ".join(parts), of_all(better), sum(better) / max(1, len(better)))


CLAIMS = (
    Claim(
        "autoencoder_lrs_rescaling",
        "At every learning rate the rescaling at the start grows with the compression (the start is the same for all)",
        "at every rate",
        "largest |log lambda|, mean over seeds, grows with every step of the compression; every rate: reproduced, "
        "some: partly",
        _rescaling,
    ),
    Claim(
        "autoencoder_lrs_loss",
        "At every learning rate and compression the final train loss is smaller after PathCond",
        "drawn for three rates, stated for one",
        "final train loss below those of baseline and ENorm by 0.1%, mean over seeds; every rate and compression: "
        "reproduced, some: partly; a run that diverged has an infinite loss",
        _loss,
        ours=True,
    ),
)
