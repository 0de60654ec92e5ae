"""Transformers (``tests/transformers_zoo.py``): what is recorded of every model, and some measured again."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
from tests import transformers_zoo as zoo


def test_every_model_is_recorded_without_fault() -> None:
    rows = zoo.recorded()
    measured = {(row.model, row.device) for row in rows}
    assert {(name, "cpu") for name in zoo.ARCHITECTURES} | {(name, "meta") for name in zoo.REAL} <= measured
    assert {architecture for architecture, _ in zoo.REAL.values()} == set(zoo.ARCHITECTURES)
    assert {row.model: row.faults for row in rows if row.faults} == {}
    assert all(row.moved and row.float32_error is not None for row in rows if row.device != "meta")
    assert zoo.PAGE.read_text() == zoo.markdown(rows)


# Of a published size only the graph, which needs no weights.
@pytest.mark.parametrize(
    ("name", "device"), [("gpt2", "cpu"), ("mixtral", "cpu"), ("whisper", "cpu"), ("distilbert_base", "meta")]
)
def test_some_models_are_as_recorded(name: str, device: str) -> None:
    row = zoo.check(name, device)
    (kept,) = (row for row in zoo.recorded() if (row.model, row.device) == (name, device))
    assert row.faults == []
    assert row.free == row.symmetries
    assert (row.parameters, row.free) == (kept.parameters, kept.free)


def test_a_causal_model_is_as_recorded() -> None:
    row = zoo.check_causal("gemma2")
    assert row in zoo.recorded_causal()
    assert (row.change, row.dtype) == (0.0, "float64")
