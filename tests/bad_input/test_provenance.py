"""Results that do not match their keys: none of them enters a table."""

import json

import pandas as pd
import pytest

from paper import config, results, runs
from paper.experiments import EXPERIMENTS
from tests.bad_input.test_commands import ROOT

CHOSEN = config.read(ROOT, "tiny", {"experiments": {"toy": {"seeds": [0, 1]}}})
CONFIG = json.dumps(runs.slice_of(CHOSEN, "toy", EXPERIMENTS))
(SPEC,) = runs.specs_of(json.loads(CONFIG), "toy", EXPERIMENTS)
ROWS = pd.DataFrame({"start": "a", "extra": False, "run": "raw", "seed": [0, 1], "step": 0, "loss": [1.0, 2.0]})
WORDS = ("experiments", "aggregate", "toy", "--config", CONFIG, "--output", "made.csv")


@pytest.fixture
def result(place):
    path = runs.result_path(place.folder / "results", SPEC)
    results.write_result(path, ROWS, SPEC, {"status": "done", "seconds": 1.5})
    return path


def edited(**changes):
    def harm(path):
        found = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps({**found, **changes}))

    return harm


def provenance(text):
    return lambda path: path.with_suffix(".json").write_text(text)


def rows(frame):
    """Another table, with provenance that has its checksum."""
    return lambda path: results.write_result(path, frame, SPEC, {"status": "done"})


def renamed(path):
    """The result of other settings under this key."""
    spec = {**SPEC, "settings": {**SPEC["settings"], "lr": 0.2}}
    results.write_result(path, ROWS, spec, {"status": "done"})


# What is done to a result, and the message.
HARM = {
    "no provenance": (lambda path: path.with_suffix(".json").unlink(), "is missing or not readable"),
    "no table": (lambda path: path.unlink(), "No such file"),
    "empty provenance": (provenance(""), "is missing or not readable"),
    "half of it": (provenance('{"spec": {'), "is missing or not readable"),
    "a list": (provenance("[]"), "is missing or not readable"),
    "without settings": (provenance('{"sha256": "0"}'), "is missing or not readable"),
    "settings in words": (edited(spec="toy"), "is missing or not readable"),
    "other settings": (renamed, "which is not the one of its name"),
    "settings edited": (edited(spec={**SPEC, "version": 99}), "which is not the one of its name"),
    "a number edited": (edited(seconds=0.1), "its checksum is wrong or missing"),
    "another checksum": (edited(sha256="0" * 64), "its checksum is wrong or missing"),
    "an empty table": (lambda path: path.write_text(""), "expected the sha256"),
    "a number of the table edited": (
        lambda path: path.write_text(path.read_text().replace("2.0", "9.0")),
        "the sha256",
    ),
    "a seed too few": (rows(ROWS[:1]), "expected seeds [0, 1], got [0]"),
    "a seed too many": (rows(pd.concat([ROWS, ROWS[:1].assign(seed=2)])), "expected seeds [0, 1], got [0, 1, 2]"),
    "a seed twice": (rows(pd.concat([ROWS, ROWS[:1]])), "expected every seed once in every group"),
    "no seeds": (rows(ROWS.drop(columns="seed")), "expected seeds [0, 1], got []"),
}


@pytest.mark.parametrize("name", HARM)
def test_a_result_that_is_not_what_its_key_says_is_refused(name, place, result):
    harm, says = HARM[name]
    harm(result)
    said = place.refused(*WORDS)
    assert str(result.relative_to(place.folder)) in said
    assert says in said
    assert results.RECOMPUTE in said


def test_an_undamaged_result_is_used(place, result):
    """Otherwise the refusals above would prove nothing."""
    assert place.call(*WORDS) == (0, "")
    assert len(results.read_table(place.folder / "made.csv")) == 2
