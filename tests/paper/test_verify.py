"""Verification: unchanged runs agree, altered ones do not, even if every digest was recomputed."""

import math
import sys
from pathlib import Path

import pytest
import torch

from paper import cli, config, results, verify
from paper import plan as plans
from paper.experiments.__main__ import make
from paper.runs import key, result_path
from paper.training.runner import Options, train

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
RUNS = plans.plan(config.read(ROOT, "tiny")).specs


def named(text):
    (spec,) = (spec for name, spec in RUNS.items() if text in name)
    return spec


RUN, TOY = named("mlp_2x16/pathcond-lr0.001-seed1"), named("measure/toy/")
NTK = named("measure/conditioning/mlp_2x16")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, generated):
    """A folder with the data, a training run and a measurement."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "data").symlink_to(generated.parent)
    train([RUN], Options(folder, folder / "data", folder / "checkpoints", CPU))
    make(TOY, result_path(folder, TOY), CPU, folder / "data")
    return folder


def checks(recorded, tmp_path, spec, seed=None, epochs=2, alter=None):
    """Verify one run, after its result was altered and given a new checksum."""
    table, record = results.read_result(result_path(recorded, spec))
    table = table if alter is None else alter(table)
    results.write_result(result_path(tmp_path / "claimed", spec), table, spec, record)
    options = Options(tmp_path / "made", recorded / "data", tmp_path / "checkpoints", CPU)
    (found,) = verify.verify([(spec, seed)], tmp_path / "claimed", options, epochs)
    return found


@pytest.mark.parametrize(("spec", "seed", "compared"), [(RUN, None, "epochs 0 to 2"), (TOY, 0, "480 rows")])
def test_a_true_record_agrees(recorded, tmp_path, spec, seed, compared):
    found = checks(recorded, tmp_path, spec, seed)
    assert found.agrees
    assert (found.name, found.compared) == (key(spec) if seed is None else f"{key(spec)} seed {seed}", compared)
    assert found.worst.off < 1e-5


def test_a_measurement_gets_its_data_set(recorded, tmp_path):
    make(NTK, result_path(tmp_path, NTK), CPU, recorded / "data")
    options = Options(tmp_path / "made", recorded / "data", tmp_path / "checkpoints", CPU)
    (found,) = verify.verify([(NTK, NTK["settings"]["seeds"][0])], tmp_path, options, 1)
    assert found.agrees


@pytest.mark.parametrize(
    ("column", "change"),
    [("train_loss", 1.01), ("train_accuracy", 1.1), ("max_log_scale", 1.01), ("train_loss", math.nan)],
)
def test_an_altered_cell_differs(recorded, tmp_path, column, change):
    def alter(table):
        return table.assign(**{column: table[column].where(table["epoch"] != 1, table[column] * change)})

    found = checks(recorded, tmp_path, RUN, alter=alter)
    assert not found.agrees
    assert found.worst.column == column
    assert checks(recorded, tmp_path / "start", RUN, epochs=0, alter=alter).agrees, "what is not compared"


@pytest.mark.parametrize(("moved", "agrees"), [(1.03, True), (1.02, False)])
def test_what_training_magnifies_is_allowed(recorded, tmp_path, monkeypatch, moved, agrees):
    """A loss 10% off, where a rate moved by rounding changes it by 2 or 3%; the start must agree nevertheless."""
    true, record = results.read_result(result_path(recorded, RUN))
    rows = true[true["epoch"] <= 2].reset_index(drop=True)
    rates = []

    def trained(spec, options):
        rates.append(spec["lr"] / RUN["lr"] - 1)
        factor = 1.0 if len(rates) == 1 else moved if len(rates) == 2 else 1.0
        return rows.assign(train_loss=rows["train_loss"].where(rows["epoch"] == 0, rows["train_loss"] * factor)), record

    monkeypatch.setattr(verify, "_trained", trained)
    found = checks(recorded, tmp_path, RUN, alter=lambda t: t.assign(
        train_loss=t["train_loss"].where(t["epoch"] == 0, t["train_loss"] * 1.1)))  # fmt: skip
    assert (found.agrees, found.compared) == (agrees, "epochs 0 to 2, chaotic")
    assert rates == pytest.approx([0.0, -(2.0**-11), 2.0**-11], rel=1e-6)
    rates.clear()
    start = checks(recorded, tmp_path, RUN, alter=lambda t: t.assign(train_loss=t["train_loss"] * 1.1))
    assert not start.agrees
    assert len(rates) == 1


@pytest.mark.parametrize("alter", [
    lambda table: table.assign(loss=table["loss"] * (1 + 0.001 * (table.index == 7))),
    lambda table: table.assign(run=table["run"].where(table.index != 7, "other")),
    lambda table: table.drop(index=7),
], ids=["number", "text", "shorter"])  # fmt: skip
def test_an_altered_measurement_differs(recorded, tmp_path, alter):
    found = checks(recorded, tmp_path, TOY, 0, alter=alter)
    assert not found.agrees
    assert "DIFFERS" in verify.told([found])


def test_what_can_be_made_again():
    conv, timed = named("cifar_nv/enorm-lr0.001-seed0"), named("timing_depth/")
    assert [verify.comparable(spec, CPU) for spec in (RUN, TOY, conv)] == [True, True, False]
    assert [verify.comparable(spec, torch.device("cuda")) for spec in (conv, timed)] == [True, False]


def test_the_program(recorded, tmp_path, monkeypatch, capsys):
    def command(folder, *more):
        options = ("--folder", ROOT, "--preset", "tiny", "--results", folder, "--data", recorded / "data")
        monkeypatch.setattr(sys, "argv", ["verify", *map(str, (*options, "--device", "cpu", *more))])
        cli.run(verify.main)

    command(recorded, "--count", 2, "--seed", 3)
    told = capsys.readouterr()
    assert told.out.count("agrees") == 2
    assert "2 of 2 recorded runs, picked with --seed 3" in told.err
    table, record = results.read_result(result_path(recorded, RUN))
    results.write_result(result_path(tmp_path, RUN), table.assign(test_loss=9.0), RUN, record)
    with pytest.raises(SystemExit, match="1"):
        command(tmp_path)
    assert "DIFFERS  test_loss off by" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        command(tmp_path / "nowhere")
    assert "expected recorded runs of the preset tiny" in capsys.readouterr().err
