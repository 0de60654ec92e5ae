"""All experiments: settings, figures, captions, claims; and a new experiment needs only a new file."""

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from pydantic import ValidationError

from paper import aggregate, plotting
from paper.experiments import EXPERIMENTS
from paper.experiments.base import Experiment
from paper.methods import METHODS, Method
from paper.settings import plain
from paper.verdicts import judged
from tests.paper.experiments.tables import CPU, PAPER, ROOT, blocks, eights, settings, small
from tests.paper.experiments.trained_tables import CIFAR_NV, cell

EVERY = pytest.mark.parametrize("name", EXPERIMENTS)


def run(program, folder=ROOT / "src"):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)


def test_the_paper_s_order():
    names = list(EXPERIMENTS)
    assert names[:6] == ["toy", "mlp_depth", "cifar_nv", "regimes", "autoencoder", "timing"]
    assert names[-7:] == ["causes", "conditioning", "controls", "optimisers", "practice", "quantisation", "tuned"]
    assert len(names) == 23


def test_importing_experiments_is_light():
    heavy = {"torch", "matplotlib", "seaborn", "scipy", "pandas", "numpy"}
    done = run(f"import sys, paper.experiments; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_measurements_need_no_pydantic():
    part = {**plain(settings("toy")), "steps": 3}
    done = run(
        "import sys; sys.modules['pydantic'] = None\n"
        "import torch; from paper.experiments import EXPERIMENTS, measured\n"
        f"print(len(measured({{'experiment': 'toy', 'part': 'all', 'settings': {part}}}, torch.device('cpu'))))\n"
        "EXPERIMENTS['toy'].settings.model_validate({})"
    )
    assert done.stdout == f"{4 * 3 * 4}\n", done.stderr
    assert "expected pydantic to validate them" in done.stderr


def test_a_new_file_is_enough(tmp_path):
    shutil.copytree(ROOT / "src" / "paper", tmp_path / "paper", ignore=shutil.ignore_patterns("__pycache__"))
    new = tmp_path / "paper" / "experiments" / "another.py"
    shutil.copy(tmp_path / "paper" / "experiments" / "toy.py", new)
    new.write_text(new.read_text().replace('name="toy"', 'name="another"').replace('"Figure 1"', '"Figure 1b"'))
    listed = "from paper.experiments import EXPERIMENTS; print(list(EXPERIMENTS)[:2])"
    assert run(listed, tmp_path).stdout == "['toy', 'another']\n"
    new.write_text("x = 1\n")
    assert "another.py: expected EXPERIMENT, an Experiment named 'another', got None" in run(listed, tmp_path).stderr


def test_what_is_incomplete_is_refused():
    toy = EXPERIMENTS["toy"]
    given = {"name": "x", "title": "", "where": "ours", "caption": "", "settings": toy.settings, "plot": toy.plot}
    with pytest.raises(ValueError, match="expected claims, got none"):
        Experiment(**given, claims=(), measure=toy.measure)
    with pytest.raises(ValueError, match="expected either measure or grids"):
        Experiment(**given, claims=toy.claims)
    with pytest.raises(TypeError, match="label"):
        Method(rescale=True)
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    assert len({(method.colour, method.marker) for method in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize("preset", ["paper", "preview", "tiny"])
@EVERY
def test_settings_are_those_of_the_configuration_and_closed(name, preset):
    block = blocks(preset)[name]
    found = plain(settings(name, preset))
    assert set(found) == set(block)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        EXPERIMENTS[name].settings.model_validate({**block, "colour": "red"})
    assert EXPERIMENTS[name].settings.model_validate(found) == settings(name, preset)
    assert json.loads(json.dumps(found)) == found
    assert "{" not in EXPERIMENTS[name].described(found)


@EVERY
def test_figure(name):
    table = small(name)
    before = table.copy()
    with plotting.theme(8.0):
        figure = EXPERIMENTS[name].plot(table)
        plotting.stamp(figure, "preset: tiny")
        figure.savefig(io.BytesIO(), format="png")
    pd.testing.assert_frame_equal(table, before)
    assert pyplot.get_fignums() == []
    assert figure.get_supxlabel().endswith("preset: tiny")
    drawn = [axes for axes in figure.axes if axes.get_visible() and axes.axison]
    if len(drawn) > 1 and name != "criteria":  # whose lower row belongs to the upper
        assert [axes.get_title(loc="left")[9:10] for axes in drawn] == list("abcdefghijkl"[: len(drawn)])
    for axes in drawn:
        assert axes.get_xlabel() or axes.get_xticklabels() or axes.get_shared_x_axes()


@EVERY
def test_claims_are_judged_from_its_table(name):
    experiment = EXPERIMENTS[name]
    found = [judged(claim, name, small(name), "paper", "t.csv") for claim in experiment.claims]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(claim["ours"] and claim["verdict"] for claim in found)
    assert [judged(claim, name, small(name), "tiny", "t.csv")["ours"] for claim in experiment.claims] == [
        claim["ours"] for claim in found
    ]


@EVERY
def test_a_row_is_identified_by_its_keys(name):
    experiment = EXPERIMENTS[name]
    for _, part in [] if experiment.trained else experiment.all_parts(settings(name)):
        if "dataset" not in part:
            table = experiment.measure(part, CPU)
            within = [column for column in ("seed", "repeat") if column in table]
            assert not table.duplicated([*experiment.keys, *within]).any()
            aggregate.check_counts(name, table, part, experiment.keys)
            break


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("mlp_depth", {"shown": 9}, r"shown: expected one of hidden_layers \[.*\], got 9"),
        ("mlp_depth", {"lrs": [1e-3, "1e-3"]}, "expected no entry twice, got 0.001"),
        ("mlp_depth", {"batch": True}, "expected a number, got true"),
        ("mlp_depth", {"images": 641}, "images and validation: expected at most 640 of generated, got 641"),
        ("mlp_depth", {"images": 33, "batch": 32}, "batch: expected no last batch of one image"),
        ("mlp_depth", {"optimiser": {"name": "muon"}}, "expected sgd or adam with enorm, got muon"),
        ("mlp_depth", {"optimiser": {"name": "sgd", "nesterov": True}}, "expected momentum above 0 with nesterov"),
        ("cifar_nv_lrs", {"longer": [{"lr": 0.5, "epochs": 9}]}, "longer: expected learning rates of lrs"),
        ("cifar_nv", {"model": {"kind": "cifar_nv", "width": 1.0, "image": 9}}, "model.image: expected at most 8"),
        ("autoencoder", {"compressions": [99]}, "compressions: expected at most"),
        ("regimes", {"neurons": 2}, "neurons: expected at least one per layer"),
        ("theory", {"cases": {"odd": {"widths": [2, 2, 2], "biases": True}}}, "expected either a or variances"),
        ("toy", {"starts": [[-0.2, 1.0, 1.0]]}, "expected starts u, v, w with u > 0"),
        ("timing_depth", {"inputs": 7}, "inputs: expected 3 x s x s"),
    ],
)
def test_wrong_settings_are_refused(name, change, said):
    block = blocks("tiny")[name]
    with pytest.raises(ValidationError, match=said):
        EXPERIMENTS[name].settings.model_validate({**block, **change})


def test_any_network_can_be_trained():
    block = {**blocks("tiny")["mlp_depth"], "model": {"kind": "resnet18_c", "width": 0.1, "image": 8}}
    given = {name: value for name, value in block.items() if name not in ("hidden_layers", "shown")}
    grids = list(EXPERIMENTS["mlp_depth"].grids(EXPERIMENTS["mlp_depth"].settings.model_validate(given)))
    assert [grid["network"] for grid in grids] == ["resnet18_c"]


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_texts_are_our_own():
    printed = eights(PAPER.read_text())
    assert len(printed) > 5000
    for name, experiment in EXPERIMENTS.items():
        assert not eights(experiment.caption) & printed, name
        for claim in experiment.claims:
            assert not eights(f"{claim.text} . {claim.paper} . {claim.rule}") & printed, claim.id


def test_a_run_of_one_seed_and_of_several_make_one_table():
    together = aggregate.trained([cell(CIFAR_NV, seeds=(0, 1, 2))], {"smoothing": 0.2}, by_seed=True)
    apart = aggregate.trained([cell(CIFAR_NV, seeds=(seed,)) for seed in (0, 1, 2)], {"smoothing": 0.2}, by_seed=True)
    pd.testing.assert_frame_equal(together, apart)


def test_a_lost_class_is_marked():
    runs = [cell(CIFAR_NV, method, speed=0.3) for method in ("baseline", "pathcond")]
    for table, _ in runs:
        stalled = table["seed"] == 2
        table.loc[stalled, "train_accuracy"] = np.minimum(table.loc[stalled, "train_accuracy"], 0.9)
    table = aggregate.trained(runs, {}, by_seed=True)
    seeds = table[table["panel"] == "seed"]
    assert set(seeds.loc[seeds["lost"], "seed"]) == {2}
    assert set(seeds.loc[~seeds["lost"], "seed"]) == {0, 1}
    assert not table.loc[table["panel"] == "curve", "lost"].any()
