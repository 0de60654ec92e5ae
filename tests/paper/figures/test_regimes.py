"""Regimes figure: one curve a variance with its quartiles, on logarithmic axes."""

import numpy as np
import pandas as pd
import pytest

from paper.figures import regimes
from tests.paper.drawing import drawn


def _table(variances=(1e-3, 1e-2, 1e-1), alphas=(100.0, 0.1, 3.0)):
    rows = [
        {"variance": v, "alpha": a, "median": 1.0 / v / a, "low": 0.5 / v / a, "high": 2.0 / v / a, "n": 20}
        for v in variances for a in alphas
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("table", [_table(), _table((1.0,), (1.0, 2.0)), _table(tuple(range(1, 7)))])
def test_it_draws_and_leaves_no_trace(table):
    drawn(regimes.plot, table)


def test_panel():
    (axes,) = drawn(regimes.plot, _table()).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_title()
    assert r"\alpha" in axes.get_xlabel()
    assert r"\lambda" in axes.get_ylabel()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "variance 0.001", "variance 0.01", "variance 0.1",
    ]  # fmt: skip
    assert regimes.PAPER.endswith(".")


def test_curves_and_quartiles():
    (axes,) = drawn(regimes.plot, _table()).axes
    for line, variance in zip(axes.lines, (1e-3, 1e-2, 1e-1), strict=True):
        np.testing.assert_allclose(line.get_xdata(), [0.1, 3.0, 100.0])
        np.testing.assert_allclose(line.get_ydata(), 1.0 / variance / np.array([0.1, 3.0, 100.0]))
    edges = axes.collections[0].get_paths()[0].get_extents()
    assert (edges.ymin, edges.ymax) == pytest.approx((5.0, 20_000.0))
    assert len({line.get_color() for line in axes.lines}) == 3
