"""Runs trained to the end: tables, provenance, resuming after a stop, and files that are verified first."""

import math
from pathlib import Path

import pytest
import torch

from paper import models, results
from paper.runs import key, result_path
from paper.training import runner
from paper.training.runner import Checkpoint, Options, Progressing, TimeUp, train
from tests.faults.harm import flip
from tests.paper.training.reference import CONV, CPU, FLAT, make_spec, stop_after

AUTO = {"kind": "autoencoder", "inputs": 192, "compression": 4}
KINDS = {
    "mlp": make_spec(FLAT, "pathcond", validation=10),
    "enorm": make_spec(FLAT, "enorm"),
    "teleport": make_spec(FLAT, "teleport", {"teleport": 1}),
    "autoencoder": make_spec(AUTO, "pathcond"),
    "conv": make_spec(CONV, "enorm"),
    "momentum": make_spec(FLAT, optimiser={"name": "sgd", "momentum": 0.9}),
    "adam": make_spec(FLAT, optimiser={"name": "adam"}),
    "muon": make_spec(FLAT, optimiser={"name": "muon"}),
}


@pytest.fixture
def options(generated, tmp_path):
    return Options(tmp_path / "results", generated.parent, tmp_path / "checkpoints", CPU)


def content(options, spec):
    return result_path(options.results, spec).read_bytes()


def left(options):
    return [path for path in options.checkpoints.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_every_epoch_and_the_same_bytes_if_stopped_after_every_epoch(kind, options, tmp_path):
    spec = KINDS[kind]
    train([spec], options)
    table, record = results.read_result(result_path(options.results, spec))
    metrics = [name for name in runner.COLUMNS if kind != "autoencoder" or "accuracy" not in name]
    metrics.remove("running_train_loss")  # which no spec here asks for
    assert list(table) == [name for name in metrics if spec["validation"] or "validation" not in name]
    assert list(zip(table["seed"], table["epoch"], strict=True)) == [(0, e) for e in range(4)]
    assert not table.isna().any().any()
    assert (table["max_log_scale"] > 0).all() == bool(spec["rescaling"].get("rescale"))
    parameters = models.parameters(models.build(spec["model"]))
    expected = {"spec": spec, "status": "done", "precision": "float32", "parameters": parameters}
    assert record == record | expected
    assert {"seconds", "hardware", "threads", "torch", "python", "commit"} <= set(record)
    whole = content(options, spec)
    options.results, options.checkpoints = tmp_path / "again", tmp_path / "kept"
    for _ in range(20):
        options.stop = stop_after(1)
        try:
            train([spec], options)
            break
        except TimeUp:
            assert len(left(options)) == 1
            assert not result_path(options.results, spec).exists()
    assert content(options, spec) == whole
    assert not left(options)


def test_a_result_that_is_there_is_taken_and_its_checkpoint_removed_but_not_a_damaged_one(options, capsys):
    spec = KINDS["mlp"]
    train([spec], options)
    capsys.readouterr()
    before = result_path(options.results, spec).stat()
    Checkpoint(options.checkpoints, spec).write({"epoch": 1})  # a run that was killed just before it removed it
    train([spec, spec], options)
    assert capsys.readouterr().err == f"{key(spec)}: exists, reused\n"
    after = result_path(options.results, spec).stat()  # the time of its last reading may differ
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert not left(options)
    whole = content(options, spec)
    flip(result_path(options.results, spec))
    train([spec], options)
    assert "reused" not in capsys.readouterr().err
    assert content(options, spec) == whole


@pytest.mark.parametrize(("model", "method"), [(FLAT, "enorm"), (AUTO, "baseline"), (AUTO, "teleport")])
def test_a_run_that_diverges_is_recorded_as_such(model, method, options):
    spec = make_spec(model, method, {"teleport": 1} if method == "teleport" else {}, lr=1e30, epochs=4)
    train([spec], options)
    table, record = results.read_result(result_path(options.results, spec))
    assert record["status"] == "diverged"
    assert len(table) == 5
    ended = table[table["epoch"] == 4]
    assert ended["diverged"].all()
    assert not any(math.isfinite(loss) for loss in ended["train_loss"])
    assert not table.loc[table["epoch"] == 0, "diverged"].any()


# ---- batches on a GPU


def options_on_gpu(most=96):
    return Options(Path("r"), Path("d"), Path("c"), torch.device("cuda"), most=most)


def test_runs_of_one_architecture_share_a_batch_with_enorm_last():
    base, enorm, rows = (make_spec(FLAT, method) for method in ("baseline", "enorm", "rows"))
    rate, deeper = make_spec(FLAT, lr=0.7), make_spec({**FLAT, "hidden": [6, 5, 4, 3]})
    longer, momentum = make_spec(FLAT, epochs=9), KINDS["momentum"]
    found = list(runner._batches([enorm, momentum, base, deeper, rate, longer, rows], options_on_gpu()))
    assert sorted(len(batch) for batch in found) == [1, 1, 1, 4]
    (largest,) = (batch for batch in found if len(batch) == 4)
    assert largest[-1] == enorm
    assert all(spec in largest for spec in (base, rate, rows))
    assert [len(batch) for batch in runner._batches([enorm, base, rate, rows], options_on_gpu(most=3))] == [3, 1]


def test_runs_at_different_epochs_train_separately():
    """As after a CPU, which trains one seed after the other, has stopped and a GPU resumes."""
    specs = [make_spec(FLAT, lr=lr, seed=seed) for lr in (0.1, 0.2) for seed in (0, 1)]
    members = [
        Progressing(spec, Checkpoint(Path("c"), spec), {"epoch": 2} if spec["seed"] == 0 else {}) for spec in specs
    ]
    parts = runner._by_epoch(members, options_on_gpu())
    assert [[run.spec for run in part] for part in parts] == [[specs[0], specs[2]], [specs[1], specs[3]]]
    on_cpu = options_on_gpu()
    on_cpu.device = CPU
    assert [len(part) for part in runner._by_epoch(members, on_cpu)] == [1] * 4
