"""Claims on the expected diagonal of G: Proposition 5.1 and the appendix's formulas."""

from collections.abc import Callable

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, REPRODUCED, Claim, Finding, NotMeasured, some

# Standard errors that the mean of random networks may be away from a right formula.
FAR = 4.0


def _with_biases(table: pd.DataFrame) -> Finding:
    rows = table[table["case"].isin(["constant", "varying"])]
    if rows.empty:
        raise NotMeasured("no case with biases")
    worst, near = float(rows["z"].abs().max()), rows["z"].abs() <= FAR
    verdict = REPRODUCED if near.all() else PARTLY if near.mean() >= 0.5 else NOT_REPRODUCED
    return Finding(
        f"{near.sum()} of {len(near)} values within {FAR:g} standard errors (worst {worst:.1f})", verdict, worst
    )


def _printed(name: str) -> Callable[[pd.DataFrame], Finding]:
    def judge(table: pd.DataFrame) -> Finding:
        rows = some(table, printed_name=name, kind="edge")
        off = rows["printed_off"].astype(bool)
        verdict = REPRODUCED if not off.any() else PARTLY if off.mean() <= 0.5 else NOT_REPRODUCED
        layers = ", ".join(str(layer) for layer in sorted(rows.loc[off, "layer"].unique()))
        text = f"off in layers {layers} of 0 to {rows['layer'].max()}" if off.any() else "holds in every layer"
        if off.any():
            seen, ours = rows.loc[off, "printed_z"].abs().max(), rows["z"].abs().max()
            text += f"; random networks: up to {seen:.0f} standard errors from it, {ours:.1f} from the corrected one"
        return Finding(text, verdict, float(off.mean()))

    return judge


_RULE = "no layer off: reproduced; at most half: partly"
CLAIMS = (
    Claim(
        "theory_with_biases",
        "Expected diagonal under a standard initialisation, for networks with biases of their layer's variance",
        "formula (appendix)",
        f"random networks within {FAR:g} standard errors; all: reproduced, half: partly",
        _with_biases,
    ),
    Claim(
        "theory_no_biases",
        "Proposition 5.1: the same formula for networks without biases",
        "formula (main text)",
        _RULE,
        _printed("without_biases"),
    ),
    Claim(
        "theory_general",
        "Expected diagonal of the weights for any variances by layer",
        "formula (appendix)",
        _RULE,
        _printed("expected_ak"),
    ),
    Claim(
        "theory_small_variance",
        "Small variance at constant width: a^(L-k) / n in all layers",
        "limit (main text)",
        _RULE,
        _printed("small_variance"),
    ),
    Claim(
        "theory_small_variance_widths",
        "Small variance at varying width",
        "limit (appendix)",
        _RULE,
        _printed("small_variance_widths"),
    ),
    Claim(
        "theory_large_variance_widths",
        "Large variance at varying width",
        "limit (appendix)",
        _RULE,
        _printed("large_variance_widths"),
    ),
)
