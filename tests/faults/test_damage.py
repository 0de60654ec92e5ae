"""Damaged files of a workflow: noticed, said where, made again or brought back; the end is the same, byte for byte."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from paper import config, plan, store
from tests.faults.harm import cut, flip
from tests.faults.small import TARGETS, Small, kill
from tests.faults.test_kills import finish_and_compare, wait_for_checkpoint

pytestmark = pytest.mark.faults


def test_a_damaged_run_table_and_record_are_made_again(finished: Small, undisturbed: Small):
    table = finished.files("results/tiny/train/**/*.csv")[0]
    record = finished.files("results/tiny/measure/**/*.json")[0]
    cut(table)
    flip(record)
    done = finished.snakemake("-n", "mlp_depth", "toy")
    assert done.returncode == 0
    assert table.exists()  # a dry run tells, no more
    said = finish_and_compare(finished, undisturbed)
    for text in (done.stdout, said):
        assert f"{table.relative_to(finished.folder)}: expected the sha256" in text
        assert f"{record.relative_to(finished.folder).with_suffix('.csv')}: " in text
    assert said.count("It is deleted and made again.") == 2
    assert "rule train:" in said
    assert "rule measure:" in said


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_data_file_is_made_again(finished: Small, undisturbed: Small, damage: Callable[[Path], None]):
    path = finished.folder / "results/data/generated.pt"
    damage(path)
    damaged = path.read_bytes()
    for words in (["--lint"], []):  # nothing that reads it is planned
        assert finished.snakemake(*words).returncode == 0
        assert path.read_bytes() == damaged
    for result in finished.files("results/tiny/train/**/*.*"):
        result.unlink()
    told = finished.snakemake("-n", "mlp_depth", "toy")
    assert told.returncode == 0
    assert "results/data/generated.pt: expected the sha256" in told.stdout
    assert path.read_bytes() == damaged  # a dry run tells, no more
    said = finish_and_compare(finished, undisturbed)
    assert "results/data/generated.pt: expected the sha256" in said
    assert said.count("It is deleted and made again.") == 1
    assert "rule data:" in said


def test_a_data_file_damaged_while_jobs_run_is_named_and_made_again_by_the_next(finished: Small, undisturbed: Small):
    """The jobs that read it fail, none trains on it."""
    path = finished.folder / "results/data/generated.pt"
    for result in finished.files("results/tiny/train/**/*.*"):
        result.unlink()
    finished.edit("workflow/rules/train.smk", '"python -m', '"truncate -s 999 {input.data}; python -m')
    done = finished.snakemake("--keep-going", *TARGETS)
    assert done.returncode == 1
    assert "error: results/data/generated.pt: expected the sha256" in done.stdout
    assert "Delete the file and run again. Snakemake does so by itself when it starts" in done.stdout
    assert path.stat().st_size == 999
    assert finished.files("results/tiny/train/**/*.*") == []
    finished.edit("workflow/rules/train.smk", "truncate -s 999 {input.data}; ", "")
    finish_and_compare(finished, undisturbed)


def test_a_damaged_checkpoint_is_not_used(fresh: Small, undisturbed: Small):
    snakemake = fresh.begin()
    wait_for_checkpoint(fresh)
    kill(snakemake.pid, group=True)
    snakemake.wait(60)
    for path in fresh.files("checkpoints/**/[!.]*.pt"):
        flip(path)
    finish_and_compare(fresh, undisturbed)
    logs = "".join(path.read_text() for path in fresh.files("logs/tiny/train/**/*.log"))
    assert "cannot be used (its digest is wrong); starting anew" in logs


@pytest.mark.parametrize(("suffix", "damage"), [(".csv", flip), (".json", cut)])
def test_damaged_evidence_of_the_paper_stops_the_run(finished: Small, suffix: str, damage: Callable[[Path], None]):
    """It is not retrained, and the way to bring it back is said; then it counts again."""
    given = config.load(finished.folder / "config.yaml")
    schema = finished.folder / "workflow/schemas/config.schema.yaml"
    spec = next(
        spec
        for spec in plan.runs(config.check({**given, "scale": "paper"}, schema)).values()
        if spec["stage"] == "train"
    )
    path = finished.folder / "results/paper" / f"{plan.key(spec)}.csv"
    store.write_result(path, pd.DataFrame({"seed": [0], "epoch": [0]}), spec, {"seconds": 1.0})
    cell = f"train {plan.key(spec).removeprefix('train/').rpartition('-')[0]}"
    assert cell not in finished.due("mlp_depth", scale="paper")
    whole = path.with_suffix(suffix).read_bytes()
    damage(path.with_suffix(suffix))
    stem = path.relative_to(finished.folder).with_suffix("")
    for words in (["-n"], []):
        done = finished.snakemake(*words, "mlp_depth", scale="paper")
        assert done.returncode == 1
        assert f"{stem}.csv: " in done.stdout
        assert f"git restore '{stem}.*'" in done.stdout
        assert "Traceback" not in done.stdout
    path.with_suffix(suffix).write_bytes(whole)
    assert json.loads(path.with_suffix(".json").read_text())["seconds"] == 1.0
    assert cell not in finished.due("mlp_depth", scale="paper")
