"""Every number recorded before results became one file per run is still there, to the last digit."""

import csv
import hashlib
from pathlib import Path

from paper import config, results, runs
from paper import plan as plans

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "results/paper"
# Of the old files: old key, seed or part, sha256 of those lines, new key.
ROWS = list(csv.DictReader((ROOT / "tests/recorded_numbers.csv").read_text().splitlines()))


def test_every_old_number_is_there_or_named_as_recorded_twice():
    assert len({row["old_key"] for row in ROWS}) == 278
    changed = []
    for row in ROWS:
        kept = not row["new_key"].startswith("not kept, see ")
        path = RECORDED / f"{row['new_key'].removeprefix('not kept, see ')}.csv"
        same = hashlib.sha256(path.read_bytes()).hexdigest()[:20] == row["sha256"]
        if same != kept:
            changed.append(row)
    assert changed == []


def test_what_was_recorded_twice_is_kept_once():
    """Seeds 0 to 2 of the MLPs at lr 1e-3: the batch of ten seeds is kept."""
    twice = [row for row in ROWS if row["new_key"].startswith("not kept")]
    assert len(twice) == 63
    for row in twice:
        assert "/mlp_" in row["old_key"]
        assert "-lr0.001-" in row["old_key"]
    kept = {row["old_key"] for row in ROWS if row["new_key"] in {r["new_key"].split()[-1] for r in twice}}
    assert all(sum(r["old_key"] == key for r in ROWS) == 10 for key in kept)


def test_every_run_asked_for_is_recorded_and_every_recorded_run_has_a_reason():
    """A recorded run is one of the experiments or of workflow/queue.yaml."""
    chosen = config.read(ROOT, "paper")
    plan = plans.plan(chosen)
    assert [key for key, spec in plan.specs.items() if results.problem(RECORDED / f"{key}.csv", spec)] == []
    grids = config.read_queue(ROOT, chosen)
    queue = {runs.key(spec) for grid in grids for spec in runs.training_specs(grid, "paper", chosen.sweeps)}
    recorded = {path.relative_to(RECORDED).with_suffix("").as_posix() for path in RECORDED.glob("*/*/**/*.csv")}
    assert {key for key in recorded if key.startswith(("train/", "measure/"))} <= set(plan.specs) | queue
