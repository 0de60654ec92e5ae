"""Panels of trained networks: which rows are shown, what is marked, and that no run is dropped."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from paper import plotting
from paper.methods import METHODS
from tests.paper.experiments.tables import autoencoder, cell, mlp, table


@pytest.fixture
def axes():
    with plotting.theme(8.0):
        yield plotting.panels(1, 1, plotting.COLUMN, 2.0)[1][0]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def of_marker(axes, marker):
    return [line for line in axes.lines if line.get_marker() == marker]


def test_a_missed_target_is_an_open_marker_above_the_end(axes):
    found = table([cell(mlp(2), "baseline", speed=0.01), cell(mlp(3), "baseline")])
    plotting.reach(axes, found, "parameters")
    (mark,) = [line for line in of_marker(axes, "o") if line.get_markerfacecolor() == "white"]
    assert mark.get_ydata()[0] == 40
    assert to_hex(mark.get_color()) == METHODS["baseline"].colour.lower()
    assert texts(axes) == []
    plotting.epochs_axis(axes, found)
    assert axes.get_ylim()[1] > 40 == max(axes.get_yticks())


@pytest.mark.parametrize(("diverged", "count"), [([1], "1/3"), ([0, 1, 2], "3/3")])
def test_divergence_is_marked_at_the_top(axes, diverged, count):
    found = table([cell(autoencoder(2), diverged=diverged), cell(autoencoder(4))])
    plotting.settled(axes, found, "compression", "final_train_loss")
    assert len(of_marker(axes, "x")) == 1
    assert texts(axes) == [count]
    assert np.isnan(axes.lines[0].get_ydata()[0])
    (seeds,) = [line for line in of_marker(axes, ".") if len(line.get_ydata())]
    assert np.isfinite(seeds.get_ydata()).sum() == 3 - len(diverged)
