"""Transformers (``tests/transformers_zoo.py``): what is recorded of every model, and graphs at published sizes."""

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


@pytest.mark.parametrize("name", ["opt_125m"])
def test_the_graph_of_a_published_size_needs_no_weights(name: str) -> None:
    row = zoo.check(name, "meta")
    assert row.free == row.symmetries
    (kept,) = (row for row in zoo.recorded() if (row.model, row.device) == (name, "meta"))
    assert (row.parameters, row.free) == (kept.parameters, kept.free)


def test_the_cache_of_a_model_is_as_it_was() -> None:
    model, x, _ = zoo.build("llama")
    assert model.config.use_cache
    zoo.pathcond.rescale_(model, x)
    assert model.config.use_cache
