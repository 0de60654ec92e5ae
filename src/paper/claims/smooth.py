"""Claims on smooth activations: how far the function moves."""

import math

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, RANGE, REPRODUCED, Claim, Finding, NotMeasured, of_all, some

EXACT = 1e-10  # of the output, in float64
BOUND = 5.0  # of the paper, on every |u|


def _curve(table: pd.DataFrame, activation: str, initialisation: str = "default") -> pd.Series:
    rows = some(table, activation=activation, initialisation=initialisation)
    if len(rows) < 2:
        raise NotMeasured("one depth shows no trend")
    return rows.sort_values("hidden_layers").set_index("hidden_layers")["error_mean"]


def _exact(table: pd.DataFrame) -> Finding:
    worst = float(some(table, activation="relu")["error_mean"].max(skipna=False))
    return Finding(f"at most {worst:.1e} of the output", REPRODUCED if worst < EXACT else NOT_REPRODUCED, worst)


def _training(table: pd.DataFrame) -> Finding:
    rows = some(table, activation="relu", initialisation="default").sort_values("hidden_layers")
    errors = rows["train_error_mean"]
    ends = float(errors.min()), float(errors.max())
    first, last = rows["hidden_layers"].iloc[[0, -1]]
    text = f"relative change, hidden layers {first}: {errors.iloc[0]:.2g}, {last}: {errors.iloc[-1]:.2g}"
    return Finding(text, of_all((errors < EXACT).tolist()), ends[1], ends, RANGE)


def _falls(table: pd.DataFrame) -> Finding:
    curve = _curve(table, "gelu")
    ends = float(curve.iloc[0]), float(curve.iloc[-1])
    near = [0.2 <= end / printed <= 5.0 for end, printed in zip(ends, (1e-1, 1e-3), strict=True)]
    falling = bool((curve.diff().iloc[1:] < 0).all())
    text = f"{ends[0]:.2g} at {curve.index[0]} to {ends[1]:.2g} at {curve.index[-1]} hidden layers"
    return Finding(text, of_all([falling, *near]), ends[1], (min(ends), max(ends)), RANGE)


def _identity(table: pd.DataFrame) -> Finding:
    gelu, silu = _curve(table, "gelu"), _curve(table, "silu")
    lower = (gelu < silu).tolist()
    return Finding(f"GELU's error is the smaller at {sum(lower)} of {len(lower)} depths", of_all(lower))


def _he(table: pd.DataFrame) -> Finding:
    curve = _curve(table, "gelu", "he")
    text = f"with He initialisation {curve.iloc[0]:.2g} at {curve.index[0]}, {curve.iloc[-1]:.2g} at {curve.index[-1]}"
    return Finding(f"{text} hidden layers", REPRODUCED if curve.iloc[-1] < curve.iloc[0] else NOT_REPRODUCED)


def _clamp(table: pd.DataFrame) -> Finding:
    rows = some(table, activation="gelu")
    broken = not math.isfinite(rows[["free_u_mean", "kept_u_mean", "kept_error_mean"]].to_numpy(float).sum())
    free, kept = float(rows["free_u_mean"].max()), float(rows["kept_u_mean"].max())
    verdict = REPRODUCED if broken else PARTLY if max(free, kept) > BOUND else NOT_REPRODUCED
    seen = "NaN" if broken else "no NaN"
    text = f"{seen}; largest |u| without the bound (mean of seeds) {free:.2g}, or {kept:.2g} with GELU kept in diag(G)"
    return Finding(text, verdict, kept, (min(free, kept), max(free, kept)), RANGE)


CLAIMS = (
    Claim(
        "relu_exact",
        "For ReLU the rescaling keeps the function exactly (in eval mode, at the start)",
        "exact",
        f"relative change of the output below {EXACT:g} in float64, at every depth and initialisation: reproduced",
        _exact,
    ),
    Claim(
        "batchnorm_training",
        "Networks with BatchNorm keep their function too, in train mode as well, where gradients are taken",
        "not told apart",
        f"relative change of the output in train mode, ReLU, default initialisation, below {EXACT:g}; every depth: "
        "reproduced, some: partly",
        _training,
        ours=True,
    ),
    Claim(
        "gelu_error",
        "For GELU the relative change falls with depth, from about 0.1 to 0.001",
        "0.1 at 2 layers to 0.001 at 9",
        "falls at every depth, both ends within a factor 5; all three: reproduced, some: partly",
        _falls,
    ),
    Claim(
        "gelu_error_any_init",
        "GELU's error falls with depth because of the activation",
        "seen at the default initialisation",
        "it falls with He initialisation too: reproduced",
        _he,
        ours=True,
    ),
    Claim(
        "gelu_near_identity",
        "GELU's error is smaller than SiLU's, being nearer to the identity",
        "given as consistent with what is seen",
        "GELU's error is smaller at the default initialisation; at every depth: reproduced, at some: partly",
        _identity,
    ),
    Claim(
        "gelu_clamp",
        "Without a bound on u, MLPs with GELU can give NaN",
        "NaN without |u| <= 5",
        f"NaN seen without the bound, with the activation left out of diag(G) or kept there: reproduced; |u| above "
        f"{BOUND:g}: partly; neither: not",
        _clamp,
    ),
)
