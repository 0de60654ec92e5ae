"""Practice and unequal: rates chosen on validation images, gains by seed, bounds at the ends of the rates."""

import math

import pandas as pd
import pytest

from paper.experiments import practice

RATES = (0.01, 0.1, 1.0)


def runs(validation: dict, accuracy: dict, seeds: int = 3) -> pd.DataFrame:
    """One row per method, rate and seed; seed s adds s to each accuracy, so paired differences have no spread."""
    rows = [
        {
            "network": "net", "epochs": 2, "sigma": 0.0, "method": method, "lr": lr, "seed": seed,
            "validation": validation[method][number], "accuracy": accuracy[method][number] + seed,
            "diverged": False, "max_log_scale": 0.0,
        }
        for method in validation
        for number, lr in enumerate(RATES)
        for seed in range(seeds)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_rates_are_chosen_on_validation_images_not_on_test_images():
    accuracy = {"baseline": (90, 50, 10), "half": (80, 53, 99)}
    found = practice.best(runs({"baseline": (1, 5, 2), "half": (1, 2, 0)}, accuracy))
    assert found["lr"].tolist() == [0.1, 0.1]
    estimate = practice.gain(next(found.query("method == 'half'").itertuples()))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3.0, 3.0, 3.0))
    assert estimate.note == ""


@pytest.mark.parametrize(
    ("baseline", "half", "low", "high"),
    [
        ((5, 1, 1), (1, 5, 1), -math.inf, 1.0),
        ((1, 5, 1), (1, 1, 5), 1.0, math.inf),
        ((1, 1, 5), (5, 1, 1), -math.inf, math.inf),
    ],
)
def test_a_rate_at_an_end_bounds_the_gain_from_one_side(baseline, half, low, high):
    accuracy = {"baseline": (1, 1, 1), "half": (2, 2, 2)}
    found = practice.best(runs({"baseline": baseline, "half": half}, accuracy))
    estimate = practice.gain(next(found.query("method == 'half'").itertuples()))
    assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))
    assert "at the edge of the grid" in estimate.note


def test_rates_with_more_seeds_than_others_are_compared_over_the_shared_seeds():
    table = runs({"baseline": (1, 5, 2), "half": (1, 5, 2)}, {"baseline": (1, 1, 1), "half": (1, 1, 1)})
    table.loc[(table["lr"] == 0.01) & (table["seed"] == 2), "validation"] = 1000.0
    fewer = table[(table["lr"] != 0.1) | (table["seed"] < 2)]
    assert set(practice.best(fewer)["lr"]) == {0.1}
