"""Small tables for every claim, each with the answer it must get; values lie close to where an answer changes.

Where one value stands for all seeds, intervals have no width; lists over seeds make them wide.
"""

import math
from itertools import product

import pandas as pd

from paper.experiments.architectures import TABLE_1
from paper.verdicts import NO, NOT_COMPARABLE, PARTLY, UNDECIDED, YES
from tests.paper.experiments.tuned_cases import TUNED

NEVER = math.nan


def toy(column, shown, extra=()):
    """Starts with (raw, rescaled) values of a column; two recorded steps per run."""
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


def regimes(medians, fails=0.0, ratios=None, deviation=0.0):
    """Medians by variance, a list over falling irregularity (rising alpha); ratios to the next larger variance."""
    rows = [
        {"variance": variance, "alpha": 10.0**power, "median": value, "low": value, "high": value, "n": 3,
         "ratio": (ratios or {}).get(variance, [math.nan] * 12)[power], "ratio_sd": deviation,
         "printed_root_fails": fails if power else 0.0}
        for variance, values in medians.items() for power, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


FALLING = list(range(12, 0, -1))
SWAPPED = [8, 11, 12, 9, 10, 7, 4, 6, 5, 1, 3, 2]  # falls on the whole: rank correlation -0.9


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


def bcd(column, sweep, deviation=0.0, **values):
    """One value by network at a sweep; pools left as they are, and the exact ones, which no claim reads."""
    names = ("normalised", "to_optimum", "update", "printed")
    rows = [
        {"network": network, "pooling": pooling, "sweep": at, "n": 4}
        | {f"{name}_mean": value if (name, at, pooling) == (column, sweep, "plain") else 9.0 for name in names}
        | {f"{name}_sd": deviation for name in names}
        for (network, value), pooling, at in product(values.items(), ("plain", "exact"), sorted({0, sweep}))
    ]
    return pd.DataFrame(rows)


def needed(deviation=0.0, **first):
    """Objectives that fall to 5% at a given sweep of 40, by network; None: not within them."""
    rows = [
        {"network": network, "pooling": "plain", "sweep": k, "normalised_mean": 0.05 if at and k >= at else 0.051,
         "normalised_sd": deviation, "n": 4}
        for network, at in first.items()
        for k in range(41)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def timing(shares, steps=None, pooling="plain", deviation=0.0):
    """Rescaling time over epoch time by network, or times by step."""
    rows = []
    for network, share in shares.items():
        parts = {"total": 4.0 * share, "epoch": 4.0} if steps is None else dict(steps[network])
        for step, seconds in parts.items():
            names = {"panel": "split", "network": network, "pooling": pooling, "step": step, "hardware": "CPU"}
            rows.append(names | {"seconds_mean": seconds, "seconds_sd": deviation, "n": 4})
    return pd.DataFrame(rows)


def solver(*shares):
    """Networks whose solver takes these shares of the four steps; total and epoch are not steps."""
    rest = {n: (("graph", (1 - s) / 3), ("diag_g", (1 - s) / 3), ("apply", (1 - s) / 3)) for n, s in enumerate(shares)}
    more = (("total", 50.0), ("epoch", 70.0))
    return timing(dict.fromkeys(rest), {n: (*rest[n], ("solve", s), *more) for n, s in enumerate(shares)})


def depths(*seconds, deviation=0.0):
    """Times at equal steps of the number of parameters, with another step that is no line."""
    rows = [
        {
            "panel": "depth",
            "step": step,
            "parameters": 1e6 * depth,
            "seconds_median": value,
            "seconds_sd": deviation,
            "n": 4,
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
        (NO, criteria(dict.fromkeys(names, [OFF, 1.0]), example)),
    ]


def ends(low, high):
    """Both convolutional networks, with the paper's units, at these values."""
    return {"cifar_nv": low, "resnet18_c_held": high}


def both_networks(column, sweep, *pairs):
    """Values of both convolutional networks for each answer; the MLP's are not read."""
    return [
        *((answer, bcd(column, sweep, mlp=0.2, **ends(*pair)))
          for answer, pair in zip((YES, PARTLY, NO), pairs, strict=True)),
        (UNDECIDED, bcd(column, sweep, 9.0, mlp=0.2, **ends(*pairs[0]))),
    ]  # fmt: skip


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
        (NO, criteria({"weighted_theta": [-0.3, 0.2], "weighted_gradient": [-0.3 + NEAR, 0.2]})),
        (PARTLY, criteria({"weighted_theta": [-0.3, 0.2], "weighted_gradient": [-0.3, 0.2 + OFF]})),
        (YES, criteria({"weighted_theta": [-0.35, -0.35], "weighted_gradient": [0.35, 0.35]})),
    ],
    "regimes_irregular_widths": [
        (YES, regimes({0.1: FALLING, 0.01: FALLING})),
        (PARTLY, regimes({0.1: FALLING, 0.01: SWAPPED})),
        (NO, regimes({0.1: FALLING[::-1], 0.01: FALLING[::-1]})),
        (UNDECIDED, regimes({0.1: SWAPPED})),
    ],
    "regimes_small_variance": [
        (YES, regimes({0.1: [1, 2], 0.01: [2, 3]}, ratios={0.01: [1.01, 2.0]})),
        (PARTLY, regimes({0.1: [1, 2], 0.01: [2, 3]}, ratios={0.01: [0.99, 2.0]})),
        (NO, regimes({0.1: [1, 2], 0.01: [2, 3]}, ratios={0.01: [0.99, 0.9]})),
        (UNDECIDED, regimes({0.1: [1, 2], 0.01: [2, 3]}, ratios={0.01: [1.01, 1.01]}, deviation=0.1)),
    ],
    "regimes_printed_root": [
        (NO, regimes({0.1: [1, 2], 0.01: [2, 3]})),
        (YES, pd.concat([regimes({0.1: [1, 2]}), regimes({0.01: [2, 3]}, fails=0.1)])),
    ],
    "relu_exact": [
        (YES, smooth({RELU: [1e-15, 0.99e-10], ("relu", "he"): [0.0, 0.0], GELU: [0.1, 0.1]})),
        (NO, smooth({RELU: [1e-15, 1.01e-10]})),
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
        )
    },
    "table1_paths_exact": [(NO, architectures()), (YES, architectures(paths_all=["vgg16"]))],
    "bcd_mlp_five": [
        (YES, bcd("normalised", 5, mlp=0.149)),
        (PARTLY, bcd("normalised", 5, mlp=0.151)),
        (NO, bcd("normalised", 5, mlp=0.201)),
        (UNDECIDED, bcd("normalised", 5, 0.1, mlp=0.15)),
    ],
    "bcd_conv_ten": both_networks("normalised", 10, (0.66, 0.84), (0.64, 0.84), (0.64, 0.86)),
    "bcd_conv_ten_remaining": both_networks("normalised", 10, (0.16, 0.34), (0.14, 0.34), (0.14, 0.36)),
    "bcd_conv_needed": [
        (YES, needed(mlp=3, **ends(20, 35))),
        (PARTLY, needed(**ends(19, 35))),
        (NO, needed(**ends(36, None))),
        (UNDECIDED, needed(deviation=0.01, **ends(30, 30))),
    ],
    "bcd_mlp_update": [
        (YES, bcd("update", 20, mlp=0.0099)),
        (PARTLY, bcd("update", 20, mlp=0.0101)),
        (NO, bcd("update", 20, mlp=0.0301)),
        (UNDECIDED, bcd("update", 20, 0.01, mlp=0.02)),
    ],
    "bcd_conv_update": both_networks("update", 20, (0.031, 0.29), (0.029, 0.29), (0.029, 0.31)),
    "bcd_converged_in_ten": [
        (YES, bcd("to_optimum", 10, mlp=0.1, **ends(0.0, 0.05))),
        (PARTLY, bcd("to_optimum", 10, mlp=0.1, **ends(0.0, 0.11))),
        (NO, bcd("to_optimum", 10, mlp=0.11, **ends(0.4, 0.2))),
        (UNDECIDED, bcd("to_optimum", 10, 0.1, mlp=0.11)),
    ],
    "bcd_printed_scale": [
        (NO, bcd("printed", 0, mlp=0.99, **ends(0.0, 0.5))),
        (PARTLY, bcd("printed", 0, mlp=1.01, **ends(0.0, 0.5))),
        (YES, bcd("printed", 0, mlp=1.01, **ends(3.0, 5.0))),
        (UNDECIDED, bcd("printed", 0, 1.0, mlp=1.1)),
    ],
    "timing_one_epoch": [
        (YES, pd.concat([timing({"mlp": 1.09, "conv": 0.01}), timing({"mlp": 9.0}, pooling="exact")])),
        (PARTLY, timing({"mlp": 1.11, "conv": 0.01})),
        (NO, timing({"mlp": 1.11, "conv": 2.0})),
        (UNDECIDED, timing({"mlp": 1.05}, deviation=1.0)),
    ],
    "timing_range": [(NOT_COMPARABLE, timing({"mlp": 1.03, "conv": 0.22}))],
    "timing_half_epoch": [(NOT_COMPARABLE, timing({"mlp": 1.03, "conv": 0.5}))],
    "timing_solver_share": [(NOT_COMPARABLE, solver(0.96, 0.951))],
    "timing_linear": [
        (YES, depths(1.0, 2.2, 2.6, 4.0)),  # R^2 is 0.97
        (PARTLY, depths(1.0, 2.0, 2.0, 4.0)),  # 0.85
        (NO, depths(3.0, 2.0, 1.0)),
        (NO, depths(1.0, 3.0, 2.0, 4.0)),  # 0.64
        (UNDECIDED, depths(1.0, 2.2, 2.6, 4.0, deviation=1.0)),
    ],
}


def theory(z=(), printed=(), name="", case="other", kind="edge"):
    """z by layer, or which layers the printed formula is off in."""
    off = [*printed] or [False] * len(z)
    rows = [
        {"case": case, "kind": kind, "layer": layer, "printed_name": name, "printed_off": wrong, "z": value,
         "printed_z": 77.0 * wrong}
        for layer, (wrong, value) in enumerate(zip(off, [*z] or [0.5] * len(off), strict=True))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def printed(name):
    """Layers where a printed formula is off."""
    return [(NO, theory(printed=[False] * 4, name=name)), (YES, theory(printed=[False, False, True, True], name=name))]


def unit_gain(*z, slope=0.25):
    """Equal widths of 4 at a = 1: z by layer of the weights, with a formula that rises by `slope` a layer."""
    rows = theory(z, case="constant")
    return rows.assign(a=1.0, formula=1 + slope * rows["layer"], units=4 * (len(z) - 1))


def even(*found):
    """Spread of diag(G) and largest |u| by network."""
    return pd.DataFrame(found, columns=["even_spread", "even_u"])


CASES |= {
    "theory_with_biases": [
        (YES, pd.concat([theory([3.9, -3.9], case="varying"), theory([9.0], case="by_layer")])),
        (PARTLY, theory([3.9, -4.1], case="constant")),
        (NO, theory([3.9, -4.1, 4.1], case="constant")),
    ],
    "theory_no_biases": printed("without_biases"),
    "theory_general": printed("expected_ak"),
    "theory_small_variance": printed("small_variance"),
    "theory_small_variance_widths": printed("small_variance_widths"),
    "theory_large_variance_widths": printed("large_variance_widths"),
    "theory_unit_gain": [
        (YES, unit_gain(3.9, -3.9, 0.0)),
        (PARTLY, unit_gain(3.9, -4.1, 0.0)),
        (NO, unit_gain(4.1, -4.1, 0.0)),
        (NO, unit_gain(0.0, 0.0, 0.0, slope=0.251)),
    ],
    "theory_general_biases": [
        (YES, pd.concat([theory([3.9], case="by_layer", kind="bias"), theory([9.0], case="by_layer")])),
        (PARTLY, theory([3.9, 4.1], case="by_layer", kind="bias")),
        (NO, theory([4.1], case="by_layer", kind="bias")),
    ],
    "constant_diagonal": [
        (YES, even((2e-16, 0.9e-9), (1.0, 0.3))),
        (NO, even((0.0, 0.0), (1e-12, 1.1e-9), (1.0, 0.0))),
    ],
}


LIMIT = 100
RUN = {"panel": "run", "network": "net", "hidden_layers": math.nan, "compression": math.nan, "parameters": 1}


def by_seed(value):
    """One value for two seeds, or a list over seeds."""
    return enumerate(value if isinstance(value, list) else [value, value])


def accuracies(method, seed, gain=0.0):
    """Test accuracies; `gain` is PathCond's, in points."""
    accuracy = 0.5 + 0.01 * seed + 0.01 * gain * (method == "pathcond")
    return {"best_test_accuracy": accuracy, "final_test_accuracy": accuracy}


def generalising(*gains):
    """MLPs with gains of test accuracy by depth, each one number or a list over seeds."""
    rows = speed(dict.fromkeys(range(2, 2 + len(gains)), 1.5))
    return pd.concat(
        [
            part.assign(**{name: values[name] for name in values})
            for (method, seed, depth), part in rows.groupby(["method", "seed", "hidden_layers"])
            for gain in [gains[int(depth) - 2]]
            for values in [accuracies(method, seed, gain[int(seed)] if isinstance(gain, list) else gain)]
        ]
    )


def mlp(method, depth, reached, lr=1e-3, accuracy=0.9):
    """Runs of one network and method with these epochs to the target, one per seed."""
    size = 2_044_010 + 251_000 * (depth - 3)
    cell = {"network": f"mlp_{depth}x500", "hidden_layers": depth, "parameters": size, "method": method, "lr": lr}
    rows = [
        {**RUN, **cell, "epochs": LIMIT, "seed": seed, "reached": value, "final_train_accuracy": accuracy,
         "max_log_scale": depth / 2 + seed + (method == "optimum"), **accuracies(method, seed)}
        for seed, value in by_seed(reached)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def mlps(*cells):
    """Runs of MLPs, each given as (method, depth, epochs to the target, ...)."""
    return pd.concat([mlp(*cell) for cell in cells], ignore_index=True)


def speed(ratios, lr=1e-3, fast="pathcond", slow="baseline"):
    """Ratios of epochs by depth; seeds differ."""
    cells = [(fast, depth, [40.0, 50.0], lr) for depth in ratios]
    return mlps(*cells, *((slow, depth, [40.0 * ratio, 50.0 * ratio], lr) for depth, ratio in ratios.items()))


def speeds(ratios):
    """Ratios of epochs by depth and learning rate."""
    cells = [(depth, lr, ratio) for depth, found in ratios.items() for lr, ratio in found.items()]
    return pd.concat([speed({depth: ratio}, lr) for depth, lr, ratio in cells], ignore_index=True)


def conv(early=20, lr=1e-3, epochs=128, top=0.9, learnt=(1.0, 1.0), **best):
    """CIFAR-NV: accuracies that rise evenly to 0.9, PathCond's `early` epochs before the end; best test accuracies.

    The baseline learns 0.1 less of the training images than the other methods, which learn `learnt`, by seed.
    """
    names = {"network": "cifar_nv", "lr": lr, "epochs": epochs}
    curves = [
        {"panel": "seed", **names, "method": method, "seed": seed, "epoch": epoch, "train_accuracy": accuracy,
         "test_accuracy": accuracy}
        for seed, saved in by_seed(early)
        for method, end, most in (("baseline", epochs, 0.9), ("pathcond", epochs - saved, top))
        for epoch, accuracy in ((k, min(most, 0.9 * k / end)) for k in range(epochs + 1))
    ]  # fmt: skip
    tests = {"baseline": 77.0, "pathcond": 80.0, **best}
    ends = [
        {**RUN, **names, "method": method, "seed": seed, "best_test_accuracy": value / 100,
         "best_train_accuracy": learnt[seed] - 0.1 * (method == "baseline")}
        for method, percent in tests.items()
        for seed, value in by_seed(percent)
    ]  # fmt: skip
    return pd.DataFrame([*curves, *ends])


def conv_lrs(early, **best):
    """CIFAR-NV at several learning rates: epochs of 100 saved."""
    return pd.concat([conv(value, lr, 100, **best) for lr, value in early.items()], ignore_index=True)


def coder(losses, lr=1e-3, scale=None):
    """Autoencoders: final losses by method and compression; PathCond's largest log-rescaling by compression."""
    rows = [
        {**RUN, "network": f"autoencoder_c{factor}", "compression": factor, "method": method, "lr": lr, "seed": seed,
         "epochs": 500, "final_train_loss": loss, "max_log_scale": (scale or {}).get(factor, 1.0)}
        for method, found in losses.items() for factor, value in found.items() for seed, loss in by_seed(value)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def loss(ratios, enorm=None, **other):
    """Losses of the baseline (and ENorm) over PathCond's, by compression."""
    others = {"baseline": ratios, **({} if enorm is None else {"enorm": enorm})}
    return coder({"pathcond": dict.fromkeys(ratios, 2.0), **scaled(others)}, **other)


def scaled(others):
    return {name: {factor: 2.0 * ratio for factor, ratio in found.items()} for name, found in others.items()}


def scales(*by_lr):
    """Largest log-rescaling by compression, a dictionary a learning rate."""
    parts = [coder({"pathcond": dict.fromkeys(found, 1.0)}, 10.0**-n, found) for n, found in enumerate(by_lr, start=1)]
    return pd.concat(parts, ignore_index=True)


def tuned(epochs):
    """Epochs by depth, method and learning rate."""
    cells = [
        (method, depth, value, lr)
        for depth, found in epochs.items()
        for method, by_lr in found.items()
        for lr, value in by_lr.items()
    ]
    return mlps(*cells)


def rescaled(largest):
    """PathCond's largest log-rescaling by depth; the baseline has none."""
    rows = mlps(*((method, depth, 50.0) for depth in largest for method in ("pathcond", "baseline")))
    scale = rows["hidden_layers"].map(largest)
    return rows.assign(max_log_scale=scale.where(rows["method"] == "pathcond", 0.0))


def parts(baseline=80.0, pathcond=40.0, depth=3, **other):
    """Epochs by method at lr 1e-3, and others at another rate."""
    found = {"baseline": baseline, "pathcond": pathcond, **other}
    return mlps(*((name, depth, value, lr) for (name, value), lr in product(found.items(), (1e-3, 1e-2))))


def special(rows, end):
    """The same runs of networks whose names end so."""
    return rows.assign(network=rows["network"] + end)


def both(first, second):
    return pd.concat([first, second], ignore_index=True)


CASES |= {
    "mlp_speedup": [
        (YES, speed({2: 1.2, 3: 1.36})),
        (YES, mlps(("baseline", 3, NEVER), ("pathcond", 3, 70.0), ("baseline", 2, NEVER), ("pathcond", 2, NEVER))),
        (YES, both(speed({3: 1.5}), speed({3: 2.0}, lr=1e-2))),
        (PARTLY, speed({2: 1.0, 3: 1.34})),
        (NO, speed({2: 1.0, 3: 1.09})),
        (UNDECIDED, mlps(("baseline", 3, [40.0, 80.0]), ("pathcond", 3, 40.0))),
    ],
    "mlp_speedup_earliest": [
        (YES, speed({3: 1.6})),
        (PARTLY, speed({3: 1.7})),
        (NO, speed({2: 1.5, 3: 1.05})),
    ],
    "mlp_strongest_at_3": [
        (YES, speed({2: 1.4, 3: 1.5, 4: 1.49})),
        (YES, both(speed({2: 1.4}), mlps(("baseline", 3, NEVER), ("pathcond", 3, 60.0)))),
        (PARTLY, speed({2: 1.57, 3: 1.5, 4: 1.4})),
        (PARTLY, both(speed({3: 1.5, 4: 1.1}), mlps(("baseline", 2, NEVER), ("pathcond", 2, 90.0)))),
        (UNDECIDED, both(speed({2: 1.9}), mlps(("baseline", 3, NEVER), ("pathcond", 3, 90.0)))),
        (UNDECIDED, both(speed({3: 1.5}), mlps(("baseline", 4, [60.0, 50.0]), ("pathcond", 4, 40.0)))),
        (NO, speed({2: 1.59, 3: 1.5})),
    ],
    "mlp_deeper": [
        (YES, speed({2: 0.9, 3: 1.5, 4: 1.49, 8: 1.01})),
        (PARTLY, speed({3: 1.5, 4: 1.51, 5: 1.2})),
        (PARTLY, both(speed({3: 1.5, 5: 1.2}), mlps(("pathcond", 4, 40.0), ("baseline", 4, [42.0, 60.0])))),
        (UNDECIDED, both(speed({3: 1.5}), mlps(("pathcond", 4, 90.0), ("baseline", 4, [99.0, NEVER])))),
        (NO, speed({3: 1.5, 4: 1.51, 5: 0.99})),
    ],
    "mlp_deep_rescaling": [
        (YES, rescaled({2: 3.0, 3: 2.0, 4: 1.0})),
        (PARTLY, rescaled({2: 3.0, 3: 1.0, 4: 2.0})),
        (NO, rescaled({2: 1.0, 3: 2.0, 4: 3.0})),
        (UNDECIDED, rescaled({2: 1.0, 3: 2.0, 4: 3.0}).assign(
            max_log_scale=lambda rows: rows["hidden_layers"] * (-1.0) ** rows["seed"])),
    ],
    "mlp_parameters": [
        (YES, mlps(("baseline", 8, 40.0), ("pathcond", 5, 41.9), ("pathcond", 8, 1.0))),
        (YES, mlps(("baseline", 8, [NEVER, NEVER]), ("pathcond", 5, 80.0))),
        (PARTLY, mlps(("baseline", 8, 40.0), ("pathcond", 5, 42.2))),
        (NO, mlps(("baseline", 8, 40.0), ("pathcond", 5, 48.3), ("baseline", 5, 99.0))),
        (UNDECIDED, mlps(("baseline", 8, [40.0, 80.0]), ("pathcond", 5, 50.0))),
    ],
    "mlp_enorm": [
        (YES, speed({2: 0.8, 3: 1.049}, fast="enorm")),
        (PARTLY, speed({2: 1.051, 3: 1.0}, fast="enorm")),
        (NO, speed({2: 1.5, 3: 1.051}, fast="enorm")),
        (UNDECIDED, mlps(("baseline", 3, [40.0, 44.0]), ("enorm", 3, 40.0))),
    ],
    "mlp_generalisation": [
        (YES, generalising(-0.9, 0.0)),
        (NO, generalising(-1.1, 0.0)),
        (UNDECIDED, generalising([-1.0, 0.0])),
    ],
    "mlp_lrs_shrinks": [
        (YES, speeds({3: {5e-4: 1.5, 1e-3: 1.6, 1e-2: 1.1, 1e-1: 1.0}})),  # rank correlation -0.8
        (PARTLY, speeds({3: {1e-3: 1.5, 1e-2: 1.1}, 4: {1e-3: 1.1, 1e-2: 1.2}})),
        (YES, both(speeds({3: {1e-3: 1.5, 1e-2: 1.1}, 4: {1e-2: 1.2}}),
                   mlps(("baseline", 4, NEVER), ("pathcond", 4, 90.0)))),  # at least 1.11: not decided
        (NO, speeds({3: {1e-3: 1.1, 1e-2: 1.5}})),
        (UNDECIDED, mlps(("pathcond", 3, 40.0), ("baseline", 3, [60.0, 50.0]), ("pathcond", 3, 40.0, 1e-2),
                         ("baseline", 3, [50.0, 60.0], 1e-2))),
    ],
    "mlp_lrs_never_hurts": [
        (YES, speeds({3: {1e-3: 0.98, 1e-2: 1.5, 1e-1: 0.5}})),
        (YES, mlps(("baseline", 3, NEVER, 1e-3, 0.904), ("pathcond", 3, NEVER, 1e-3, 0.9))),
        (PARTLY, both(speed(dict.fromkeys(range(2, 11), 1.0)), speed({11: 0.96}))),
        (NO, both(speed(dict.fromkeys(range(2, 10), 1.0)), speed({10: 0.96, 11: 0.9}))),
        (NO, mlps(("baseline", 3, NEVER, 1e-3, 0.906), ("pathcond", 3, NEVER, 1e-3, 0.9))),
        (NO, mlps(("baseline", 3, 90.0), ("pathcond", 3, NEVER))),
        (UNDECIDED, mlps(("baseline", 3, 99.0), ("pathcond", 3, [90.0, NEVER]))),
    ],
    "mlp_lrs_never": [
        (YES, speeds({3: {1e-3: 0.98, 1e-1: 1.5}})),
        (NO, both(speed(dict.fromkeys(range(2, 11), 1.0)), speed({11: 0.96}, lr=1e-1))),
        (UNDECIDED, mlps(("baseline", 3, 99.0, 1e-1), ("pathcond", 3, [90.0, NEVER], 1e-1))),
    ],
    "mlp_lrs_large": [
        (YES, speeds({3: {1e-3: 1.5, 1e-1: 0.5}, 4: {1e-1: 1.09}})),
        (PARTLY, speeds({3: {1e-1: 1.0}, 4: {1e-1: 1.11}})),
        (NO, speeds({3: {1e-3: 1.0, 1e-1: 1.2}})),
        (UNDECIDED, mlps(("baseline", 3, [40.0, 44.0], 1e-1), ("pathcond", 3, 40.0, 1e-1))),
    ],
    "mlp_gelu_speedup": [
        (YES, speed({2: 1.06, 3: 1.9})),
        (PARTLY, speed({2: 1.04, 3: 1.9})),
        (NO, speed({2: 1.04, 3: 0.9})),
        (UNDECIDED, mlps(("baseline", 3, [40.0, 44.0]), ("pathcond", 3, 40.0))),
    ],
    "cifar_earlier": [
        (YES, conv(10)),
        *((PARTLY, conv(early)) for early in (9, 31)),
        (NO, conv(-1)),
        (UNDECIDED, conv([30, 10])),
        (NO, conv(20, top=0.89)),
    ],
    "cifar_best_test": [
        (YES, conv(baseline=75.6, pathcond=78.6)),
        (PARTLY, conv(baseline=85.0, pathcond=86.1)),
        (NO, conv(baseline=85.0, pathcond=85.9)),
        (UNDECIDED, conv(baseline=[85.0, 87.0], pathcond=[86.1, 86.1])),
    ],
    "cifar_generalisation": [
        (YES, conv(baseline=77.0, pathcond=76.6)),
        (PARTLY, conv(baseline=77.0, pathcond=76.4)),
        (NO, conv(baseline=77.0, pathcond=75.4)),
        (UNDECIDED, conv(baseline=77.0, pathcond=[76.0, 78.0])),
    ],
    "cifar_enorm": [
        (YES, conv(enorm=76.6)),
        (PARTLY, conv(enorm=78.4)),
        (NO, conv(enorm=75.4)),
        (UNDECIDED, conv(enorm=[76.8, 77.2])),
    ],
    "cifar_all_classes": [
        (YES, conv()),
        (PARTLY, conv(learnt=(1.0, 0.9005))),
        (PARTLY, conv(learnt=(math.nan, 1.0))),
        (NO, conv(learnt=(0.9005, 1.0, 0.9), baseline=[77.0] * 3, pathcond=[80.0] * 3)),
    ],
    "cifar_lrs_shrinks": [
        (YES, conv_lrs({1e-4: 6, 1e-3: 30, 1e-2: 4})),
        (PARTLY, conv_lrs({1e-4: 20, 1e-3: 4, 1e-2: 5})),
        (NO, conv_lrs({1e-4: 4, 1e-2: 6})),
        (UNDECIDED, conv_lrs({1e-4: [4, 8], 1e-2: [4, 8]})),
    ],
    "cifar_lrs_small": [
        (YES, conv_lrs({1e-4: 1, 1e-3: 1, 1e-2: -9}, baseline=77.0, pathcond=77.1)),
        (PARTLY, conv_lrs({1e-4: 1, 1e-3: 1, 1e-2: 0}, baseline=77.0, pathcond=76.9)),
        (NO, conv_lrs({1e-4: -1, 1e-3: -1, 1e-2: 9}, baseline=77.0, pathcond=76.9)),
        (UNDECIDED, conv_lrs({1e-3: [-1, 3]}, baseline=77.0, pathcond=[76.9, 77.9])),
    ],
    "tuned_cifar_nv": [
        (YES, both(conv(lr=1e-3, baseline=70.0, pathcond=80.0), conv(lr=1e-2, baseline=79.4, pathcond=79.0))),
        (NO, both(conv(lr=1e-3, baseline=70.0, pathcond=80.0), conv(lr=1e-2, baseline=79.6, pathcond=79.0))),
        (UNDECIDED, both(conv(lr=1e-3, baseline=70.0, pathcond=80.0), conv(lr=1e-2, baseline=[78.0, 80.0]))),
    ],
    "autoencoder_loss": [
        (YES, loss({1: 1.002, 7: 1.3}, enorm={1: 1.002, 7: 2.0})),
        (YES, loss({1: 1.002, 7: 1.3})),
        (YES, loss({1: math.inf, 7: 1.3})),
        (PARTLY, loss({1: 1.0009, 7: 1.3})),
        (PARTLY, loss({1: 1.1, 7: 1.3}, enorm={1: 0.9, 7: 1.2})),
        (PARTLY, coder({"baseline": {1: 1.0, 7: 1.0}, "pathcond": {1: 0.5, 7: math.nan}})),
        (NO, loss({1: 1.0, 7: 0.9})),
        (UNDECIDED, coder({"baseline": {1: [1.0, 1.2]}, "pathcond": {1: 1.0}})),
    ],
    "autoencoder_compression": [
        (YES, loss({1: 0.9, 2: 1.0, 4: 1.1, 7: 1.2})),
        (NO, loss({1: 1.2, 2: 1.1, 4: 1.0})),
        (UNDECIDED, coder({"baseline": {1: [1.0, 1.2], 4: [1.2, 1.1]}, "pathcond": {1: 1.0, 4: 1.0}})),
    ],
    "autoencoder_rescaling": [
        (YES, loss({1: 1.0, 2: 1.0, 4: 1.0}, scale={1: 0.1, 2: 0.2, 4: 0.21})),
        (PARTLY, loss({1: 1.0, 2: 1.0, 4: 1.0}, scale={1: 0.1, 2: 0.3, 4: 0.2})),
        (NO, loss({1: 1.0, 2: 1.0, 4: 1.0}, scale={1: 0.3, 2: 0.2, 4: 0.1})),
        (UNDECIDED, loss({1: 1.0, 2: 1.0}).assign(
            max_log_scale=lambda rows: rows["compression"] * (-1.0) ** rows["seed"])),
    ],
    "autoencoder_lrs_rescaling": [
        (YES, scales({1: 0.1, 7: 0.2}, {1: 0.1, 7: 0.2})),
        (PARTLY, scales({1: 0.1, 7: 0.2}, {1: 0.2, 7: 0.1})),
        (NO, scales({1: 0.2, 7: 0.1})),
        (UNDECIDED, scales({1: 0.1, 7: 0.2}).assign(
            max_log_scale=lambda rows: rows["compression"] * (-1.0) ** rows["seed"])),
    ],
    "autoencoder_lrs_loss": [
        (YES, both(loss({1: 1.002, 7: 1.3}), loss({1: 1.002, 7: 1.3}, lr=0.1))),
        (PARTLY, both(loss({1: 1.002, 7: 1.3}), loss({1: 1.0, 7: 1.3}, lr=0.1))),
        (NO, both(loss({1: 1.0, 7: 0.9}), loss({7: 1.0}, lr=0.1))),
        (UNDECIDED, coder({"baseline": {1: [1.0, 1.2]}, "pathcond": {1: 1.0}})),
    ],
    "controls_rows": [
        (YES, parts(rows=47.9, columns=79.0)),
        (YES, parts(baseline=NEVER, rows=51.9, columns=NEVER)),
        (PARTLY, both(parts(rows=48.1), parts(rows=40.0, depth=6))),
        (NO, parts(rows=60.1)),
        (NO, parts(rows=[NEVER, NEVER])),
        (UNDECIDED, parts(rows=[40.0, 60.0])),
        (YES, parts(baseline=NEVER, rows=30.0)),  # at least one
        (PARTLY, parts(baseline=NEVER, rows=64.1)),
    ],
    "controls_exact": [
        (YES, parts(exact=80 / 1.049)),
        (YES, parts(exact=NEVER)),
        (YES, mlps(("baseline", 3, NEVER, 1e-3, 0.9), ("exact", 3, NEVER, 1e-3, 0.904))),
        (PARTLY, both(parts(exact=80 / 1.051), parts(exact=90.0, depth=6))),
        (NO, parts(exact=80 / 1.051)),
        (NO, parts(baseline=NEVER, exact=90.0)),
        (NO, mlps(("baseline", 3, NEVER, 1e-3, 0.9), ("exact", 3, NEVER, 1e-3, 0.906))),
        (UNDECIDED, parts(exact=[76.0, 84.0])),
        (UNDECIDED, parts(baseline=NEVER, exact=99.0)),
    ],
    "controls_optimum": [
        (YES, parts(optimum=40 / 1.049)),
        (PARTLY, both(parts(optimum=40.0), parts(optimum=30.0, depth=6))),
        (NO, parts(optimum=40 / 1.051)),
        (UNDECIDED, parts(optimum=[39.0, 41.0])),
    ],
    "controls_layer_lrs": [
        (YES, parts(layer_lrs=41.9)),
        (PARTLY, both(parts(layer_lrs=40.0), parts(layer_lrs=60.0, depth=6))),
        (NO, parts(layer_lrs=42.1)),
        (UNDECIDED, parts(layer_lrs=[40.0, 44.0])),
    ],
    "controls_no_batchnorm": [
        (YES, special(parts(baseline=42.1), "_no_bn")),
        (PARTLY, special(both(parts(), parts(baseline=40.0, depth=6)), "_no_bn")),
        (NO, both(special(parts(baseline=41.9), "_no_bn"), parts())),
        (UNDECIDED, special(parts(baseline=[40.0, 44.0]), "_no_bn")),
    ],
    "controls_no_batchnorm_layer_lrs": [
        (YES, special(parts(layer_lrs=41.9), "_no_bn")),
        (PARTLY, special(both(parts(layer_lrs=40.0), parts(layer_lrs=60.0, depth=6)), "_no_bn")),
        (NO, both(special(parts(layer_lrs=42.1), "_no_bn"), parts(layer_lrs=40.0))),
        (UNDECIDED, special(parts(layer_lrs=[40.0, 44.0]), "_no_bn")),
    ],
    "controls_silu": [
        (YES, special(parts(baseline=NEVER), "_silu")),
        (PARTLY, special(both(parts(), parts(baseline=40.0, depth=6)), "_silu")),
        (NO, both(special(parts(baseline=41.9), "_silu"), parts())),
        (UNDECIDED, special(parts(baseline=[40.0, 44.0]), "_silu")),
        # The end of a bound's interval decides.
        (YES, special(parts(baseline=NEVER, pathcond=[50.0, 51.0]), "_silu")),
        (UNDECIDED, special(parts(baseline=NEVER, pathcond=[80.0, 90.0]), "_silu")),
        (NO, special(parts(baseline=[50.0, 51.0], pathcond=NEVER), "_silu")),
        (UNDECIDED, special(parts(baseline=[80.0, 90.0], pathcond=NEVER), "_silu")),
    ],
    **TUNED,
}  # fmt: skip
CASES |= {
    claim: [(verdict, table.assign(variant=variant)) for verdict, table in CASES[like]]
    for claim, variant, like in (
        ("cifar_all_best", "authors", "cifar_best_test"),
        ("cifar_all_earlier", "authors", "cifar_earlier"),
        ("cifar_all_learnt", "authors", "cifar_all_classes"),
        ("cifar_all_starts", "other_starts", "cifar_best_test"),
    )
}
CASES["cifar_all_precision"] = [
    (verdict, both(conv().assign(variant="other_starts"), conv(**tf32).assign(variant="tf32")))
    for verdict, tf32 in (
        (YES, {"baseline": 78.4, "pathcond": 81.4}),
        (NO, {"baseline": 78.6, "pathcond": 81.6}),
        (UNDECIDED, {"baseline": 78.4, "pathcond": 81.6}),
    )
]
