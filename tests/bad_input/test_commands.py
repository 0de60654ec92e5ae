"""Invalid command lines: one message that says what was expected, exit status 2, no file written."""

import json
from pathlib import Path

import pytest

from paper.experiments import EXPERIMENTS
from tests.paper.training.reference import MLP, make_spec

ROOT = Path(__file__).parents[2]
SPEC = make_spec({**MLP, "inputs": 192}, "pathcond")  # a valid spec
TOY = {
    "stage": "measure", "preset": "tiny", "experiment": "toy", "part": "all", "version": EXPERIMENTS["toy"].version,
    "settings": {
        "draws": 5, "lr": 0.02, "steps": 3, "every": 1, "starts": [[1, 1, 1]], "slower_start": [2, 1, 1], "seeds": [0],
    },
}  # fmt: skip
FILES = {"half.json": "[", "numbers.json": "[1, 2]", "other.csv": "a,b\n1,2\n", "file": "in the way"}
OUT = ["--output", "made"]
JOIN = [*OUT, "--table", "made.md"]
NOT_SPECS = "expected specs as `make specs` writes them, got "


def changed(spec, **changes):
    """A spec as JSON with changes; a field changed to ... is left out."""
    return json.dumps({name: value for name, value in {**spec, **changes}.items() if value is not ...})


def train(says, *words, **changes):
    return "training", [changed(SPEC, **changes), *words], says


def measure(says, **changes):
    return "experiments", ["measure", changed(TOY, **changes)], says


def experiment(says, *words):
    return "experiments", [*words], says


# Program, its arguments, and what the message says.
SPECS = {
    "no words": ("training", [], "SPEC: expected a file of specs, got none"),
    "a file that is not there": ("training", ["none.json"], "cannot read the specs none.json: No such file"),
    "half a file": ("training", ["half.json"], "half.json: expected JSON, got something else"),
    "an unknown stage": train(NOT_SPECS, stage="trian"),
    "specs of the other stage": experiment("expected runs to measure, got none.", "measure", changed(SPEC)),
    "a key that matches nothing": train("of the 1 train runs given, got 'resnet'", "--match", "resnet"),
    "a limit in the past": train("--time-limit: expected a number of seconds, got -1", "--time-limit=-1"),
    "a preset that leads elsewhere": train(NOT_SPECS, preset="../up"),
    "an experiment that leads elsewhere": measure(NOT_SPECS, experiment="../toy"),
    "a learning rate in words": train(NOT_SPECS, lr="fast"),
    "a setting left out": train(NOT_SPECS, batch=...),
    "specs of older code": train("of this code, got 0. Write the specs again", version=0),
    "a measurement of older code": measure("at the version of this code, got toy 0", version=0),
    "an experiment that is trained": measure("expected a measured experiment", experiment="cifar_nv"),
}
TRAINING = {
    "a data set that is not there": train("Make it with `python -m paper.data mnist`", dataset="mnist"),
    "results in the way": train("cannot write file: file is not a folder", "--results", "file"),
}
TABLES = {
    "an unknown experiment": experiment("invalid choice: 'tow'", "aggregate", "tow", *OUT),
    "no JSON": experiment("--over: expected a JSON object, got 'a: 1'", "aggregate", "toy", "--over", "a: 1", *OUT),
    "a batch of other settings": experiment("batch: expected a batch of the preset", "measure", "--batch", "toy-0"),
    "a figure of no table": experiment("none.csv: expected a table, got none", "figure", "toy", "none.csv", *OUT),
    "a figure of another table": experiment("expected the table of this exp", "figure", "toy", "other.csv", *OUT),
    "claims of no file": experiment("none.json: expected a file, got none", "join", "none.json", *JOIN),
    "claims that are numbers": experiment("numbers.json: expected claims, as", "join", "numbers.json", *JOIN),
    "a report before its claims": (
        "report", ["--folder", ROOT, "--preset", "tiny", *OUT], "claims.json: expected a file, got none"
    ),
    "specs of an unknown preset": ("plan", ["--folder", ROOT, "--preset", "big", *OUT], "preview, tiny, got 'big'"),
    "a folder that takes no files": ("plan", ["--preset", "tiny", "--output", "/proc/made"], "cannot write /proc/made"),
    "the queue and experiments": ("plan", ["--queue", "--experiments", "toy", *OUT], "expected --output alone"),
    "recorded runs, but not one": ("verify", ["--count", "0"], "expected --count of 1 or more"),
    "start weights of nothing": ("initial", ["init", "mlq", "--preset", "tiny", "--index", "i"], "mlp_gelu"),
}  # fmt: skip
AREAS = {"specs": SPECS, "training": TRAINING, "tables": TABLES}
CASES = {f"{area}: {name}": case for area, cases in AREAS.items() for name, case in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_a_message(name, place):
    for file, content in FILES.items():
        (place.folder / file).write_text(content)
    program, words, says = CASES[name]
    assert says in place.refused(program, *words)
