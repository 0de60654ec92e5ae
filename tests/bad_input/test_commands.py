"""Words of every command line that cannot be right: one message that says what was expected, status 2, no file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paper import plan
from tests.paper.train.plain import AUTOENCODER, CONV, MLP, cell

ROOT = Path(__file__).parents[2]
CELL = cell({**MLP, "inputs": 192}, "pathcond")  # as it should be
TOY = {
    "stage": "measure", "scale": "tiny", "item": "toy", "part": "all", "version": plan.ITEMS["toy"].version,
    "settings": {
        "draws": 5, "lr": 0.02, "steps": 3, "every": 1, "starts": [[1, 1, 1]], "slower_start": [2, 1, 1], "seeds": [0],
    },
}  # fmt: skip
FILES = {
    "half.json": "[", "numbers.json": "[1, 2]", "text.json": '"text"', "null.json": "null", "binary.json": "\0\1",
    "empty.csv": "", "head.csv": "panel,method\n", "other.csv": "a,b\n1,2\n", "file": "in the way",
}  # fmt: skip


CONFIG, SCHEMA = ROOT / "config.yaml", ROOT / "workflow/schemas/config.schema.yaml"
MODEL, HOW = CELL["model"], CELL["rescaling"]
OUT = ["--output", "made"]
JUDGE = ["--scale", "tiny", *OUT]
JOIN = [*OUT, "--table", "made.md"]
NOT_SPECS = "expected specs as `make specs` writes them, got "


def changed(spec, **changes):
    """A spec as JSON; what is changed to ... is left out."""
    return json.dumps({name: value for name, value in {**spec, **changes}.items() if value is not ...})


def train(says, *words, **changes):
    return "train", [changed(CELL, **changes), *words], says


def measure(says, **changes):
    return "measure", [changed(TOY, **changes)], says


def model(says, dataset="generated", **changes):
    given = {name: value for name, value in {**MODEL, **changes}.items() if value is not ...}
    return train(says, model=given, dataset=dataset)


def rebuild(says, task="rebuild", **changes):
    return train(says, task=task, model={**AUTOENCODER, "inputs": 192, **changes})


def optimiser(says, how=None, **settings):
    return train(says, optimiser=settings, rescaling=how or HOW)


def rescaling(says, how):
    return train(says, rescaling=how)


def setting(says, **changes):
    given = {name: value for name, value in {**TOY["settings"], **changes}.items() if value is not ...}
    return measure(says, settings=given)


def aggregate(says, item, **blocks):
    return "aggregate", [item, "--config", json.dumps({"scale": "tiny", "scales": {"tiny": blocks}}), *OUT], says


# Program, its words, and what the message says.
SPECS = {
    "no words": ("train", [], "the following arguments are required: SPEC"),
    "unknown option": ("train", ["--speed", "9", "half.json"], "unrecognized arguments: --speed"),
    "a file that is not there": ("train", ["none.json"], "cannot read the specs none.json: No such file"),
    "a folder for a file": ("measure", ["results"], "cannot read the specs results: Is a directory"),
    "half a file": ("train", ["half.json"], "half.json: expected JSON, got something else"),
    "bytes": ("train", ["binary.json"], "binary.json: expected JSON, got something else"),
    "half an object": ("measure", ["{"], "{: expected JSON, got something else"),
    "numbers": ("train", ["numbers.json"], NOT_SPECS + "1."),
    "text": ("measure", ["text.json"], NOT_SPECS + "'text'."),
    "null": ("measure", ["null.json"], NOT_SPECS + "None."),
    "an object of another kind": ("train", ['{"a": 1}'], NOT_SPECS + "{'a': 1}."),
    "an unknown stage": train("expected runs to train, got none.", stage="trian"),
    "specs of the other stage": ("measure", [changed(CELL)], "expected runs to measure, got none."),
    "a name that matches nothing": train("of the 1 train runs given, got 'resnet'", "--match", "resnet"),
    "an unknown device": train("invalid choice: 'tpu'", "--device", "tpu"),
    "a limit that is no number": train("invalid seconds value: 'soon'", "--time-limit", "soon"),
    "a limit in the past": train("--time-limit: expected a number of seconds, got -1", "--time-limit=-1"),
    "checkpoints at no time": train("--save-every: expected a number of seconds, got nan", "--save-every", "nan"),
    "a scale that leads elsewhere": train("scale: expected a name", scale="../up"),
    "a method that leads elsewhere": train("method: expected a name", method="/up/x"),
    "an item that leads elsewhere": measure("item: expected one of toy, criteria", item="../toy"),
    "a part that is a number": measure("part: expected a name", part=3),
    "specs of older code": train("of this code, got 0. Write the specs again.", version=0),
    "a measurement of older code": measure("of this code, got None.", version=...),
}
TRAINING = {
    "a negative learning rate": train("lr: expected a positive number, got -0.1", lr=-0.1),
    "a learning rate of NaN": train("expected a positive number, got nan", lr=float("nan")),
    "a learning rate in words": train(NOT_SPECS, lr="fast"),
    "a learning rate without end": train(NOT_SPECS, lr=10**400),
    "a seed twice": train("seeds: expected whole numbers, each once, got [1, 1]", seeds=[1, 1]),
    "no seeds": train("expected whole numbers, each once, got []", seeds=[]),
    "seeds that are text": train("expected whole numbers, each once, got ['0']", seeds=["0"]),
    "no epochs": train("epochs: expected a whole number above 0, got 0", epochs=0),
    "half an epoch": train("expected a whole number above 0, got 0.5", epochs=0.5),
    "a batch of none": train("batch: expected a whole number above 0, got 0", batch=0),
    "an unknown task": train("task: expected one of classify, rebuild, got 'guess'", task="guess"),
    "a setting left out": train("expected batch, got none. `make specs` writes whole specs.", batch=...),
    "a setting too many": train("expected keys among stage, scale", speed=1),
    "a model in words": train("model: expected an object, got 'mlp'", model="mlp"),
    "an unknown kind of model": train("expected one of mlp, cifar_nv", model={"kind": "vit"}),
    "an unknown key of a model": train("bias of mlp, got wdth.", model={**MODEL, "wdth": 3}),
    "an unknown activation": train("one of relu, gelu, silu, got 'tanh'", model={**MODEL, "activation": "tanh"}),
    "widths in words": model("hidden: expected a list of whole numbers above 0, got 'wide'", hidden="wide"),
    "a width below zero": model("hidden: expected a list of whole numbers above 0, got [-3]", hidden=[-3]),
    "no hidden layers": model("hidden: expected a list of whole numbers above 0, got []", hidden=[]),
    "fewer outputs than classes": model("outputs: expected 10, the classes of generated, got 5", outputs=5),
    "a key of a model left out": model("expected outputs, got none", outputs=...),
    "no compression": rebuild("compression: expected a whole number above 0, got 0", compression=0),
    "a layer of no units": rebuild("model.compression: expected at most 13, which leaves", compression=14),
    "an autoencoder that classifies": rebuild("task: expected rebuild for a network of kind auto", task="classify"),
    "an unknown optimiser": optimiser("name: expected one of sgd, adam, muon, got 'lion'", name="lion"),
    "an optimiser without a name": optimiser("name: expected one of sgd, adam, muon, got None"),
    "an unknown key of an optimiser": optimiser("weight_decay of sgd, got speed.", name="sgd", speed=1),
    "momentum in words": optimiser("momentum: expected a number from 0 to below 1", name="sgd", momentum="much"),
    "momentum of Adam": optimiser("keys among name, weight_decay of adam, got mom", name="adam", momentum=0.9),
    "Muon with ENorm": optimiser("name: expected sgd or adam with enorm", {"enorm": True}, name="muon"),
    "Muon with teleports": optimiser("sgd or adam with teleport", {**HOW, "teleport": 2}, name="muon"),
    "half a rescaling": rescaling("expected part, batchnorm, solver, sweeps, pooling, got none", {"rescale": True}),
    "no rescaling": rescaling("expected enorm, got none", {}),
    "an unknown solver": rescaling("solver: expected one of sweeps, optimum, got 'x'", {**HOW, "solver": "x"}),
    "an unknown part of the scales": rescaling("part: expected one of both, rows, columns", {**HOW, "part": "x"}),
    "a part of every teleport": rescaling("both with teleport, got rows", {**HOW, "part": "rows", "teleport": 2}),
    "a data set that is a number": train("dataset: expected one of cifar10, mnist, generated, got 3", dataset=3),
    "an unknown data set": train("expected one of cifar10, mnist, generated, got 'imagenet'", dataset="imagenet"),
    "a data set that is not there": model("Make it with `python -m paper.data mnist`", "mnist", inputs=196),
    "more images than there are": train("expected at most 640 of generated, got 9999", images=9999),
    "images of another size": model("inputs: expected 3 x s x s, where s is at most 8, the", inputs=50),
    "larger images than there are": train(
        "image: expected at most 8, the side of the images", model={**CONV, "image": 64}
    ),
    "grey images for colours": train("expected mlp or autoencoder for the grey", model=CONV, dataset="mnist"),
    "an image by itself": train("batch: 33 images leave a last batch of one, which BatchNorm cannot", images=33),
    "results in the way": train("cannot write file: file is no folder that may be written", "--results", "file"),
}
MEASURING = {
    "an unknown item": measure("item: expected one of toy, criteria", item="tow"),
    "an item that is trained": measure("item: expected one of toy, criteria", item="cifar_nv"),
    "settings in words": measure("settings: expected an object, got 'all'", settings="all"),
    "no settings": measure("expected settings, got none", settings=...),
    "no scale": measure("expected scale, got none", scale=...),
    "a setting left out": setting("settings: expected starts, got none.", starts=...),
    "a setting too many": setting("settings: expected keys among draws", batch=3),
    "a setting in words": setting("settings.draws: expected a whole number above 0, got 'many'", draws="many"),
    "half a start": setting("settings.starts: expected lists of three numbers, each once", starts=[[1, 2]]),
    "a start without slope": setting("slower_start: expected u, v, w with u > 0", slower_start=[0, 1, 1]),
}
TABLES = {
    "an unknown item": aggregate("invalid choice: 'tow'", "tow"),
    "no output": ("aggregate", ["toy", "--config", "{}"], "are required: --output"),
    "no JSON": ("aggregate", ["toy", "--config", "toy: 1", *OUT], "--config: expected a JSON object, got 'toy: 1'"),
    "a list": ("aggregate", ["toy", "--config", "[]", *OUT], "--config: expected a JSON object, got '[]'"),
    "an empty configuration": ("aggregate", ["toy", "--config", "{}", *OUT], "expected a scale and the block"),
    "settings of another item": aggregate("got no 'toy'", "toy", bcd={}),
    "half the settings": aggregate("expected whole settings of mlp_depth", "mlp_depth", mlp_depth={}),
    "no runs yet": aggregate("is missing or not readable", "toy", toy={}),
    "a figure of an unknown item": ("figures", ["tow", "other.csv", *OUT], "invalid choice: 'tow'"),
    "a figure of no table": ("figures", ["toy", "none.csv", *OUT], "none.csv: expected a table, got none"),
    "a figure of an empty file": ("figures", ["toy", "empty.csv", *OUT], "empty.csv: expected a table, got something"),
    "a figure of no rows": ("figures", ["toy", "head.csv", *OUT], "expected the table of this item, got one without"),
    "a figure of another table": ("figures", ["toy", "other.csv", *OUT], "expected the table of this item, got one"),
    "a figure of no dots": ("figures", ["toy", "other.csv", *OUT, "--dpi", "0"], "--dpi: expected a positive number"),
    "a figure in no print": ("figures", ["toy", "other.csv", *OUT, "--font-size", "nan"], "--font-size: expected"),
    "claims of an unknown item": ("claims", ["judge", "tow", "other.csv", *JUDGE], "invalid choice: 'tow'"),
    "claims at an unknown scale": ("claims", ["judge", "toy", "other.csv", "--scale", "big", *OUT], "choice: 'big'"),
    "claims of no table": ("claims", ["judge", "toy", "none.csv", *JUDGE], "none.csv: expected a table, got none"),
    "claims of another table": ("claims", ["judge", "toy", "other.csv", *JUDGE], "expected the table of this item"),
    "claims of no file": ("claims", ["join", "none.json", *JOIN], "none.json: expected a file, got none"),
    "claims of half a file": ("claims", ["join", "half.json", *JOIN], "half.json: expected JSON, got something"),
    "claims that are numbers": ("claims", ["join", "numbers.json", *JOIN], "numbers.json: expected claims, as"),
    "a report of no JSON": ("report", ["tiny", *OUT], "config: expected a JSON object, got 'tiny'"),
    "a report of an unknown scale": ("report", ['{"scale": "big"}', *OUT], "one of paper, preview, tiny, got 'big'"),
    "a report before its claims": ("report", ['{"scale": "tiny"}', *OUT], "claims.json: expected a file, got none"),
    "specs of an unknown scale": (
        "specs", ["--config", CONFIG, "--schema", SCHEMA, "--scale", "big", *OUT], "paper, preview, tiny, got 'big'",
    ),
    "specs of no configuration": ("specs", ["--config", "none.yaml", *OUT], "cannot read none.yaml: No such file"),
    "specs of a table": ("specs", ["--config", "other.csv", *OUT], "expected keys and values, got str"),
    "recorded runs, but not one": ("verify", ["--count", "0"], "expected --count of 1 or more"),
    "pages that are not there": ("tell", ["--root", "nowhere"], "README.md: expected a file, got none"),
    "a folder for a configuration": ("recorded", ["--config", "results"], "cannot read results: Is a directory"),
}  # fmt: skip
AREAS = {"specs": SPECS, "training": TRAINING, "measuring": MEASURING, "tables": TABLES}
CASES = {f"{area}: {name}": case for area, cases in AREAS.items() for name, case in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_a_message(name, place):
    for file, content in FILES.items():
        (place.folder / file).write_text(content)
    program, words, says = CASES[name]
    assert says in place.refused(program, *words)


# The same through a shell, where a fresh interpreter starts.
SHELL = {
    "specs": (["--config", "none.yaml", "--output", "o"], "error: cannot read none.yaml: No such file or directory.\n"),
    "aggregate": (["toy", "--config", "{}", "--output", "o"], "error: configuration: expected a scale"),
    "measure": (["none.json", "--device", "cpu"], "error: cannot read the specs none.json: No such file or directory."),
}


@pytest.mark.parametrize("program", SHELL)
def test_a_shell_sees_status_two_and_no_traceback(program, tmp_path):
    words, says = SHELL[program]
    done = subprocess.run(
        [sys.executable, "-m", f"paper.{program}", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(says)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
