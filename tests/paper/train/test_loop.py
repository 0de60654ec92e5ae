"""Cells trained to the end: tables, records, going on after a stop, and what is not taken on trust."""

import json
import math
from pathlib import Path

import pytest
import torch

from paper import data, models, store
from paper.errors import PaperError
from paper.plan import key
from paper.train import loop
from paper.train.checkpoint import Checkpoint
from paper.train.loop import Options, Progressing, TimeUp, result_path, train
from tests.paper.train.plain import CONV, CPU, MLP, cell

FLAT = {**MLP, "inputs": 192}
AUTO = {"kind": "autoencoder", "inputs": 192, "compression": 4}
KINDS = {
    "mlp": cell(FLAT, "pathcond", validation=10),
    "enorm": cell(FLAT, "enorm"),
    "teleport": cell(FLAT, "teleport", {"teleport": 1}),
    "autoencoder": cell(AUTO, "pathcond"),
    "conv": cell(CONV, "enorm"),
    "momentum": cell(FLAT, optimiser={"name": "sgd", "momentum": 0.9}),
    "adam": cell(FLAT, optimiser={"name": "adam"}),
    "muon": cell(FLAT, optimiser={"name": "muon"}),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data.prepare("generated", folder / "generated.pt")
    return folder


@pytest.fixture
def options(images, tmp_path):
    return Options(tmp_path / "results", images, tmp_path / "checkpoints", CPU)


def content(options, spec):
    return result_path(options.results, spec).read_bytes()


def left(options):
    return [path for path in options.checkpoints.rglob("*") if path.is_file()]


def stop_after(options, epochs):
    """Stop once so many epochs are done, counted by how often it is asked: once before the first, then after each."""
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > epochs

    options.stop = stop


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_every_seed_and_epoch(kind, options):
    spec = KINDS[kind]
    train([spec], options)
    table, record = store.read_result(result_path(options.results, spec))
    metrics = [name for name in loop.COLUMNS if kind != "autoencoder" or "accuracy" not in name]
    assert list(table) == [name for name in metrics if spec["validation"] or "validation" not in name]
    assert list(zip(table["seed"], table["epoch"], strict=True)) == [(s, e) for s in (0, 1) for e in range(4)]
    assert not table.isna().any().any()
    assert (table["max_log_scale"] > 0).all() == bool(spec["rescaling"].get("rescale"))
    assert not table["diverged"].any()
    assert record["spec"] == spec
    assert record["status"] == {"0": "done", "1": "done"}
    assert record["precision"] == "float32"
    assert record["parameters"] == models.parameters(models.build(spec["model"]))
    assert record["seconds"] > 0
    assert {"hardware", "threads", "torch", "python", "commit"} <= set(record)
    assert not left(options)


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_after_every_epoch_it_gives_the_same_bytes(kind, options, tmp_path):
    spec = KINDS[kind]
    train([spec], options)
    whole = content(options, spec)
    options.results, options.checkpoints = tmp_path / "again", tmp_path / "kept"
    for _ in range(20):
        stop_after(options, 1)
        try:
            train([spec], options)
            break
        except TimeUp:
            assert len(left(options)) == 1
            assert not result_path(options.results, spec).exists()
    assert content(options, spec) == whole
    assert not left(options)


def test_a_cell_by_itself_or_among_others_gives_the_same_bytes(options, tmp_path):
    cells = list(KINDS.values())[:5]
    train([*cells, cells[0]], options)
    for number, spec in enumerate(cells):
        options_one = Options(tmp_path / f"results{number}", options.data, tmp_path / f"kept{number}", CPU)
        train([spec], options_one)
        assert content(options_one, spec) == content(options, spec)


def test_a_result_that_is_there_is_taken_and_its_checkpoint_removed(options, capsys):
    spec = KINDS["mlp"]
    train([spec], options)
    capsys.readouterr()
    before = result_path(options.results, spec).stat()
    Checkpoint(options.checkpoints, spec).write({0: {"epoch": 1}})  # a run that was killed just before it removed it
    train([spec, spec], options)
    assert capsys.readouterr().err == f"{key(spec)}: already there\n"
    after = result_path(options.results, spec).stat()  # the time of its last reading may differ
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert not left(options)


@pytest.mark.parametrize("damage", ["table", "record", "no record", "no table"])
def test_a_damaged_result_is_made_again(damage, options, capsys):
    spec = KINDS["mlp"]
    train([spec], options)
    path, whole = result_path(options.results, spec), content(options, spec)
    if damage == "table":
        path.write_bytes(whole.replace(b"0", b"1", 1))
    elif damage == "record":
        path.with_suffix(".json").write_text("{")
    else:
        (path.with_suffix(".json") if damage == "no record" else path).unlink()
    capsys.readouterr()
    train([spec], options)
    assert "already there" not in capsys.readouterr().err
    assert content(options, spec) == whole
    assert store.is_whole(path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_checkpoint_that_cannot_be_used_is_named_and_training_starts_anew(damage, options, capsys, tmp_path):
    spec, other = KINDS["mlp"], cell(FLAT, "pathcond", validation=10, lr=0.5)
    train([spec], options)
    whole = content(options, spec)
    options.results = tmp_path / "again"
    for one in (spec, other):
        stop_after(options, 2)
        with pytest.raises(TimeUp):
            train([one], options)
    options.stop = lambda: False
    path = Checkpoint(options.checkpoints, spec).path
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 8
    alien = Checkpoint(options.checkpoints, other).path.read_bytes()
    path.write_bytes({"cut": bytes(raw[: len(raw) // 2]), "flipped": bytes(raw), "other": alien}[damage])
    capsys.readouterr()
    train([spec], options)
    said = capsys.readouterr().err
    assert f"{key(spec)}: checkpoint {path.name} cannot be used (" in said
    assert "; starting anew" in said
    assert content(options, spec) == whole
    assert left(options) == [Checkpoint(options.checkpoints, other).path]


@pytest.mark.parametrize("model", [FLAT, AUTO], ids=["mlp", "autoencoder"])
@pytest.mark.parametrize("method", ["baseline", "enorm", "teleport"])
def test_a_run_that_diverges_is_recorded_as_such(model, method, options):
    spec = cell(model, method, {"teleport": 1} if method == "teleport" else {}, lr=1e30, epochs=4)
    train([spec], options)
    table, record = store.read_result(result_path(options.results, spec))
    assert record["status"] == {"0": "diverged", "1": "diverged"}
    assert len(table) == 10
    ended = table[table["epoch"] == 4]
    assert ended["diverged"].all()
    assert not any(math.isfinite(loss) for loss in ended["train_loss"])
    assert not table.loc[table["epoch"] == 0, "diverged"].any()


def test_one_diverged_epoch_is_enough_for_the_record(options, monkeypatch):
    spec, inner = cell(FLAT, seeds=[0]), loop._note

    def note(pairs, backend, epoch):
        inner(pairs, backend, epoch)
        pairs[0][0].seeds[0]["rows"][-1]["diverged"] = epoch == 1

    monkeypatch.setattr(loop, "_note", note)
    train([spec], options)
    assert store.read_record(result_path(options.results, spec))["status"] == {"0": "diverged"}


def test_a_networks_layout_that_the_stack_does_not_know_trains_alone(options):
    spec = cell({**FLAT, "bias": True})
    assert not loop.stackable(spec)
    assert loop.stackable(cell({**FLAT, "batchnorm": False, "bias": True}))
    assert not loop.stackable(KINDS["conv"])
    assert not loop.stackable(KINDS["momentum"])
    train([spec], options)
    assert store.is_whole(result_path(options.results, spec))


@pytest.mark.parametrize(("field", "value"), [("epochs", None), ("rescaling", None), ("seeds", []), ("seeds", None)])
def test_a_spec_that_lacks_something_is_refused_before_anything_runs(field, value, options):
    spec = {name: entry for name, entry in KINDS["mlp"].items() if name != field}
    if value is not None:
        spec[field] = value
    with pytest.raises(PaperError, match=f"expected {field}, got none"):
        train([KINDS["enorm"], spec], options)
    assert not options.results.exists()


# ---- which runs train side by side on a GPU


def standing(spec, **epochs):
    seeds = {int(seed[1:]): {"epoch": epoch} for seed, epoch in epochs.items()}
    return Progressing(spec, Checkpoint(options_on_gpu().checkpoints, spec), seeds)


def options_on_gpu(most=96):
    return Options(Path("r"), Path("d"), Path("c"), torch.device("cuda"), most=most)


def groups(entries, most=96):
    return [[entry.cell for entry in group] for group in loop._groups(entries, options_on_gpu(most))]


def test_cells_of_one_shape_stand_side_by_side_enorm_last():
    base, enorm, rows = (cell(FLAT, method) for method in ("baseline", "enorm", "rows"))
    rate, deeper = cell(FLAT, lr=0.7), cell({**FLAT, "hidden": [6, 5, 4, 3]})
    longer, momentum = cell(FLAT, epochs=9), KINDS["momentum"]
    specs = [enorm, momentum, base, deeper, rate, longer, rows]
    found = groups([standing(spec) for spec in specs])
    assert sorted(len(group) for group in found) == [1, 1, 1, 4]
    (together,) = (group for group in found if len(group) == 4)
    assert together[-1] == enorm
    assert all(spec in together for spec in (base, rate, rows))
    assert [len(group) for group in groups([standing(s) for s in (enorm, base, rate, rows)], most=5)] == [2, 2]


def test_cells_at_other_epochs_train_by_themselves():
    ahead, behind = cell(FLAT, lr=0.7), cell(FLAT)
    assert len(groups([standing(ahead, s0=2, s1=2), standing(behind)])) == 2
    assert len(groups([standing(ahead, s0=2, s1=2), standing(behind, s0=2, s1=2)])) == 1


def test_seeds_at_other_epochs_train_by_themselves():
    """As after a CPU, which trains one seed after the other, has stopped and a GPU goes on."""
    entry, other = (standing(cell(FLAT, lr=lr, seeds=[0, 1, 2]), s0=2) for lr in (0.1, 0.2))
    pairs = [(one, seed) for one in (entry, other) for seed in (0, 1, 2)]
    parts = loop._parts(pairs, options_on_gpu())
    assert [[(id(one), seed) for one, seed in part] for part in parts] == [
        [(id(entry), 0), (id(other), 0)],
        [(id(entry), 1), (id(entry), 2), (id(other), 1), (id(other), 2)],
    ]
    alone = options_on_gpu()
    alone.device = CPU
    assert [len(part) for part in loop._parts(pairs, alone)] == [1] * 6


def test_the_record_is_json_that_names_no_host(options):
    spec = KINDS["mlp"]
    train([spec], options)
    text = result_path(options.results, spec).with_suffix(".json").read_text()
    assert str(options.results) not in text
    assert json.loads(text)["rows"] == 8
