"""All experiments: settings, figures, captions, claims; and a new experiment needs only a new file."""

import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from pydantic import ValidationError

from paper import aggregate, plotting, verdicts, workflow
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS
from paper.runs import training_specs
from paper.settings import plain
from paper.verdicts import judged
from tests.paper.experiments.tables import CIFAR_NV, ROOT, blocks, cell, runs, settings, small

EVERY = pytest.mark.parametrize("name", EXPERIMENTS)


def test_importing_experiments_is_light():
    heavy = {"torch", "matplotlib", "seaborn", "scipy", "pandas", "numpy"}
    program = f"import sys, paper.experiments; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT / "src")
    assert done.stdout == "[]\n", done.stderr


@EVERY
def test_settings_are_those_of_the_configuration_and_closed(name):
    for preset in ("paper", "preview", "tiny"):
        block, found = blocks(preset)[name], plain(settings(name, preset))
        assert set(found) == set(block)
        assert EXPERIMENTS[name].settings.model_validate(found) == settings(name, preset)
        assert "{" not in EXPERIMENTS[name].described(found)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        EXPERIMENTS[name].settings.model_validate({**block, "colour": "red"})


@EVERY
@pytest.mark.xdist_group("golden")  # which measure the same tables, once per process
def test_figure_claims_and_keys(name):
    experiment, table = EXPERIMENTS[name], small(name)
    before = table.copy()
    with plotting.theme(8.0):
        figure = experiment.plot(table)
        plotting.stamp(figure, "preset: tiny")
        figure.savefig(io.BytesIO(), format="png")
    pd.testing.assert_frame_equal(table, before)
    assert pyplot.get_fignums() == []
    assert figure.get_supxlabel().endswith("preset: tiny")
    drawn = [axes for axes in figure.axes if axes.get_visible() and axes.axison]
    if len(drawn) > 1 and name != "criteria":  # whose lower row belongs to the upper
        assert [axes.get_title(loc="left")[9:10] for axes in drawn] == list("abcdefghijkl"[: len(drawn)])
    found = [judged(claim, name, table, "paper", "t.csv") for claim in experiment.claims]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(claim["ours"] and claim["verdict"] for claim in found)
    _, part = experiment.all_parts(settings(name))[0]
    if not experiment.trained and "dataset" not in part:
        rows = runs(name)[0][0]
        assert not rows.duplicated([*experiment.keys, *({"seed", "repeat"} & set(rows))]).any()
        aggregate.check_counts(name, rows, part, experiment.keys)


def test_more_seeds_at_some_depths():
    more = [{"methods": ["baseline"], "seeds": [5], "hidden_layers": [2, 9]}]
    grids = EXPERIMENTS["mlp_depth"].settings.model_validate({**blocks("tiny")["mlp_depth"], "more_seeds": more})
    found = {(s["network"], s["method"]) for g in EXPERIMENTS["mlp_depth"].grids(grids)
             for s in training_specs(g, "tiny") if s["seed"] == 5}  # fmt: skip
    assert found == {("mlp_2x16", "baseline")}


def test_more_seeds_of_some_methods_are_trained_and_judged_but_not_drawn():
    block = {**blocks("tiny")["cifar_nv"], "more_seeds": [{"methods": ["pathcond"], "seeds": [1, 7]}]}
    others = {"methods": ["baseline", "enorm"], "seeds": [7, 8]}
    assert "2 seeds" in workflow.note("tiny", block)
    assert "3 seeds" in workflow.note("tiny", {**block, "more_seeds": [*block["more_seeds"], others]})
    (grid,) = EXPERIMENTS["cifar_nv"].grids(EXPERIMENTS["cifar_nv"].settings.model_validate(block))
    seeds = {}
    for spec in training_specs(grid, "tiny"):
        seeds.setdefault(spec["method"], []).append(spec["seed"])
    assert seeds == {"baseline": [0, 1], "enorm": [0, 1], "pathcond": [0, 1, 7]}
    given = [cell(CIFAR_NV, method, seeds=tuple(found)) for method, found in seeds.items()]
    table = EXPERIMENTS["cifar_nv"].table(given, {"smoothing": 0.2})
    with plotting.theme(8.0):
        drawn, without = (EXPERIMENTS["cifar_nv"].plot(rows) for rows in (table, table[table["seed"] != 7]))
    assert [len(axes.lines) for axes in drawn.axes] == [len(axes.lines) for axes in without.axes] == [9, 9, 9]
    assert verdicts.of(verdicts.runs(table), "pathcond")["seed"].tolist() == [0, 1, 7]


def test_runs_of_cifar_nv_all_are_told_apart_by_starts_and_precision():
    kinds = {"authors": {"seeding": "torch"}, "other_starts": {}, "tf32": {"precision": "tf32"}}
    given = [
        (rows, {**provenance, "spec": {**provenance["spec"], **kind}})
        for speed, kind in zip((0.1, 0.2, 0.3), kinds.values(), strict=True)
        for rows, provenance in [cell(CIFAR_NV, seeds=(0,), speed=speed)]
    ]
    table = verdicts.runs(EXPERIMENTS["cifar_nv_all"].table(given, {**kinds, "tf32": None}))
    assert table["variant"].tolist() == ["authors", "other_starts"]
    table = verdicts.runs(EXPERIMENTS["cifar_nv_all"].table(given, kinds)).set_index("variant")
    assert (table.loc[["authors", "other_starts", "tf32"], "best_train_loss"].diff().dropna() < 0).all()


def test_seeds_make_one_table_in_which_a_lost_class_is_marked():
    together, apart = [cell(CIFAR_NV, speed=0.3)], [cell(CIFAR_NV, seeds=(seed,), speed=0.3) for seed in (0, 1, 2)]
    for table, _ in (*together, apart[2]):
        stalled = table["seed"] == 2
        table.loc[stalled, "train_accuracy"] = np.minimum(table.loc[stalled, "train_accuracy"], 0.9)
    table = aggregate.trained(together, {"smoothing": 0.2}, by_seed=True)
    pd.testing.assert_frame_equal(table, aggregate.trained(apart, {"smoothing": 0.2}, by_seed=True))
    seeds = table[table["panel"] == "seed"]
    assert set(seeds.loc[seeds["lost"], "seed"]) == {2}
    assert set(seeds.loc[~seeds["lost"], "seed"]) == {0, 1}
    assert not table.loc[table["panel"] == "curve", "lost"].any()
    apart[1] = apart[1][0].drop(columns="train_loss"), apart[1][1]
    with pytest.raises(PaperError, match="expected runs with the same columns, got some without train_loss"):
        aggregate.trained(apart, {})
