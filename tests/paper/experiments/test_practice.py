"""Practice and unequal: rates chosen on validation images, gains by seed, bounds at the ends of the rates."""

import math

import numpy as np
import pandas as pd
import pytest

import pathcond
from paper import models
from paper.experiments import practice
from paper.verdicts import Estimate

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


@pytest.mark.parametrize(("baseline", "half", "low", "high"), [
    ((5, 1, 1), (1, 5, 1), -math.inf, 1.0),
    ((1, 5, 1), (1, 1, 5), 1.0, math.inf),
    ((1, 1, 5), (5, 1, 1), -math.inf, math.inf),
])  # fmt: skip
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


def best_row(network: str, epochs: int, method: str, gain: float, high: float) -> dict:
    return {"panel": "best", "network": network, "epochs": epochs, "method": method, "gain": gain, "high": high}


def test_a_candidate_harms_a_network_if_its_whole_interval_is_a_loss():
    rows = [best_row(network, 2, "baseline", 0.0, 0.0) for network in ("vgg11_bn", "resnet18")]
    rows += [best_row("vgg11_bn", 2, "half", 3.0, 4.0), best_row("resnet18", 2, "half", -2.0, -0.5)]
    rows += [best_row("vgg11_bn", 2, "full", 4.0, 5.0), best_row("resnet18", 2, "full", -3.0, 0.1)]
    found = {row["name"]: row for row in practice.candidates(pd.DataFrame(rows))}
    assert found["half of ten sweeps"]["harmed"] == ["ResNet-18 (2 epochs)"]
    assert found["half of ten sweeps"]["gain"] == pytest.approx(0.5)
    chains = found["half of ten sweeps, on networks without shortcuts alone"]
    assert (chains["harmed"], chains["gain"]) == ([], pytest.approx(1.5))
    without = found["all of ten sweeps, without the bound"]  # that of `full`, where no scale meets the bound
    assert (without["harmed"], without["gain"]) == ([], pytest.approx(0.5))
    assert (found["no rescaling"]["gain"], found["no rescaling"]["count"]) == (0.0, 2)


def test_networks_without_shortcuts_are_those_that_the_library_rescales_by_default():
    for network in practice.NETWORKS:
        name = network.removesuffix("_bn")
        gpt = {"vocabulary": 9, "context": 8, "width": 6, "layers": 1, "heads": 3} if name == "gpt" else {}
        model = {"kind": name, "image": 32, **gpt}
        chain = pathcond.extract_graph(models.build(model), models.example_input(model)).chain
        assert chain == (network in practice.CHAINS)


def test_differences_of_independent_means_cover_the_truth():
    """Seeds of two budgets are not paired, and not as many."""
    random, hits = np.random.default_rng(1), []
    for _ in range(2000):
        first, second = Estimate.of(random.normal(3, 1, 5)), Estimate.of(random.normal(1, 2, 3))
        found = first.less(second)
        hits += [found.low <= 2.0 <= found.high]
    assert 0.93 < np.mean(hits) < 0.98
