"""`practice`: which methods run, the best learning rate, paired gains, and the rule that chooses the default."""

import math

import pandas as pd
import pytest
from pydantic import ValidationError
from scipy import stats

from paper.cli import PaperError
from paper.config import check_specs
from paper.experiments import practice
from paper.runs import training_specs
from paper.settings import TrainingGrid
from tests.paper.experiments.practice_cases import MODELS, practised, same
from tests.paper.experiments.tables import blocks, settings


def test_methods_without_a_meaning_are_not_run():
    assert practice.run_as("exclude", MODELS["mlp"]) is None
    assert practice.run_as("exclude", {**MODELS["vgg"], "batchnorm": False}) is None
    assert practice.run_as("running", MODELS["mlp"]) == "full"
    assert practice.run_as("running", MODELS["vit"]) == "running"
    assert practice.run_as("smooth_paths", MODELS["vgg"]) == "full"
    grids = {grid["network"]: grid for grid in practice.all_grids(settings("practice", "paper"))}
    assert grids["mlp3"]["methods"] == ["baseline", "full", "half", "free", "per_layer"]
    assert {"exclude", "running", "per_part"} < set(grids["resnet18"]["methods"])
    assert [name for name, grid in grids.items() if "every_epoch" in grid["methods"]] == ["vgg11_bn", "vit_tiny"]
    assert grids["gpt"]["dataset"] == "kjv"
    assert grids["gpt"]["augmentation"] is None
    assert {grid["dataset"] for name, grid in grids.items() if name != "gpt"} == {"cifar10"}
    assert len({tuple(grid["seeds"]) for grid in grids.values()}) == 1
    held = [name for name, net in blocks("paper")["practice"]["networks"].items() if net.get("held_out")]
    assert len(held) >= 3


def test_the_best_rate_and_the_gain_of_each():
    table = practised({"full": same(1.0), "running": {"vgg": -2.0, "vit": 0.0}}, spread=0.2)
    found = table[table["panel"] == "best"].set_index(["network", "method"])
    assert (found["lr"] == 0.1).all()
    assert found.loc[("vgg", "full"), "gain"] == pytest.approx(1.0)
    assert found.loc[("vgg", "running"), "gain"] == pytest.approx(-2.0)
    assert found.loc[("mlp", "running"), "gain"] == pytest.approx(1.0), "the same as the default, which is run"
    half = stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3)  # of its own three seeds
    assert found.loc[("vgg", "full"), "high"] == pytest.approx(1.0 + half)
    assert (found["lrs_near"] == 1).all()
    assert not found["at_edge"].any()
    assert found.loc[("vgg", "baseline"), "high"] == 0


def test_the_rule():
    gains = {"full": same(0.2), "free": same(2.0, mlp=-1.0), "half": same(0.4)}
    assert practice.choose(practised(gains))[0] == "half", "free harms a network"
    assert practice.choose(practised({**gains, "free": same(2.0, vit=-1.0)}))[0] == "free", "held out"
    teleported = {**gains, "every_epoch": same(9.0)}
    assert practice.choose(practised(teleported))[0] == "half", "no candidate: it rescales during training"
    harmful = {"full": same(-1.0), "half": same(-2.0)}
    assert practice.choose(practised(harmful))[0] == "half", "none passes: the one that changes least"


def test_a_method_cannot_be_added_twice():
    block = blocks("tiny")["practice"]
    block["networks"][block["trained"][0]]["extra_methods"] = ["full"]
    with pytest.raises(ValidationError, match="extra_methods: expected other methods, got full twice"):
        practice.Settings.model_validate(block)


def test_a_text_goes_with_a_network_that_takes_text():
    grids = {grid.pop("network"): grid for grid in practice.all_grids(settings("practice", "paper"))}
    grid = grids["gpt"]
    for change, said in (
        ({"augmentation": "flip_crop"}, "augmentation: expected none for the text of kjv, got flip_crop"),
        ({"dataset": "cifar10"}, "dataset: expected a text for a network of kind gpt, got the images of cifar10"),
        ({"model": grids["vit_tiny"]["model"]}, "model.kind: expected gpt for the text of kjv, got vit_tiny"),
        ({"model": {**grid["model"], "context": 129}}, "model.context: expected at most 128, the windows of kjv"),
        ({"model": {**grid["model"], "vocabulary": 62}}, "model.vocabulary: expected 63, the characters of kjv"),
        ({"model": {**grid["model"], "heads": 5}}, "width: expected a multiple of the 5 heads, got 192"),
    ):
        with pytest.raises(ValidationError, match=said):
            TrainingGrid.model_validate({**grid, **change})
        spec = next(training_specs({"network": "gpt", **grid, **change}, "paper"))
        with pytest.raises(PaperError, match=said):
            check_specs([spec])
    check_specs(training_specs({"network": "gpt", **grid}, "paper"))


def test_methods_that_are_the_same_on_a_network_are_run_once():
    relu, gelu = {"kind": "resnet18"}, {"kind": "vit_tiny"}
    assert [practice.run_as("smooth_paths", model) for model in (relu, gelu)] == ["full", "smooth_paths"]
    assert [practice.run_as("half_smooth_paths", model) for model in (relu, gelu)] == ["half", "half_smooth_paths"]
    gains = {"full": 1.0, "half": 2.0, "free": 1.0, "half_smooth_paths": 2.0, "per_layer": 3.0}
    rows = pd.DataFrame({"network": "a", "method": list(gains), "lr": 0.1, "accuracy": 50.0, "loss": 1.0})
    found = practice.same_as(rows.assign(gain=list(gains.values())))
    assert found.tolist() == ["", "", "full", "half", ""]
