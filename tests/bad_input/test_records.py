"""Results that are not what their names say: none of them enters a table."""

import json

import pandas as pd
import pytest

from paper import plan, store

CONFIG = {"scale": "tiny", "scales": {"tiny": {"toy": {"seeds": [0, 1], "lr": 0.1}}}}
(SPEC,) = plan.runs_of(CONFIG, "toy")
ROWS = pd.DataFrame({"start": "a", "extra": False, "run": "raw", "seed": [0, 1], "step": 0, "loss": [1.0, 2.0]})
WAY_OUT = "Delete it and run again."


@pytest.fixture
def result(place):
    path = place.folder / "results" / "tiny" / f"{plan.key(SPEC)}.csv"
    store.write_result(path, ROWS, SPEC, {"status": "done", "seconds": 1.5})
    return path


def edited(**changes):
    def harm(path):
        record = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps({**record, **changes}))

    return harm


def record(text):
    return lambda path: path.with_suffix(".json").write_text(text)


def table(text):
    return lambda path: path.write_text(text)


def rows(frame):
    """Another table, with a record that vouches for it."""
    return lambda path: store.write_result(path, frame, SPEC, {"status": "done"})


def renamed(path):
    """The result of other settings under this name."""
    spec = {**SPEC, "settings": {**SPEC["settings"], "lr": 0.2}}
    store.write_result(path, ROWS, spec, {"status": "done"})


# What is done to a result, and what is said of it.
HARM = {
    "no record": (lambda path: path.with_suffix(".json").unlink(), "is missing or not readable"),
    "no table": (lambda path: path.unlink(), "No such file"),
    "an empty record": (record(""), "is missing or not readable"),
    "half a record": (record('{"spec": {'), "is missing or not readable"),
    "a list for a record": (record("[]"), "is missing or not readable"),
    "a record without settings": (record('{"sha256": "0"}'), "is missing or not readable"),
    "settings in words": (edited(spec="toy"), "is missing or not readable"),
    "other settings": (renamed, "which is not the one of its name"),
    "settings edited": (edited(spec={**SPEC, "version": 99}), "which is not the one of its name"),
    "a number of the record edited": (edited(seconds=0.1), "its seal is wrong or missing"),
    "another digest": (edited(sha256="0" * 64), "its seal is wrong or missing"),
    "an empty table": (table(""), "expected the sha256"),
    "a number of the table edited": (
        lambda path: path.write_text(path.read_text().replace("2.0", "9.0")),
        "the sha256",
    ),
    "half a table": (lambda path: path.write_bytes(path.read_bytes()[:-7]), "expected the sha256"),
    "a seed too few": (rows(ROWS[:1]), "expected seeds [0, 1], got [0]"),
    "a seed too many": (rows(pd.concat([ROWS, ROWS[:1].assign(seed=2)])), "expected seeds [0, 1], got [0, 1, 2]"),
    "a seed twice": (rows(pd.concat([ROWS, ROWS[:1]])), "expected every seed once in every group"),
    "no seeds": (rows(ROWS.drop(columns="seed")), "expected seeds [0, 1], got []"),
}


@pytest.mark.parametrize("name", HARM)
def test_a_result_that_is_not_what_its_name_says_is_refused(name, place, result):
    harm, says = HARM[name]
    harm(result)
    said = place.refused("aggregate", "toy", "--config", json.dumps(CONFIG), "--output", "made.csv")
    assert str(result.relative_to(place.folder)) in said
    assert says in said
    assert WAY_OUT in said


def test_a_sound_result_is_taken(place, result):
    """Else the table above would prove nothing."""
    assert place.call("aggregate", "toy", "--config", json.dumps(CONFIG), "--output", "made.csv") == (0, "")
    assert len(store.read_table(place.folder / "made.csv")) == 2
