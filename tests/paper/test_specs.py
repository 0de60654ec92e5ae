"""Specs as written for a machine without Snakemake."""

import json
import sys

import pytest

from paper import specs
from paper.plan import key


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
