"""Tuned learning rates: which runs count, the best rate, gains of pairs."""

import math

import pandas as pd
import pytest

from paper.experiments import tuned
from paper.experiments.tuned import ACCURACY, EPOCHS, LOSS
from tests.paper.experiments.tables import cell, mlp

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


def rates(column="reached", **methods):
    """Runs of one network by method: values by learning rate, a number or a list over seeds."""
    empty = {"hidden_layers": 3, "compression": NEVER, "reached": NEVER, "best_test_accuracy": NEVER, "epochs": 100,
             "final_train_loss": NEVER, "max_log_scale": 0.0, "diverged": False, "parameters": 1}  # fmt: skip
    rows = [
        {"panel": "run", "network": "n", **empty, "method": method, "lr": lr, "seed": seed, column: value}
        for method, by_rate in methods.items()
        for lr, values in by_rate.items()
        for seed, value in enumerate(values if isinstance(values, list) else [values, values])
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("by_rate", "lr", "at_end"), [
    ({1e-3: 50, 1e-2: 30, 1e-1: 40}, 1e-2, False),
    ({1e-3: 30, 1e-2: 31, 1e-1: 90, 1.0: 31}, 1e-3, True),
    ({1e-3: 40, 1e-2: [20, NEVER], 1e-1: 90}, 1e-3, True),  # every seed must get there
    ({1e-3: [30, 34], 1e-2: [34, 28]}, 1e-2, True),  # by the mean
])  # fmt: skip
def test_best_rate(by_rate, lr, at_end):
    found = tuned.best(rates(pathcond=by_rate), EPOCHS)
    assert (found.lr, found.at_end) == (lr, at_end)


def test_best_rate_is_chosen_over_the_seeds_that_all_rates_have_and_compared_over_all_of_its_own():
    # Over its own five seeds 1e-1 would lose to 1e-2; over the two that both have it wins.
    ours = {1e-2: [30, 32], 1e-1: [29, 31, 50, 50, 50]}
    found = tuned.best(rates(pathcond=ours), EPOCHS)
    assert (found.lr, found.values.tolist()) == (1e-1, [29, 31, 50, 50, 50])
    rows = rates(pathcond=ours, baseline={1e-2: [60, 64], 1e-1: [58, 62, 115]})
    assert tuned.gain(rows, EPOCHS).value == pytest.approx(2.1)  # over three seeds: 2, 2 and 2.3
    # A seed that never gets there rules its rate out, though other rates lack it.
    assert tuned.best(rates(pathcond={1e-2: [30, 32], 1e-1: [29, 31, NEVER]}), EPOCHS).lr == 1e-2


def test_best_rate_of_other_criteria():
    assert tuned.best(rates("best_test_accuracy", pathcond={1e-3: 0.5, 1e-2: 0.58, 1e-1: 0.571}), ACCURACY).lr == 1e-2
    losses = {0.1: 1.24, 1.0: 1.0, 10.0: [0.1, math.inf]}
    assert tuned.best(rates("final_train_loss", pathcond=losses), LOSS).lr == 1.0
    assert tuned.best(rates(pathcond={1e-3: NEVER}), EPOCHS) is None


def test_gain_is_paired_and_takes_rates_of_both():
    rows = rates(baseline={1e-2: [40, 60], 1e-1: [10, 10]}, pathcond={1e-2: [20, 40], 1e-3: [1, 1]})
    found = tuned.gain(rows, EPOCHS)
    assert (found.value, found.low, found.high) == pytest.approx((1.75, 1.75 - 3.177, 1.75 + 3.177), abs=1e-3)
    rows = rates("best_test_accuracy", baseline={1e-2: [0.5, 0.6]}, pathcond={1e-2: [0.51, 0.63]})
    assert tuned.gain(rows, ACCURACY).value == pytest.approx(2.0)
    assert tuned.gain(rates(baseline={1e-2: 9}, pathcond={1e-3: 9}), EPOCHS) is None
