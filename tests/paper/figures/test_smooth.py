"""Smooth activations: graphs on the left, curves by activation and initialisation on the right, ReLU in words."""

import pandas as pd
import pytest

from paper.figures import smooth, style
from tests.paper.drawing import drawn


def _table(activations=("gelu", "silu", "relu"), deviation=0.3):
    rows = [
        {
            "activation": activation, "initialisation": initialisation, "hidden_layers": depth, "n": 3,
            "max_u_mean": 3.0, "error_mean": value, "error_sd": deviation * value,
        }
        for activation in activations for initialisation in ("default", "he") for depth in (1, 4, 8)
        for value in [2e-15 if activation == "relu" else 0.2 if initialisation == "he" else 0.2 / 10 ** (depth / 3)]
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("table", [_table(), _table(("silu",), float("nan")), _table(deviation=2.0)])
def test_it_draws(table):
    drawn(smooth.plot, table)


def test_panels():
    with style.look(8.0):
        left, right = smooth.plot(_table()).axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["GELU", "SiLU", "ReLU"]
    assert len({line.get_marker() for line in left.lines}) == 3, "told apart without colours"
    assert len([line for line in right.lines if len(line.get_xdata()) == 3]) == 4
    assert right.get_yscale() == "log"
    assert right.get_ylim()[0] > 1e-6  # the rounding of ReLU does not stretch the axis
    assert any("ReLU: at most 2e-15" in text.get_text() for text in right.texts)


@pytest.mark.parametrize(("name", "at_one"), [("gelu", 0.8413447), ("silu", 0.7310586), ("relu", 1.0)])
def test_graphs(name, at_one):
    function = smooth.ACTIVATIONS[name][3]
    assert function(1.0) == pytest.approx(at_one, abs=1e-7)
    assert function(0.0) == 0.0
