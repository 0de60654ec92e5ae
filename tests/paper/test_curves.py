"""Tables of trained experiments against values computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from paper import aggregate
from tests.paper.training.reference import CONV, make_spec

NAN = float("nan")
NAMES = ["network", "hidden_layers", "compression", "parameters", "method", "lr", "epochs"]
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


def table(*runs):
    return pd.DataFrame([row for run in runs for row in run])


def tables(runs, spec=None, parameters=7, **settings):
    return aggregate.trained(
        [(table(*runs), {"spec": spec or make_spec(WIDE, "pathcond"), "parameters": parameters})], settings
    )


def panel(made, name):
    found = made[made["panel"] == name]
    return found[[column for column in found if not found[column].isna().all() or column == "reached_mean"]]


FIRST = rows(0, [2.0, 1.0, 0.5, 0.25], [0.1, 0.5, 0.9, 0.95], 0.5)
SECOND = rows(1, [4.0, 2.0, 1.5, 1.75], [0.2, 0.9, 0.85, 0.9], 0.7)
NEVER = rows(2, [3.0, 3.0, 3.0, 3.0], [0.1, 0.1, 0.2, 0.1], 0.6)
BROKEN = rows(3, [3.0, 1.0, NAN, NAN], [0.1, 0.95, 0.1, 0.1], 0.6)


def test_what_each_run_came_to():
    runs = panel(tables([FIRST, SECOND, NEVER], target=0.9), "run").set_index("seed")
    assert list(runs.index) == [0, 1, 2]
    assert list(runs["reached"][:2]) == [2, 1]  # the first epoch at the target or above it, though it falls again
    assert math.isnan(runs["reached"][2])
    assert list(runs["final_train_loss"]) == [0.25, 1.75, 3.0]
    assert list(runs["best_train_loss"]) == [0.25, 1.5, 3.0]
    assert list(runs["final_train_accuracy"]) == [0.95, 0.9, 0.1]
    assert list(runs["best_train_accuracy"]) == [0.95, 0.9, 0.2]
    assert list(runs["best_test_loss"]) == [2.5, 15.0, 30.0]
    assert list(runs["best_test_accuracy"]) == [0.095, 0.09, 0.02]
    assert list(runs["max_log_scale"]) == [0.5, 0.7, 0.6]
    assert list(runs["diverged"]) == [0, 0, 0]


def test_means_over_the_seeds():
    (made,) = panel(tables([FIRST, SECOND], target=0.9), "cell").to_dict("records")
    assert made["n"] == 2
    assert made["diverged_n"] == 0
    assert made["reached_n"] == 2
    assert made["reached_mean"] == 1.5
    assert made["reached_sd"] == pytest.approx(math.sqrt(0.5))
    assert made["final_train_loss_mean"] == 1.0
    assert made["final_train_loss_sd"] == pytest.approx(1.5 / math.sqrt(2))
    assert made["best_train_loss_mean"] == 0.875
    assert made["final_test_accuracy_mean"] == pytest.approx(0.0925)
    assert made["max_log_scale_mean"] == pytest.approx(0.6)


def test_a_seed_that_never_gets_there_is_counted_and_not_dropped():
    (made,) = panel(tables([FIRST, SECOND, NEVER], target=0.9), "cell").to_dict("records")
    assert made["n"] == 3
    assert made["reached_n"] == 2
    assert math.isnan(made["reached_mean"])
    assert made["final_train_loss_mean"] == pytest.approx(5 / 3)


def test_curves_are_means_at_each_epoch():
    made = panel(tables([FIRST, SECOND], target=0.9), "curve")
    assert list(made["epoch"]) == [0, 1, 2, 3]
    assert list(made["n"]) == [2] * 4
    assert list(made["train_loss_mean"]) == [3.0, 1.5, 1.0, 1.0]
    np.testing.assert_allclose(made["train_loss_sd"], np.array([2.0, 1.0, 1.0, 1.5]) / math.sqrt(2))
    np.testing.assert_allclose(made["train_accuracy_mean"], [0.15, 0.7, 0.875, 0.925])
    np.testing.assert_allclose(made["test_loss_mean"], [30, 15, 10, 10])


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


@pytest.mark.parametrize("smoothing", [None, 0.2])
def test_a_seed_that_diverged_leaves_no_mean_behind(smoothing):
    settings = {"target": 0.9} | ({} if smoothing is None else {"smoothing": smoothing})
    made = tables([FIRST, BROKEN], **settings)
    curve = panel(made, "curve")
    assert list(curve["n"]) == [2] * 4
    assert curve["train_loss_mean"].isna().tolist() == [False, False, True, True]
    assert curve["test_loss_sd"].isna().tolist() == [False, False, True, True]
    assert not curve["train_accuracy_mean"].isna().any()
    runs = panel(made, "run").set_index("seed")
    assert list(runs["diverged"]) == [0, 1]
    assert list(runs["reached"]) == [2, 1]
    assert math.isnan(runs["final_train_loss"][3])
    assert runs["best_train_loss"][3] == 1.0
    (whole,) = panel(made, "cell").to_dict("records")
    assert whole["diverged_n"] == 1
    assert "final_train_loss_mean" not in whole  # NaN


def test_the_network_whose_curves_are_drawn_is_marked():
    assert tables([FIRST], shown=3)["shown"].all()
    assert not tables([FIRST], shown=2)["shown"].any()
    assert not tables([FIRST])["shown"].any()
    assert not tables([FIRST], make_spec(CONV))["shown"].any()


def test_items_without_accuracy_or_target_have_no_reached():
    assert "reached" not in tables([rows(0, [1.0, 0.5])], target=0.9)
    assert "reached" not in tables([FIRST])


def test_controls_take_the_target_of_their_networks():
    settings = {"mlp": {"target": 0.9}, "autoencoder": {}}
    auto = make_spec({"kind": "autoencoder", "inputs": 784, "compression": 4})
    pairs = [(table(FIRST), make_spec(WIDE)), (table(rows(0, [1.0, 0.5])), auto)]
    made = aggregate.trained([(one, {"spec": spec, "parameters": 7}) for one, spec in pairs], settings)
    assert panel(made, "run")["reached"].tolist()[0] == 2
    assert list(made["network"].unique()) == ["mlp", "autoencoder"]
