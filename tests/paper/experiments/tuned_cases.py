"""Small tables for the claims of `conditioning` and `tuned`, each with the verdict it must get."""

import math

import pandas as pd

from paper.verdicts import NO, PARTLY, UNDECIDED, YES

NEVER = math.nan


def kernels(falls, kernel="ntk", speedups=None, scales=None, growth=None):
    """MLPs by depth: condition numbers before over after, a list over seeds; and other values of the networks."""
    rows = []
    for number, (depth, values) in enumerate(falls.items()):
        names = {"network": f"mlp_{depth}", "initialisation": "default", "kernel": kernel, "hidden_layers": depth}
        more = {
            "compression": math.nan,
            "speedup": math.nan if speedups is None else speedups[number],
            "bound": False,
            "max_log_scale": 1.0 if scales is None else scales[number],
            "mean_before": 1.0,
            "mean_after": 1.0 if growth is None else growth[number],
        }
        for seed, value in enumerate(values):
            spectrum = {"condition_before": 10.0 * value, "condition_after": 10.0, "low_before": 5.0, "low_after": 5.0}
            rows.append({**names, "seed": seed, **spectrum, **more})
    return pd.DataFrame(rows)


def paths(*falls):
    """Small networks, one fall each."""
    return kernels({number: [fall] for number, fall in enumerate(falls, start=1)}, "path")


def predicted(value, speedups):
    """Seven networks whose `value` grows from one to the next."""
    rising = [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    falls = {depth: [fall if value == "fall" else 1.0] * 2 for depth, fall in enumerate(rising, start=2)}
    more = {} if value == "fall" else {value: rising}
    # The kernel in eval mode is not read where there is one in train mode.
    other = kernels({depth: [1 / fall[0]] * 2 for depth, fall in falls.items()}, speedups=speedups)
    return pd.concat([kernels(falls, "ntk_batch", speedups, **more), other], ignore_index=True)


def ranks(value):
    return [
        (YES, predicted(value, [1, 2, 3, 4, 5, 6, 7])),
        (PARTLY, predicted(value, [1, 2, 4, 3, 6, 5, 7])),
        (UNDECIDED, predicted(value, [4, 7, 1, 5, 2, 6, 3])),
        (NO, predicted(value, [7, 6, 5, 4, 3, 2, 1])),
    ]


def rates(networks, column="reached", key="hidden_layers", epochs=100):
    """Runs by network and method: values by learning rate, a number or a list over seeds."""
    rows = []
    for network, methods in networks.items():
        for method, by_rate in methods.items():
            for lr, values in by_rate.items():
                for seed, value in enumerate(values if isinstance(values, list) else [values, values]):
                    names = {"panel": "run", "network": f"n{network}", "method": method}
                    empty = {"hidden_layers": math.nan, "compression": math.nan, "reached": math.nan, "diverged": False}
                    more = {"best_test_accuracy": math.nan, "final_train_loss": math.nan, "max_log_scale": 0.0}
                    run = {key: network, "lr": lr, "seed": seed, "epochs": epochs, "parameters": 1}
                    rows.append({**names, **empty, **more, **run, column: value})
    return pd.DataFrame(rows)


def depths(*ratios, other="baseline", **options):
    """By depth: PathCond needs 30 epochs at 1e-2, the other method these times as many at 1e-1; worse elsewhere."""
    networks = {}
    for depth, ratio in enumerate(ratios, start=2):
        values = [30.0 * one for one in ratio] if isinstance(ratio, list) else 30.0 * ratio
        networks[depth] = {"pathcond": {1e-2: 30.0, 1e-1: 60.0}, other: {1e-2: NEVER, 1e-1: values}}
    return rates(networks, **options)


def accuracies(*points):
    """By depth: how many points PathCond has more, at another rate than the baseline."""
    networks = {}
    for depth, more in enumerate(points, start=2):
        ours = [0.5 + one / 100 for one in (more if isinstance(more, list) else [more, more])]
        networks[depth] = {"baseline": {1e-2: 0.3, 1e-1: 0.5}, "pathcond": {1e-2: ours, 1e-1: 0.2}}
    return rates(networks, "best_test_accuracy")


def spans(*pairs):
    """By depth: how many of four rates are good with the baseline, and with PathCond."""
    lrs = (1e-3, 1e-2, 1e-1, 1.0)
    ways = {}
    for depth, pair in enumerate(pairs, start=2):
        ways[depth] = {
            method: {lr: 30.0 if number == 0 else 37.4 if number < good else 37.6 for number, lr in enumerate(lrs)}
            for method, good in zip(("baseline", "pathcond"), pair, strict=True)
        }
    return rates(ways)


def coders(*ratios):
    """By compression: final losses, baseline over PathCond, each at its own best rate."""
    ways = {}
    for factor, ratio in zip((1, 2, 4, 7), ratios, strict=False):
        values = ratio if isinstance(ratio, list) else [ratio, ratio]
        ways[factor] = {"baseline": {0.1: values, 1.0: [math.inf, 0.1]}, "pathcond": {0.1: 2.0, 1.0: 1.0}}
    return rates(ways, "final_train_loss", "compression")


TUNED: dict[str, list[tuple[str, pd.DataFrame]]] = {
    "conditioning_path": [
        (YES, paths(*[2.0] * 9, 0.9)),
        (NO, paths(0.5, 0.6, 0.5, 0.6)),
        (UNDECIDED, paths(2.0, 0.5, 2.0, 0.6)),
    ],
    **{
        claim: [
            (YES, kernels({2: [1.5, 1.51, 1.49], 3: [1.12, 1.121, 1.119]}, kernel)),
            (PARTLY, kernels({2: [1.5, 1.51, 1.49], 3: [0.9, 0.91, 0.89]}, kernel)),
            (NO, kernels({2: [0.9, 0.905, 0.895], 3: [0.8, 0.81, 0.79]}, kernel)),
            (UNDECIDED, kernels({2: [0.9, 0.905, 0.895], 3: [1.1, 1.2, 0.9]}, kernel)),
        ]
        for claim, kernel in (("conditioning_ntk", "ntk"), ("conditioning_ntk_batch", "ntk_batch"))
    },
    "conditioning_predicts": ranks("fall"),
    "conditioning_step": [
        (YES, kernels({2: [1.5, 1.5], 3: [1.0, 1.0]}, "ntk_batch", growth=[1.51, 1.01])),
        (PARTLY, kernels({2: [1.5, 1.5], 3: [1.0, 1.0]}, "ntk_batch", growth=[1.51, 0.99])),
        (NO, kernels({2: [1.5, 1.5], 3: [1.0, 1.0]}, "ntk_batch", growth=[1.49, 0.99])),
        (UNDECIDED, kernels({2: [1.5, 1.5], 3: [1.0, 2.0]}, growth=[1.49, 2.0])),
    ],
    "conditioning_scales": ranks("scales"),
    "tuned_epochs": [
        (YES, depths([1.2, 1.201], [1.05, 1.051])),
        (PARTLY, depths([1.2, 1.201], [1.3, 1.0])),
        (NO, depths(0.99, 0.9)),
        (UNDECIDED, depths(0.99, [2.0, 0.9])),
    ],
    "tuned_enorm": [
        (YES, depths([1.2, 1.201], other="enorm")),
        (PARTLY, depths(1.2, [1.3, 1.0], other="enorm")),
        (NO, depths(0.99, other="enorm")),
        (UNDECIDED, depths([1.3, 1.0], other="enorm")),
    ],
    "tuned_accuracy": [
        (YES, accuracies(-0.49, 1.0)),
        (PARTLY, accuracies(-0.51, -0.49)),
        (NO, accuracies(-0.51, -0.6)),
        (UNDECIDED, accuracies(-0.51, [3.0, 0.0])),
    ],
    "tuned_range": [
        (YES, spans((1, 2), (1, 2), (2, 3))),
        (NO, spans((2, 1), (3, 2), (4, 3))),
        (UNDECIDED, spans((1, 2), (2, 2), (2, 1))),
    ],
    "tuned_autoencoders": [
        (YES, coders(1.05, [1.1, 1.101])),
        (PARTLY, coders(1.05, [1.0, 1.3])),
        (NO, coders(0.99, 0.98)),
        (UNDECIDED, coders(0.99, [1.0, 1.3])),
    ],
}
