"""Files that are read cannot run code, files that are written do not identify the user."""

import hashlib
import io
import json
import os
import sys
from pathlib import Path

import torch

from paper import cli, config, runs
from paper import plan as plans
from paper.training.runner import Checkpoint
from tests.bad_input.test_commands import SPEC, changed
from tests.data_files import Attack, isolate, small_arrays, write_mnist

ROOT = Path(__file__).parents[2]
SECRET = "hunter2-of-the-test"  # noqa: S105 - not one


def test_a_checkpoint_with_code_in_it_is_not_run(place):
    """Someone else may have put a checkpoint there with a correct digest; functions that it names are not called."""
    checkpoint = Checkpoint(Path("results/checkpoints"), SPEC)
    body = io.BytesIO()
    torch.save({"digest": checkpoint.digest, "run": {"epoch": 1, "state": Attack(), "rows": []}}, body)
    checkpoint.path.parent.mkdir(parents=True)
    checkpoint.path.write_bytes(hashlib.sha256(body.getvalue()).digest() + body.getvalue())
    status, said = place.call("training", changed(SPEC), "--device", "cpu")
    assert status == 0, said
    assert f"checkpoint {checkpoint.path.name} cannot be used" in said
    assert "starting anew" in said
    assert not (place.folder / "ran").exists()
    assert (place.folder / "results" / "tiny" / f"{runs.key(SPEC)}.csv").exists()


def test_records_and_logs_do_not_tell_who_made_them(place, monkeypatch):
    isolate(place.folder, monkeypatch)
    person = place.folder / "home" / "jane_doe"
    for name, value in (("HOME", person), ("USER", "jane_doe"), ("API_TOKEN", SECRET)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATHCOND_DATA", str(person / "cache"))
    write_mnist(person / "pictures", small_arrays())
    data, results = person / "mine" / "results" / "data", person / "mine" / "results"
    (toy,) = (s for s in plans.plan(config.read(ROOT, "tiny")).specs.values() if s.get("experiment") == "toy")
    said = ""
    for program, *words in (
        ("data", "generated", "mnist", "--output", data, "--directory", person / "pictures"),
        ("training", changed(SPEC), "--results", results, "--data", data, "--device", "cpu"),
        ("experiments", "measure", json.dumps(toy), "--results", results, "--device", "cpu"),
        ("experiments", "aggregate", "toy", "--preset=tiny", "--results", results, "--output", results / "table.csv"),
    ):  # fmt: skip
        status, lines = place.call(program, *words)
        assert status == 0, lines
        said += lines
    _, refusal = place.call("training", changed(SPEC), "--results", results / "table.csv")
    assert "~/mine/results/table.csv" in refusal
    written = {path: path.read_bytes() for path in results.rglob("*") if path.suffix in (".json", ".csv")}
    assert len(written) == 7  # two of the data, two each of training and measuring, the table
    assert json.loads((data / "mnist.json").read_text())["source"] == "the directory ~/pictures"
    for text in (said, refusal, *(content.decode() for content in written.values())):
        for private in (str(place.folder), "jane_doe", SECRET, "API_TOKEN", os.uname().nodename, sys.prefix):
            assert private not in text


def test_only_the_home_folder_itself_is_shortened(monkeypatch):
    monkeypatch.setenv("HOME", "/home/jo")
    assert cli.shown("/home/jo: no, /home/jo/x and /home/joe/x") == "~: no, ~/x and /home/joe/x"
    monkeypatch.setenv("HOME", "/")
    assert cli.shown("/home/jo/x") == "/home/jo/x"
