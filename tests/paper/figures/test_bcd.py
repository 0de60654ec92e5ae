"""Convergence figure: every curve is there, labelled, and survives one seed and few sweeps."""

import pandas as pd
import pytest

from paper.figures import bcd, style
from tests.paper.drawing import drawn


def _table(sweeps=20, deviation=0.01, networks=tuple(style.NETWORKS)):
    rows = [
        {
            "network": network, "pooling": pooling, "sweep": k, "n": 3,
            "normalised_mean": 1 - k / sweeps, "normalised_sd": deviation,
            "to_optimum_mean": 1 - k / sweeps, "to_optimum_sd": deviation,
            "update_mean": 0.5 / k if k else float("nan"), "update_sd": deviation if k else float("nan"),
        }
        for network in networks for pooling in ("plain", "exact") for k in range(sweeps + 1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("table", [_table(), _table(1, float("nan"), ("mlp",)), _table(100, 5.0)])
def test_it_draws(table):
    drawn(bcd.plot, table)


def test_panels():
    with style.look(8.0):
        left, right = bcd.plot(_table()).axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["MLP", "CIFAR-NV", "ResNet-18-C", "ResNet-18-C, held", "pools as they are", "exact pools"]
    curves = [line for line in right.lines if len(line.get_xdata()) == 20]
    assert len(curves) == 8
    assert len({(line.get_marker(), line.get_linestyle()) for line in curves}) == 8, "told apart without colours"
    assert {line.get_linestyle() for line in right.lines} == {"-", "--", ":"}
    assert right.get_yscale() == "log"
    assert left.get_title()
    assert "u = 2" in right.get_title()
    assert right.get_xlabel() == "sweep"
    assert bcd.PAPER.endswith(".")
