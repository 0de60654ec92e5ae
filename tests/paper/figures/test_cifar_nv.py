"""Figure of CIFAR-NV: train loss, train accuracy, test accuracy."""

import pytest

from paper.figures import cifar_nv
from tests.paper.drawing import drawn
from tests.paper.trained_tables import CIFAR_NV, METHODS, cell, cells, labels, table


@pytest.mark.parametrize(
    "runs", [cells([CIFAR_NV], seeds=(0,), epochs=2), [cell(CIFAR_NV, m, diverged=[0, 1, 2]) for m in METHODS]]
)
def test_it_draws(runs):
    drawn(cifar_nv.plot, table(runs, smoothing=0.2))


def test_panels():
    figure = drawn(cifar_nv.plot, table(cells([CIFAR_NV]), smoothing=0.2))
    names = ["Train loss", "Train accuracy", "Test accuracy"]
    assert [axes.get_title() for axes in figure.axes] == [f"{name}, lr 0.001" for name in names]
    assert [len(axes.lines) for axes in figure.axes] == [3] * 3
    assert labels(figure.legends[0]) == ["Baseline", "ENorm", "PathCond"]
    assert cifar_nv.PAPER.endswith(".")
