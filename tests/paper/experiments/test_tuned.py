"""Tuned learning rates: which runs count, the best rate, the range of good rates, gains of pairs; the denser grid."""

import math

import pandas as pd
import pytest

from paper import config
from paper import plan as plans
from paper.experiments import tuned
from paper.experiments.tuned import ACCURACY, EPOCHS, LOSS
from tests.paper.experiments.tables import ROOT
from tests.paper.experiments.trained_tables import cell, mlp

NEVER = math.nan
TARGET = {"cifar_nv_more": None, "mlp": {"target": 0.95}}  # a preset may leave a block out


def test_longest_runs_count():
    given = [
        cell(mlp(2), "baseline", 1e-3, epochs=20),
        cell(mlp(2), "baseline", 1e-3, epochs=40),  # the same run, longer
        cell(mlp(2), "baseline", 1e-2),
        cell(mlp(2), "pathcond", 1e-2),
        cell(mlp(2), "pathcond", 3e-2, seeds=(0, 1)),  # a rate has seeds of its own
    ]
    table = tuned.table(given, TARGET)
    found = table.groupby(["network", "method", "lr"])["epochs"].agg(["max", "size"]).to_dict("index")
    assert found == {
        ("mlp_2x8", "baseline", 1e-3): {"max": 40, "size": 3},
        ("mlp_2x8", "baseline", 1e-2): {"max": 40, "size": 3},
        ("mlp_2x8", "pathcond", 1e-2): {"max": 40, "size": 3},
        ("mlp_2x8", "pathcond", 3e-2): {"max": 40, "size": 2},
    }
    assert not table.duplicated(["network", "method", "lr", "seed"]).any()


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


def runs_of(by_rate, column="reached"):
    return rates({3: {"pathcond": by_rate}}, column)


@pytest.mark.parametrize(
    ("by_rate", "lr", "low", "high", "at_end"),
    [
        ({1e-3: 50, 1e-2: 30, 1e-1: 40}, 1e-2, 1e-2, 1e-2, False),
        ({1e-3: 37.4, 1e-2: 30, 1e-1: 37.6}, 1e-2, 1e-3, 1e-2, False),
        ({1e-3: 30, 1e-2: 31, 1e-1: 90, 1.0: 31}, 1e-3, 1e-3, 1e-2, True),  # a gap ends the range
        ({1e-3: 40, 1e-2: [20, NEVER], 1e-1: 90}, 1e-3, 1e-3, 1e-3, True),  # every seed must get there
        ({1e-3: [30, 34], 1e-2: [34, 28]}, 1e-2, 1e-3, 1e-2, True),  # by the mean
    ],
)
def test_best_rate_and_range(by_rate, lr, low, high, at_end):
    found = tuned.best(runs_of(by_rate), EPOCHS)
    assert (found.lr, found.low, found.high, found.at_end) == (lr, low, high, at_end)


def test_best_rate_is_chosen_over_the_seeds_that_all_rates_have_and_compared_over_all_of_its_own():
    # Over its own five seeds 1e-1 would lose to 1e-2; over the two that both have it wins.
    ours = {1e-2: [30, 32], 1e-1: [29, 31, 50, 50, 50]}
    found = tuned.best(runs_of(ours), EPOCHS)
    assert (found.lr, found.values.tolist()) == (1e-1, [29, 31, 50, 50, 50])
    rows = rates({3: {"pathcond": ours, "baseline": {1e-2: [60, 64], 1e-1: [58, 62, 115]}}})
    assert tuned.gain(rows, EPOCHS).value == pytest.approx(2.1)  # over three seeds: 2, 2 and 2.3
    # A seed that never gets there rules its rate out, though other rates lack it.
    assert tuned.best(runs_of({1e-2: [30, 32], 1e-1: [29, 31, NEVER]}), EPOCHS).lr == 1e-2


def test_best_rate_of_other_criteria():
    found = tuned.best(runs_of({1e-3: 0.5, 1e-2: 0.58, 1e-1: 0.571}, "best_test_accuracy"), ACCURACY)
    assert (found.lr, found.low, found.high) == (1e-2, 1e-2, 1e-1)
    found = tuned.best(runs_of({0.1: 1.24, 1.0: 1.0, 10.0: [0.1, math.inf]}, "final_train_loss"), LOSS)
    assert (found.lr, found.low, found.high) == (1.0, 0.1, 1.0)
    assert tuned.best(runs_of({1e-3: NEVER}), EPOCHS) is None


def test_gain_is_paired_and_takes_rates_of_both():
    rows = rates({3: {"baseline": {1e-2: [40, 60], 1e-1: [10, 10]}, "pathcond": {1e-2: [20, 40], 1e-3: [1, 1]}}})
    found = tuned.gain(rows, EPOCHS)
    assert (found.value, found.low, found.high) == pytest.approx((1.75, 1.75 - 3.177, 1.75 + 3.177), abs=1e-3)
    rows = rates({3: {"baseline": {1e-2: [0.5, 0.6]}, "pathcond": {1e-2: [0.51, 0.63]}}}, "best_test_accuracy")
    assert tuned.gain(rows, ACCURACY).value == pytest.approx(2.0)
    assert tuned.gain(rates({3: {"baseline": {1e-2: 9}, "pathcond": {1e-3: 9}}}), EPOCHS) is None


def test_only_runs_of_other_experiments_in_small_presets():
    """The table reads what other experiments train, so that it costs nothing."""
    for preset in ("preview", "tiny"):
        others = ("mlp_depth_lrs", "controls", "autoencoder_lrs", "cifar_nv_lrs")
        plan = plans.plan(config.read(ROOT, preset))
        known = {key for other in others for key in plan.asked[other]}
        assert plan.asked["tuned"]
        assert set(plan.asked["tuned"]) <= known
