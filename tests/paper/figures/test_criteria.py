"""Criteria figure: a panel an example and one for the counterexample, with every minimum in its place."""

import numpy as np
import pandas as pd
import pytest

from paper.figures import criteria
from tests.paper.drawing import drawn


def _table(examples=("uv", "chain3"), seeds=(0, 1, 2)):
    tables = []
    for example in examples:
        names = [*criteria.CRITERIA, *(criteria.WEIGHTED if example == "uv" else [])]
        for name in names:
            for seed in seeds:
                x = np.linspace(-2.0, 2.0, 21)
                balanced = 0.1 + 0.2 * seed
                least = balanced + {"weighted_theta": -0.35, "weighted_gradient": 0.35}.get(name, 0.0)
                columns = {"example": example, "criterion": name, "seed": seed, "log_scale": x}
                columns |= {"value": np.cosh(x - least), "balanced": balanced, "minimiser": least}
                tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("table", [_table(), _table(("uv",), (7,)), _table(("uv", "chain3", "chain4"))])
def test_it_draws_and_leaves_no_trace(table):
    drawn(criteria.plot, table)


def test_panels():
    axes = drawn(criteria.plot, _table()).axes
    titles = ["$f = u v x$", "product of 3 numbers", r"$f = u v x$, norm $\sqrt{x^2 + 4 y^2}$"]
    assert [place.get_title() for place in axes] == titles
    assert axes[0].get_ylabel() == "criterion / its minimum"
    for place in axes:
        assert place.get_xlabel() == r"$\log\,\lambda$ from balance"
        assert place.get_yscale() == "log"
        assert place.get_xlim() == pytest.approx((-1.5, 1.5)), "as far as every orbit goes"
    assert criteria.PAPER.endswith(".")


@pytest.mark.parametrize(("panel", "expected"), [(0, [0.0] * 7), (1, [0.0] * 7), (2, [-0.35, 0.35])])
def test_minima_of_all_orbits_stand_below_the_curves(panel, expected):
    lines = drawn(criteria.plot, _table()).axes[panel].lines
    minima = [line for line in lines if line.get_marker() == "o"]
    curves = [line for line in lines if len(line.get_xdata()) == 21]
    assert len(curves) == len(minima) == len(expected)
    for line, least in zip(minima, expected, strict=True):
        np.testing.assert_allclose(line.get_xdata(), [least] * 3, atol=1e-12)
        assert max(line.get_ydata()) < 1.0
    for curve in curves:
        assert np.nanmin(curve.get_ydata()) >= 1.0


def test_legend():
    (legend,) = drawn(criteria.plot, _table()).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*(look.label for look in criteria.CRITERIA.values()), "minima of 3 orbits"]
    assert "PathCond" in labels
