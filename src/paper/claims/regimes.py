"""Claims of Figure 4: when there is much to rescale."""

import pandas as pd

from paper.claims.rules import RANGE, Claim, Finding, NotMeasured, of_all


def _irregular(table: pd.DataFrame) -> Finding:
    if table["alpha"].nunique() < 2:
        raise NotMeasured("one value of alpha shows no trend")
    ranks, parts = [], []
    for variance, rows in table.groupby("variance"):
        rank = float(rows["alpha"].rank().corr(rows["median"].rank()))
        ends = rows.sort_values("alpha")["median"]
        ranks.append(rank)
        parts.append(f"variance {variance:g}: {ends.iloc[0]:.2g} -> {ends.iloc[-1]:.2g} (rank correlation {rank:.2f})")
    verdict = of_all([rank <= -0.8 for rank in ranks])
    return Finding("; ".join(parts), verdict, max(ranks), (min(ranks), max(ranks)), RANGE)


def _variance(table: pd.DataFrame) -> Finding:
    if table["variance"].nunique() < 2:
        raise NotMeasured("one variance shows no trend")
    wide = table.pivot(index="alpha", columns="variance", values="median").sort_index(axis=1)
    falls = wide.diff(axis=1).iloc[:, 1:].lt(0).all(axis=1)
    share = float(falls.mean())
    return Finding(f"at {falls.sum()} of {len(falls)} values of alpha", of_all(list(falls)), share)


def _root(table: pd.DataFrame) -> Finding:
    shares = table.groupby("variance")["printed_root_fails"].mean()
    text = ", ".join(f"{variance:g}: {100 * share:.2g}%" for variance, share in shares.items())
    verdict = of_all([share == 0 for share in shares])
    ends = float(shares.min()), float(shares.max())
    return Finding(f"not positive in float64 at variance {text} of the networks", verdict, ends[1], ends, RANGE)


CLAIMS = (
    Claim(
        "regimes_irregular_widths",
        "The largest rescaling grows as the widths of the layers become more irregular (alpha falls)",
        "a clear trend at every variance",
        "rank correlation of the median with alpha is at most -0.8; every variance: reproduced, some: partly",
        _irregular,
    ),
    Claim(
        "regimes_small_variance",
        "The largest rescaling grows as the variance of the weights falls",
        "a clear trend",
        "the median falls from each variance to the next larger; at every alpha: reproduced, at some: partly",
        _variance,
    ),
    Claim(
        "regimes_printed_root",
        "The positive root behind an update can be computed with the formula as printed",
        "printed in the algorithm",
        "positive for every unit's first update in every network; at every variance: reproduced, at some: partly (ours "
        "uses the form that does not cancel)",
        _root,
    ),
)
