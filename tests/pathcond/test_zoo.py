"""A small part of the zoo (``tests/zoo.py``), quick enough for every run of the tests."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathcond.rules import TABLE

pytest.importorskip("timm")
from tests import zoo

MODELS = [("torchvision", "squeezenet1_1"), ("torchvision", "resnet18"), ("timm", "tinynet_e")]


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_model_keeps_its_function(family: str, name: str) -> None:
    row = zoo.check(family, name)
    assert row.status == "ok", row.note
    assert row.moved > 0


@pytest.mark.parametrize("check", [True, False])  # by rescale_ itself, and by the comparison in float64
def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    monkeypatch.setitem(TABLE, F.hardswish, TABLE[F.relu])
    monkeypatch.setattr(zoo.pathcond, "rescale_", partial(zoo.pathcond.rescale_, check=check))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 2, 3))
    row = zoo.check("torchvision", "hardswish", lambda family, name: (model, torch.randn(4, 3, 8, 8)))
    assert row.status == "FAIL"
    assert check or min(row.eval_error, row.train_error) > 1e-3
    assert "changed by" in row.note
