"""Claims on the expected diagonal of G: Proposition 5.1 and the appendix's formulas."""

from collections.abc import Callable

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, REPRODUCED, Claim, Finding, NotMeasured, of_all, some

# Standard errors that the mean of random networks may be away from a right formula.
FAR = 4.0


def _near(rows: pd.DataFrame) -> Finding:
    if rows.empty:
        raise NotMeasured("no such case")
    worst, near = float(rows["z"].abs().max()), rows["z"].abs() <= FAR
    verdict = REPRODUCED if near.all() else PARTLY if near.mean() >= 0.5 else NOT_REPRODUCED
    return Finding(
        f"{near.sum()} of {len(near)} values within {FAR:g} standard errors (worst {worst:.1f})", verdict, worst
    )


def _with_biases(table: pd.DataFrame) -> Finding:
    return _near(table[table["case"].isin(["constant", "varying"])])


def _biases(table: pd.DataFrame) -> Finding:
    return _near(table[(table["case"] == "by_layer") & (table["kind"] == "bias")])


def _unit_gain(table: pd.DataFrame) -> Finding:
    rows = some(table, case="constant", a=1.0, kind="edge")
    width = rows["units"] / rows["layer"].max()
    off = (rows["formula"] / (1 + rows["layer"] / width) - 1).abs().max()
    found = _near(rows)
    if off > 1e-9:
        return Finding(f"the formula is off by {off:.1g}", NOT_REPRODUCED)
    return Finding(f"so is the formula; {found.ours}", found.verdict, found.value)


def _constant(table: pd.DataFrame) -> Finding:
    even = table["even_spread"] < 1e-9
    if not even.any():
        raise NotMeasured("no network with a constant diagonal")
    worst = float(table.loc[even, "even_u"].max())
    other = f"; {table.loc[~even, 'even_u'].min():.2g} or more where widths differ" if not even.all() else ""
    text = f"largest |u| {worst:.0e} in networks of equal widths and weights of one size{other}"
    return Finding(text, REPRODUCED if worst < 1e-9 else NOT_REPRODUCED, worst)


def _rank(table: pd.DataFrame) -> Finding:
    rows = table.drop_duplicates(["parameters", "units", "rank"])
    text = "; ".join(f"rank {r.rank:g} of {r.parameters:g} with {r.units:g} units" for r in rows.itertuples())
    return Finding(text, of_all((rows["rank"] == rows["parameters"]).tolist()))


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


_NEAR = f"random networks within {FAR:g} standard errors; all: reproduced, half: partly"
_RULE = "no layer off: reproduced; at most half: partly"
CLAIMS = (
    Claim(
        "theory_with_biases",
        "Expected diagonal under a standard initialisation, for networks with biases of their layer's variance",
        "formula (appendix)",
        _NEAR,
        _with_biases,
    ),
    Claim(
        "theory_unit_gain",
        "At constant width n and a = 1 the expected diagonal is 1 + k/n in layer k, so nearly constant",
        "1 + k/n",
        f"the formula is that, and {_NEAR}",
        _unit_gain,
    ),
    Claim(
        "theory_general_biases",
        "Expected diagonal of the biases for any variances by layer",
        "formula (appendix)",
        _NEAR,
        _biases,
    ),
    Claim(
        "constant_diagonal",
        "Where diag(G) is constant, PathCond leaves the network as it is",
        "u = 0",
        "largest |u| below 1e-9: reproduced",
        _constant,
    ),
    Claim(
        "theory_full_rank",
        "G can be positive definite, so that the objective is the divergence itself",
        "assumed in a case",
        "rank of G equal to its size (every hidden unit takes one away, whatever the weights); in every network: "
        "reproduced, in some: partly",
        _rank,
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
