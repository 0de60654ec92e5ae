"""Small tables for every claim, each with the verdict it must get; values lie close to where a verdict changes."""

import math
from itertools import product

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, REPRODUCED
from paper.table_1 import TABLE_1

YES, NO, NEVER = REPRODUCED, NOT_REPRODUCED, math.nan


def toy(column, shown, extra=()):
    """Starts with (raw, rescaled) values of a column; two recorded steps a run."""
    rows = []
    for number, (raw, rescaled) in enumerate([*shown, *extra]):
        for run, value in (("raw", raw), ("rescaled", rescaled), ("ideal", 0.0)):
            names = {"start": str(number), "extra": number >= len(shown), "run": run, "seed": 0}
            other = {"reached_1e2": 1.0, "reached_1e4": 1.0, "distance": 1.0}
            rows += [{**names, "step": step, **other, column: value} for step in (0, 10)]
    return pd.DataFrame(rows)


def criteria(minimisers, example="uv", balanced=0.5):
    """Minimisers by criterion, a list over seeds; two points of the curve each."""
    rows = [
        {"example": example, "criterion": name, "seed": seed, "log_scale": x, "value": 1.0,
         "balanced": balanced, "minimiser": balanced + off}
        for name, offs in minimisers.items() for seed, off in enumerate(offs) for x in (-1.0, 1.0)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def regimes(medians, fails=0.0):
    """Medians by variance, a list over falling irregularity (rising alpha)."""
    rows = [
        {"variance": variance, "alpha": 10.0**power, "median": value, "low": value, "high": value, "n": 3,
         "printed_root_fails": fails if power else 0.0}
        for variance, values in medians.items() for power, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def smooth(curves, train=0.0, free=1.0, kept=1.0, kept_error=0.1):
    """Errors by (activation, initialisation), a list over depths."""
    rows = [
        {"activation": activation, "initialisation": initialisation, "hidden_layers": depth, "error_mean": error,
         "train_error_mean": train if depth > 1 else 0.0, "error_sd": 0.0, "max_u_mean": 1.0, "clamped_mean": 0.0,
         "free_u_mean": free, "kept_u_mean": kept, "kept_error_mean": kept_error, "n": 3}
        for (activation, initialisation), errors in curves.items() for depth, error in enumerate(errors, start=1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def architectures(**wrong):
    """Table 1 as printed, but for a column that is off in the networks named."""
    rows = []
    for network, (parameters, units, paths) in TABLE_1.items():
        more = f"{float(paths) * 1.0005:.11e}"  # the same to the printed digits
        row = {"network": network, "parameters": parameters, "units_table": units, "units_free": 1}
        row |= {"paths_paper": more, "paths_all": more}
        for column, networks in wrong.items():
            if network in networks:
                row[column] = row[column] + 1 if isinstance(row[column], int) else f"{float(paths) * 1.02:.11e}"
        rows.append(row)
    return pd.DataFrame(rows)


def bcd(column, sweep, **values):
    """One value by network at a sweep; pools left as they are, and the exact ones, which no claim reads."""
    names = ("normalised", "to_optimum", "update", "printed")
    rows = [
        {"network": network, "pooling": pooling, "sweep": at, "n": 3}
        | {f"{name}_mean": value if (name, at, pooling) == (column, sweep, "plain") else 9.0 for name in names}
        | {f"{name}_sd": 0.01 for name in names}
        for (network, value), pooling, at in product(values.items(), ("plain", "exact"), sorted({0, sweep}))
    ]
    return pd.DataFrame(rows)


def needed(**first):
    """Objectives that fall to 5% at a given sweep of 40, by network; None: not within them."""
    rows = [
        {"network": network, "pooling": "plain", "sweep": k, "normalised_mean": 0.05 if at and k >= at else 0.051}
        for network, at in first.items()
        for k in range(41)
    ]
    return pd.DataFrame(rows)


def timing(shares, steps=None, pooling="plain"):
    """Rescaling time over epoch time by network, or times by step."""
    rows = []
    for network, share in shares.items():
        parts = {"total": 4.0 * share, "epoch": 4.0} if steps is None else dict(steps[network])
        for step, seconds in parts.items():
            names = {"panel": "split", "network": network, "pooling": pooling, "step": step, "hardware": "CPU"}
            rows.append(names | {"seconds_mean": seconds})
    return pd.DataFrame(rows)


def solver(*shares):
    """Networks whose solver takes these shares of the four steps; total and epoch are not steps."""
    rest = {n: (("graph", (1 - s) / 3), ("diag_g", (1 - s) / 3), ("apply", (1 - s) / 3)) for n, s in enumerate(shares)}
    more = (("total", 50.0), ("epoch", 70.0))
    return timing(dict.fromkeys(rest), {n: (*rest[n], ("solve", s), *more) for n, s in enumerate(shares)})


def depths(*seconds):
    """Times at equal steps of the number of parameters, with another step that is no line."""
    rows = [
        {
            "panel": "depth",
            "step": step,
            "parameters": 1e6 * depth,
            "seconds_median": value,
            "hidden_layers": depth,
            "seconds_mean": 1.0 / (1 + depth),
        }
        for depth, value in enumerate(seconds)
        for step, value in (("total", value), ("epoch", (-1.0) ** depth))
    ]
    return pd.DataFrame(rows)


UV = ("theta_norm", "gradient_norm", "hessian_trace", "hessian_norm", "condition")
CHAIN = ("gradient_norm", "hessian_trace", "inverse_norm")
NEAR, OFF = 0.99e-3, -1.01e-3


def coincide(names, example):
    one = dict.fromkeys(names, [NEAR, -NEAR])
    return [
        (YES, criteria(one, example)),
        (PARTLY, criteria({**one, names[-1]: [NEAR, OFF]}, example)),
        (PARTLY, criteria({**dict.fromkeys(names, [OFF]), names[0]: [0.0]}, example)),
        (NO, criteria(dict.fromkeys(names, [OFF, 1.0]), example)),
    ]


def ends(low, high):
    """Both convolutional networks, with the paper's units, at these values."""
    return {"cifar_nv": low, "resnet18_c_held": high}


def both(column, sweep, *pairs):
    """Values of both convolutional networks for each verdict; the MLP's are not read."""
    return [
        (verdict, bcd(column, sweep, mlp=0.2, **ends(*pair)))
        for verdict, pair in zip((YES, PARTLY, NO), pairs, strict=True)
    ]


GELU, SILU, HE, RELU = ("gelu", "default"), ("silu", "default"), ("gelu", "he"), ("relu", "default")
CASES: dict[str, list[tuple[str, pd.DataFrame]]] = {
    "toy_faster": [
        (YES, toy("reached_1e2", [(50, 49), (NEVER, 9)], extra=[(1, 2)])),
        (PARTLY, toy("reached_1e2", [(50, 49), (50, 50)])),
        (NO, toy("reached_1e2", [(50, 50), (9, NEVER), (NEVER, NEVER)], extra=[(2, 1)])),
    ],
    "toy_closer": [
        (YES, toy("distance", [(0.2, 0.1), (0.3, 0.29)], extra=[(1, 2)])),
        (PARTLY, toy("distance", [(0.2, 0.1), (0.3, 0.3)])),
        (NO, toy("distance", [(0.1, 0.2), (0.3, 0.3)])),
    ],
    "toy_any_start": [
        (YES, toy("reached_1e4", [(5, 4), (NEVER, 4)], extra=[(5, 4)])),
        (PARTLY, toy("reached_1e4", [(5, 4), (5, 4)], extra=[(4, 5)])),
        (NO, toy("reached_1e4", [(4, 5)], extra=[(4, 5)])),
    ],
    "criteria_uv": coincide(UV, "uv"),
    "criteria_chain": coincide(CHAIN, "chain3"),
    "criteria_pathcond": [case for case in coincide(("pathcond",), "uv") if len(case[1]) > 2],
    "criteria_any_norm": [
        (YES, criteria({"weighted_theta": [-0.3, 0.2], "weighted_gradient": [-0.3 + NEAR, 0.2]})),
        (PARTLY, criteria({"weighted_theta": [-0.3, 0.2], "weighted_gradient": [-0.3, 0.2 + OFF]})),
        (NO, criteria({"weighted_theta": [-0.35, -0.35], "weighted_gradient": [0.35, 0.35]})),
    ],
    "regimes_irregular_widths": [
        (YES, regimes({0.1: [5, 4, 3, 2, 1], 0.01: [5, 3, 4, 2, 1]})),  # the second: rank correlation -0.9
        (PARTLY, regimes({0.1: [5, 4, 3, 2, 1], 0.01: [3, 5, 4, 2, 1]})),  # -0.7
        (NO, regimes({0.1: [1, 2, 3, 4, 5], 0.01: [3, 5, 4, 2, 1]})),
    ],
    "regimes_small_variance": [
        (YES, regimes({0.1: [1, 2], 0.001: [3, 4], 0.01: [2, 3]})),
        (PARTLY, regimes({0.1: [1, 3], 0.001: [3, 4], 0.01: [2, 3]})),
        (NO, regimes({0.1: [3, 3], 0.001: [3, 4], 0.01: [2, 3]})),
    ],
    "regimes_printed_root": [
        (YES, regimes({0.1: [1, 2], 0.01: [2, 3]})),
        (PARTLY, pd.concat([regimes({0.1: [1, 2]}), regimes({0.01: [2, 3]}, fails=0.1)])),
        (NO, regimes({0.1: [1, 2], 0.01: [2, 3]}, fails=0.1)),
    ],
    "relu_exact": [
        (YES, smooth({RELU: [1e-15, 0.99e-10], ("relu", "he"): [0.0, 0.0], GELU: [0.1, 0.1]})),
        (NO, smooth({RELU: [1e-15, 1.01e-10]})),
        (NO, smooth({RELU: [1e-15, 1e-15], ("relu", "he"): [1e-15, math.nan]})),
    ],
    "batchnorm_training": [
        (YES, smooth({RELU: [0.0, 0.0]}, train=0.99e-10)),
        (PARTLY, smooth({RELU: [0.0, 0.0]}, train=1.01e-10)),
        (NO, smooth({RELU: [0.0, 0.0]}, train=1.6).query("hidden_layers > 1")),
    ],
    "gelu_error": [
        (YES, smooth({GELU: [0.49, 0.1, 0.0049], HE: [0.1, 0.2, 0.3]})),
        (PARTLY, smooth({GELU: [0.51, 0.1, 0.0049]})),
        (PARTLY, smooth({GELU: [0.1, 0.2, 0.001]})),
        (PARTLY, smooth({GELU: [0.1, 0.05, 0.00019]})),
        (NO, smooth({GELU: [0.019, 0.02, 0.0]})),
    ],
    "gelu_error_any_init": [
        (YES, smooth({HE: [0.2, 0.3, 0.19], GELU: [0.1, 0.2, 0.3]})),
        (NO, smooth({HE: [0.2, 0.1, 0.2], GELU: [0.3, 0.2, 0.1]})),
    ],
    "gelu_near_identity": [
        (YES, smooth({GELU: [0.1, 0.2], SILU: [0.11, 0.21]})),
        (PARTLY, smooth({GELU: [0.1, 0.2], SILU: [0.11, 0.2]})),
        (NO, smooth({GELU: [0.1, 0.2], SILU: [0.1, 0.1]})),
    ],
    "gelu_clamp": [
        (YES, smooth({GELU: [0.1, 0.1], HE: [0.1, 0.1]}, kept_error=math.nan)),
        (YES, smooth({GELU: [0.1, 0.1]}, free=math.nan)),
        (PARTLY, smooth({GELU: [0.1, 0.1]}, free=4.9, kept=5.1)),
        (PARTLY, smooth({GELU: [0.1, 0.1]}, free=5.1)),
        (NO, smooth({GELU: [0.1, 0.1]}, free=4.9, kept=4.8)),
    ],
    **{
        claim: [
            (YES, architectures(units_free=["mlp"])),
            (PARTLY, architectures(**{column: ["mlp", "vgg16"]})),
            (NO, architectures(**{column: TABLE_1})),
        ]
        for claim, column in (
            ("table1_parameters", "parameters"),
            ("table1_units", "units_table"),
            ("table1_paths", "paths_paper"),
            ("table1_paths_exact", "paths_all"),
        )
    },
    "bcd_mlp_five": [
        *((YES, bcd("normalised", 5, mlp=left)) for left in (0.149, 0.051)),
        *((PARTLY, bcd("normalised", 5, mlp=left)) for left in (0.199, 0.151, 0.049)),
        (NO, bcd("normalised", 5, mlp=0.201)),
    ],
    "bcd_conv_ten": both("normalised", 10, (0.61, 0.84), (0.59, 0.84), (0.59, 0.86)),
    "bcd_conv_ten_remaining": both("normalised", 10, (0.16, 0.39), (0.14, 0.39), (0.14, 0.41)),
    "bcd_conv_needed": [
        (YES, needed(mlp=3, **ends(20, 35))),
        (PARTLY, needed(**ends(19, 35))),
        (NO, needed(**ends(36, None))),
    ],
    "bcd_mlp_update": [
        (YES, bcd("update", 20, mlp=0.0099)),
        *((PARTLY, bcd("update", 20, mlp=value)) for value in (0.01, 0.0299)),
        (NO, bcd("update", 20, mlp=0.03)),
    ],
    "bcd_conv_update": both("update", 20, (0.031, 0.29), (0.029, 0.29), (0.029, 0.31)),
    "bcd_converged_in_ten": [
        (YES, bcd("to_optimum", 10, mlp=0.1, **ends(0.0, 0.05))),
        (PARTLY, bcd("to_optimum", 10, mlp=0.1, **ends(0.0, 0.11))),
        (NO, bcd("to_optimum", 10, mlp=0.11, **ends(0.4, 0.2))),
    ],
    "bcd_printed_scale": [
        (YES, bcd("printed", 0, mlp=0.99, **ends(0.0, 0.5))),
        (PARTLY, bcd("printed", 0, mlp=1.0, **ends(0.0, 0.5))),
        (NO, bcd("printed", 0, mlp=1.01, **ends(3.0, 5.0))),
    ],
    "timing_one_epoch": [
        (YES, pd.concat([timing({"mlp": 1.09, "conv": 0.01}), timing({"mlp": 9.0}, pooling="exact")])),
        (PARTLY, timing({"mlp": 1.11, "conv": 0.01})),
        (NO, timing({"mlp": 1.11, "conv": 2.0})),
    ],
    "timing_range": [
        (YES, timing({"mlp": 1.03 * 1.49, "conv": 0.22 * 1.49, "net": 0.5})),
        (YES, timing({"mlp": 1.03 / 1.49, "conv": 0.22 / 1.49})),
        (PARTLY, timing({"mlp": 1.03 * 1.51, "conv": 0.22})),
        (PARTLY, timing({"mlp": 1.03, "conv": 0.22 / 1.51})),
        (NO, timing({"mlp": 1.03 / 1.51, "conv": 0.22 * 1.51})),
    ],
    "timing_half_epoch": [
        (YES, timing({"mlp": 1.09, "conv": 0.41})),
        (PARTLY, timing({"mlp": 1.09, "conv": 0.39})),
        (NO, timing({"mlp": 1.11, "conv": 0.39})),
    ],
    "timing_solver_share": [
        (YES, solver(0.96, 0.951)),
        (PARTLY, solver(0.99, 0.949)),
        (PARTLY, solver(0.99, 0.501)),
        (NO, solver(0.99, 0.499)),
    ],
    "timing_linear": [
        (YES, depths(1.0, 2.0, 3.0)),
        (YES, depths(1.0, 2.2, 2.6, 4.0)),  # R^2 is 0.97
        (PARTLY, depths(1.0, 2.0, 2.0, 4.0)),  # 0.85
        (NO, depths(4.0, 2.0, 2.0, 1.0)),
        (NO, depths(3.0, 2.0, 1.0)),
        (NO, depths(1.0, 3.0, 2.0, 4.0)),  # 0.64
        (NO, depths(1.0, 1.0, 1.0)),
    ],
}
