"""Claims of Figure 6: cost of the rescaling against one epoch. The paper's pooling is `plain`."""

import pandas as pd

from paper.claims.rules import RANGE, Claim, Finding, of_all, some


def shares(table: pd.DataFrame) -> dict[str, float]:
    """Rescaling time over the time of one epoch, by network."""
    means = some(table, pooling="plain").pivot(index="network", columns="step", values="seconds_mean")
    return {str(network): float(row["total"] / row["epoch"]) for network, row in means.iterrows()}


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{network} {100 * value:.3g}%" for network, value in values.items())


def _hardware(table: pd.DataFrame) -> str:
    return " and ".join(table["hardware"].unique())


def _one_epoch(table: pd.DataFrame) -> Finding:
    found = shares(table)
    worst = max(found.values())
    text = f"{_listed(found)} of an epoch on {_hardware(table)}"
    return Finding(text, of_all([share <= 1.1 for share in found.values()]), worst, (min(found.values()), worst), RANGE)


def _half(table: pd.DataFrame) -> Finding:
    found = shares(table)
    near = [0.4 <= share <= 1.1 for share in found.values()]
    ends = min(found.values()), max(found.values())
    return Finding(f"{_listed(found)} of an epoch on {_hardware(table)}", of_all(near), ends[1], ends, RANGE)


def _range(table: pd.DataFrame) -> Finding:
    found = shares(table)
    low, high = min(found.values()), max(found.values())
    near = [0.22 / 1.5 <= low <= 0.22 * 1.5, 1.03 / 1.5 <= high <= 1.03 * 1.5]
    text = f"{100 * low:.3g}% to {100 * high:.3g}% on {_hardware(table)}"
    return Finding(text, of_all(near), high, (low, high), RANGE)


CLAIMS = (
    Claim(
        "timing_one_epoch",
        "Rescaling costs at most about one training epoch",
        "22% (CIFAR-NV) to 103% (MLP) of an epoch, RTX A4000",
        "at most 1.1 epochs; every network: reproduced, some: partly",
        _one_epoch,
    ),
    Claim(
        "timing_range",
        "The cost lies between 22% and 103% of an epoch",
        "22% to 103%, RTX A4000",
        "both ends within a factor 1.5: reproduced, one: partly (ours is vectorised: less is the expected finding)",
        _range,
    ),
    Claim(
        "timing_half_epoch",
        "Ten sweeps cost about half an epoch to one epoch, whatever the network",
        "half to one (its own 22% is less)",
        "0.4 to 1.1 epochs; every network: reproduced, some: partly (ours is vectorised: less is the expected finding)",
        _half,
    ),
)
