"""Specs as written for a machine without Snakemake."""

import json
import sys
from pathlib import Path

import pytest

from paper import blocks, fit, methods, models, plan, specs
from paper.config import check, load
from paper.errors import PaperError
from paper.plan import key
from paper.train.start import start
from tests.paper.train.plain import MLP, cell

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"


@pytest.mark.parametrize(("items", "expected"), [((), None), (("bcd", "toy"), ("measure/bcd/", "measure/toy/"))])
def test_specs_of_some_items_alone(items, expected, tmp_path, monkeypatch):
    path = tmp_path / "specs.json"
    chosen = ["--items", *items] if items else []
    monkeypatch.setattr(sys, "argv", ["specs", "--scale", "tiny", *chosen, "--output", str(path)])
    specs.main()
    keys = {key(spec) for spec in json.loads(path.read_text())}
    everywhere = {name.split("/")[0] for name in keys}
    if expected is None:
        assert everywhere == {"measure", "train"}
    else:
        assert all(name.startswith(expected) for name in keys)
        assert {name.split("/")[1] for name in keys} == set(items)


@pytest.mark.parametrize("scale", plan.SCALES)
def test_every_spec_that_the_plan_makes_is_read(scale, tmp_path):
    runs = list(plan.runs(check({**load(ROOT / "config.yaml"), "scale": scale}, SCHEMA)).values())
    path = tmp_path / "specs.json"
    path.write_text(json.dumps(runs))
    read = [spec for stage in ("train", "measure") for spec in specs.read_specs([str(path)], stage)]
    assert sorted(map(key, read)) == sorted(map(key, runs))


def test_the_rules_know_what_the_code_knows():
    assert all(map(blocks.DATASET.right, fit.DATASETS))
    model = blocks.TRAINED.needed["model"]
    assert isinstance(model, blocks.Kinds)
    assert model.blocks.keys() == models.KINDS.keys()
    for method in methods.METHODS:
        assert not list(blocks.mistakes(methods.describe(method), blocks.TRAINED.needed["rescaling"]))


def test_the_rules_for_settings_have_the_keys_of_the_schema():
    items = load(SCHEMA)["$defs"]["scale"]["properties"]
    measured = {name for name, item in plan.ITEMS.items() if not item.trained}
    assert blocks.SETTINGS.keys() == measured
    for item in measured:
        wanted = set(items[item]["required"])
        if plan.ITEMS[item].by_network:
            wanted = wanted - {"networks"} | {"network", "model"}
        assert set(blocks.SETTINGS[item].needed) == wanted
        assert not blocks.SETTINGS[item].may


def test_an_unknown_part_of_the_scales_is_refused_before_training():
    with pytest.raises(PaperError, match="part: expected one of both, rows, columns, got 'x'"):
        start(cell(MLP, "pathcond", {"part": "x"}), 0)
