"""Results may change only together with their version: runs of the tiny preset against what they gave before."""

import json
import math

import pytest

from paper import config, results, runs
from paper import plan as plans
from paper.experiments import practice
from tests import golden

KEPT = json.loads(golden.FILE.read_text())
SAY = "raise the version ({where}) and run `python -m tests.golden`, so that kept results are not taken for new ones"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {name: (spec, sums) for name, spec, sums in golden.results(tmp_path_factory.mktemp("golden"))}


def close(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        # Loose enough for other processors and versions of torch, tight enough for any change of meaning.
        return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4)
    return a == b


@pytest.mark.xdist_group("golden")
@pytest.mark.parametrize("name", sorted(golden.specs()))
def test_results_are_those_of_their_version(made, name):
    assert name in KEPT, f"{name} is new: run `python -m tests.golden`"
    spec, sums = made[name]
    where = "TRAINING_VERSION in src/paper/runs.py" if spec["stage"] == "train" else "version of the experiment"
    kept = KEPT[name]
    assert spec["version"] == kept["version"], f"{name} has a new version: run `python -m tests.golden`"
    assert golden.digest(spec) == kept["digest"], f"{name} has new settings: run `python -m tests.golden`"
    differ = [column for column, value in kept["summary"].items() if not close(sums.get(column), value)]
    assert not differ, f"{name} has other results in {differ}: {SAY.format(where=where)}"
    assert set(sums) == set(kept["summary"])


def test_every_run_asked_for_is_recorded_and_every_recorded_run_has_a_reason():
    """A recorded run is one of the experiments or of workflow/queue.yaml."""
    assert set(KEPT) == set(golden.specs())
    chosen, recorded = config.read(golden.ROOT, "paper"), golden.ROOT / "results/paper"
    plan = plans.plan(chosen)
    assert [key for key, spec in plan.specs.items() if results.problem(recorded / f"{key}.csv", spec)] == []
    grids = list(config.read_queue(golden.ROOT, chosen))
    assert {grid["network"] for grid in grids if "schedule" in grid} <= set(practice.NETWORKS)
    queue = {runs.key(spec) for grid in grids for spec in runs.training_specs(grid, "paper", chosen.top.sweeps)}
    there = {path.relative_to(recorded).with_suffix("").as_posix() for path in recorded.glob("*/*/**/*.csv")}
    assert {key for key in there if key.startswith(("train/", "measure/"))} <= set(plan.specs) | queue
