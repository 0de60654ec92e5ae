"""A small part of the zoo (``tests/zoo.py``), quick enough for every run of the tests."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pathcond.rules import TABLE
from tests import zoo

MODELS = [
    ("torchvision", "squeezenet1_1"),
    ("torchvision", "resnet18"),
    ("torchvision", "mnasnet0_5"),
    ("torchvision", "shufflenet_v2_x0_5"),
    ("torchvision", "densenet121"),
    ("torchvision", "regnet_x_400mf"),
    ("torchvision", "mobilenet_v3_small"),
    ("torchvision", "googlenet"),
    ("torchvision", "efficientnet_b0"),
    ("timm", "semnasnet_075"),
]


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_model_keeps_its_function(family: str, name: str) -> None:
    row = zoo.check(family, name)
    assert row.status == "ok", row.note
    assert row.moved > 0


@pytest.mark.parametrize("check", [True, False])  # by rescale_ itself, and by the comparison in float64
def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    monkeypatch.setitem(TABLE, F.hardswish, TABLE[F.relu])
    monkeypatch.setattr(zoo.pathcond, "rescale_", partial(zoo.pathcond.rescale_, check=check))
    row = zoo.check("torchvision", "mobilenet_v3_small")
    assert row.status == "FAIL"
    assert check or min(row.eval_error, row.train_error) > 1e-3
    assert "changed by" in row.note


def test_a_model_that_cannot_be_recorded_counts_as_refused() -> None:
    class Branch(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) if input.sum() > 0 else input

    row = zoo.check("torchvision", "branch", lambda family, name: (Branch(3, 3), torch.ones(2, 3)))
    assert row.status == "refused"
    assert "control flow" in row.note


def test_names_lists_both_families() -> None:
    found = list(zoo.names())
    assert len(set(found)) == len(found)
    assert sum(family == "timm" for family, _ in found) == 100
    assert sum(family == "torchvision" for family, _ in found) >= 80
    assert list(zoo.names("timm", "dla34")) == [("timm", "dla34")]


def test_tables_name_every_model() -> None:
    rows = [
        zoo.Row("timm", "a", moved=3),
        zoo.Row("timm", "b", moved=1, status="FAIL", note="changed"),
        zoo.Row("timm", "c", status="refused"),
        zoo.Row("timm", "d", status="FAIL"),
    ]
    assert zoo.summary(rows) == [["timm", "4", "2", "1", "2"]]
    text = zoo.markdown(rows)
    assert all(f"| {row.model} |" in text for row in rows)
    assert "changed" in text


def test_a_run_resumes_where_time_was_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    order: list[str] = []
    clock = iter(range(10_000))
    monkeypatch.setattr(zoo, "check", lambda family, name: order.append(name) or zoo.Row(family, name))
    monkeypatch.setattr(zoo.time, "perf_counter", lambda: 60.0 * next(clock))
    table, kept = tmp_path / "zoo.md", ["--rows", str(tmp_path / "rows.json"), "--table", str(tmp_path / "zoo.md")]
    assert zoo.main(["--minutes", "0", *kept]) == 1  # nothing was checked
    assert zoo.main(["--minutes", "3", *kept]) == 0
    assert order == [name for _, name in zoo.in_order(3.0)][:3]
    assert f"{len(list(zoo.names())) - 3} models are missing" in capsys.readouterr().out
    assert not table.exists()
    assert zoo.main(kept) == 0
    assert sorted(order) == sorted(name for _, name in zoo.names())  # each once
    assert len(re.findall("^[|] (timm|torchvision) [|] .* ok [|]", table.read_text(), re.M)) == len(order)
    monkeypatch.setattr(zoo, "versions", lambda: "others")  # of the packages, so nothing is reused
    assert zoo.main(["--minutes", "3", *kept]) == 0
    assert order[:3] == order[-3:]
