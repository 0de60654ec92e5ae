"""Claims of appendix C: criteria that share their minimiser."""

from collections.abc import Callable

import pandas as pd

from paper.claims.rules import Claim, Finding, NotMeasured, of_all

TOLERANCE = 1e-3


def _minimisers(table: pd.DataFrame, criteria: tuple[str, ...], chains: bool) -> pd.DataFrame:
    rows = table[table["criterion"].isin(criteria) & (table["example"].ne("uv") == chains)]
    rows = rows.drop_duplicates(["example", "criterion", "seed"])
    if rows.empty:
        raise NotMeasured("no such example")
    return rows.assign(off=(rows["minimiser"] - rows["balanced"]).abs())


def _agree(criteria: tuple[str, ...], chains: bool) -> Callable[[pd.DataFrame], Finding]:
    def judge(table: pd.DataFrame) -> Finding:
        rows = _minimisers(table, criteria, chains)
        good = (rows["off"] <= TOLERANCE).tolist()
        worst = float(rows["off"].max())
        text = f"{sum(good)} of {len(good)} minimisers at the balanced point (largest distance {worst:.1g})"
        return Finding(text, of_all(good), worst)

    return judge


def _any_norm(table: pd.DataFrame) -> Finding:
    rows = _minimisers(table, ("weighted_theta", "weighted_gradient"), chains=False)
    wide = rows.pivot(index="seed", columns="criterion", values="minimiser")
    apart = (wide["weighted_gradient"] - wide["weighted_theta"]).abs()
    text = f"sqrt(x^2 + 4 y^2): minimisers {apart.min():.3g} apart in log lambda"
    return Finding(text, of_all((apart <= TOLERANCE).tolist()), float(apart.min()))


_RULE = f"the minimiser is the balanced point to {TOLERANCE:g} in log lambda; always: reproduced, sometimes: partly"
_COMMON = ("theta_norm", "gradient_norm", "hessian_trace", "hessian_norm", "condition")
CLAIMS = (
    Claim(
        "criteria_uv",
        "For f = u v x, the least norm, gradient norm, Hessian trace, Hessian norm and condition number coincide",
        "all coincide",
        _RULE,
        _agree(_COMMON, chains=False),
    ),
    Claim(
        "criteria_chain",
        "For a product of L numbers, the least gradient norm, Hessian trace and norm of the inverses coincide",
        "all coincide",
        _RULE,
        _agree(("gradient_norm", "hessian_trace", "inverse_norm"), chains=True),
    ),
    Claim(
        "criteria_pathcond",
        "PathCond's minimiser is the same point",
        "not said, but implied",
        _RULE,
        _agree(("pathcond",), False),
        ours=True,
    ),
    Claim(
        "criteria_any_norm",
        "The first equivalence holds for any norm",
        "any norm",
        "both minimisers agree for a norm that is not symmetric in its entries: reproduced",
        _any_norm,
    ),
)
