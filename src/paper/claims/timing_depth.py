"""Claims of the appendix on cost: where the time goes and how it grows."""

import numpy as np
import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, RANGE, REPRODUCED, Claim, Finding, NotMeasured, some

STEPS = ("graph", "diag_g", "solve", "apply")


def _solver(table: pd.DataFrame) -> Finding:
    split = some(table, panel="split", pooling="plain")
    means = split.pivot(index="network", columns="step", values="seconds_mean")[list(STEPS)]
    shares = means["solve"] / means.sum(axis=1)
    least, most = float(shares.min()), float(shares.max())
    verdict = REPRODUCED if least >= 0.95 else PARTLY if least >= 0.5 else NOT_REPRODUCED
    text = ", ".join(f"{network} {100 * share:.0f}%" for network, share in shares.items())
    return Finding(text, verdict, least, (least, most), RANGE)


def _linear(table: pd.DataFrame) -> Finding:
    rows = some(table, panel="depth", step="total")
    if len(rows) < 3:
        raise NotMeasured("a line through fewer than three depths fits always")
    x, y = rows["parameters"].to_numpy(float), rows["seconds_median"].to_numpy(float)
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    explained = 1.0 - float(((y - slope * x - start) ** 2).sum()) / spread if spread > 0 else 0.0
    good = explained >= 0.9 and slope > 0
    verdict = REPRODUCED if good else PARTLY if explained >= 0.7 and slope > 0 else NOT_REPRODUCED
    text = f"{1e9 * slope:.3g} ms a million parameters on top of {1e3 * start:.3g} ms; R^2 {explained:.2f}"
    return Finding(text, verdict, explained)


CLAIMS = (
    Claim(
        "timing_solver_share",
        "The solver takes nearly all of the rescaling time",
        "about 98%",
        "its share is at least 95% in every network: reproduced; at least 50%: partly",
        _solver,
    ),
    Claim(
        "timing_linear",
        "Rescaling time is linear in the number of parameters",
        "linear over 2 to 9 layers",
        "a rising line explains at least 90% of the variance of the medians over depths: reproduced; 70%: partly",
        _linear,
    ),
)
