"""Tables of trained experiments against values computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from paper import aggregate
from tests.paper.training.reference import make_spec

NAN = float("nan")
WIDE = {"kind": "mlp", "inputs": 3072, "hidden": [500, 500, 500], "outputs": 10, "activation": "relu"}


def rows(seed, losses, accuracies=None, scale=0.5):
    """A run: test metrics are ten times those of training."""
    found = []
    for epoch, loss in enumerate(losses):
        row = {"seed": seed, "epoch": epoch, "train_loss": loss, "test_loss": 10 * loss}
        if accuracies is not None:
            row |= {"train_accuracy": accuracies[epoch], "test_accuracy": accuracies[epoch] / 10}
        found.append({**row, "max_log_scale": scale, "diverged": not math.isfinite(loss)})
    return found


def tables(runs, **settings):
    table = pd.DataFrame([row for run in runs for row in run])
    return aggregate.trained([(table, {"spec": make_spec(WIDE, "pathcond"), "parameters": 7})], settings)


def panel(made, name):
    found = made[made["panel"] == name]
    return found[[column for column in found if not found[column].isna().all() or column == "reached_mean"]]


FIRST = rows(0, [2.0, 1.0, 0.5, 0.25], [0.1, 0.5, 0.9, 0.95], 0.5)
SECOND = rows(1, [4.0, 2.0, 1.5, 1.75], [0.2, 0.9, 0.85, 0.9], 0.7)
NEVER = rows(2, [3.0, 3.0, 3.0, 3.0], [0.1, 0.1, 0.2, 0.1], 0.6)
BROKEN = rows(3, [3.0, 1.0, NAN, NAN], [0.1, 0.95, 0.1, 0.1], 0.6)


def test_means_and_deviations_over_the_seeds():
    """A seed that never reaches the target is counted, not dropped."""
    (two,), (three,) = (panel(tables(runs, target=0.9), "cell").to_dict("records")
                        for runs in ([FIRST, SECOND], [FIRST, SECOND, NEVER]))  # fmt: skip
    assert (two["n"], two["diverged_n"], two["reached_n"], two["reached_mean"]) == (2, 0, 2, 1.5)
    assert two["reached_sd"] == pytest.approx(math.sqrt(0.5))
    assert two["final_train_loss_mean"] == 1.0
    assert two["final_train_loss_sd"] == pytest.approx(1.5 / math.sqrt(2))
    assert two["final_test_accuracy_mean"] == pytest.approx(0.0925)
    assert (three["n"], three["reached_n"], math.isnan(three["reached_mean"])) == (3, 2, True)
    assert three["final_train_loss_mean"] == pytest.approx(5 / 3)
    curve = panel(tables([FIRST, SECOND], target=0.9), "curve")
    assert list(curve["train_loss_mean"]) == [3.0, 1.5, 1.0, 1.0]
    np.testing.assert_allclose(curve["train_loss_sd"], np.array([2.0, 1.0, 1.0, 1.5]) / math.sqrt(2))


def test_smoothing_is_an_exponential_average_of_each_run():
    smooth = panel(tables([FIRST, SECOND], smoothing=0.2), "curve")
    expected = []
    for losses in ([2.0, 1.0, 0.5, 0.25], [4.0, 2.0, 1.5, 1.75]):
        found = [losses[0]]
        for loss in losses[1:]:
            found.append(0.2 * loss + 0.8 * found[-1])
        expected.append(found)
    np.testing.assert_allclose(smooth["train_loss_mean"], np.mean(expected, 0))
    np.testing.assert_allclose(smooth["train_loss_sd"], np.std(expected, 0, ddof=1))
    np.testing.assert_allclose(smooth["test_loss_mean"], 10 * np.mean(expected, 0))
    # Final and best values of a run are not smoothed.
    assert list(panel(tables([FIRST, SECOND], smoothing=0.2), "run")["final_train_loss"]) == [0.25, 1.75]


def test_a_seed_that_diverged_leaves_no_mean_behind():
    for smoothing in (None, 0.2):
        made = tables([FIRST, BROKEN], target=0.9, smoothing=smoothing)
        curve = panel(made, "curve")
        assert list(curve["n"]) == [2] * 4
        assert curve["train_loss_mean"].isna().tolist() == [False, False, True, True]
        assert curve["test_loss_sd"].isna().tolist() == [False, False, True, True]
        assert not curve["train_accuracy_mean"].isna().any()
    runs = panel(made, "run").set_index("seed")
    assert runs[["diverged", "reached"]].to_numpy().tolist() == [[0, 2], [1, 1]]
    assert math.isnan(runs["final_train_loss"][3])
    assert runs["best_train_loss"][3] == 1.0
    (whole,) = panel(made, "cell").to_dict("records")
    assert whole["diverged_n"] == 1
    assert "final_train_loss_mean" not in whole  # NaN
