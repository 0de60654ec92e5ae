"""Figure of autoencoders by compression: final losses above, PathCond's rescaling below."""

import pytest

from paper.figures import autoencoder, curves
from tests.paper.drawing import drawn
from tests.paper.trained_tables import autoencoder as network
from tests.paper.trained_tables import cell, cells, labels, table


@pytest.mark.parametrize(
    "runs",
    [
        cells([network(2)], seeds=(0,), epochs=2),
        cells([network(1), network(2)], ["baseline"]),
        [cell(network(2), method, diverged=[0, 1, 2]) for method in ("baseline", "pathcond")],
    ],
)
def test_it_draws(runs):
    drawn(autoencoder.plot, table(runs))


def test_panels():
    factors = (1, 2, 4, 7)
    runs = [run for c in factors for run in cells([network(c)], scale=0.3 * c)]
    figure = drawn(autoencoder.plot, table(runs))
    top, bottom = figure.axes
    assert labels(figure.legends[0]) == ["Baseline", "ENorm", "PathCond"]
    assert top.get_title() == "Final train loss, lr 0.001"
    assert [text.get_text() for text in bottom.texts] == ["the paper plots twice this"]
    assert figure.get_supxlabel() == f"{curves.SIDE}\nscale: tiny"
    scales = bottom.lines[0].get_ydata()
    assert scales == pytest.approx([0.33 * c for c in factors])
    assert [text.get_text() for text in bottom.get_xticklabels()] == ["1", "2", "4", "7"]
    assert autoencoder.PAPER.endswith(".")


def test_one_method_stands_at_its_ticks():
    figure = drawn(autoencoder.plot, table(cells([network(1), network(2)], ["pathcond"])))
    assert figure.get_supxlabel() == "scale: tiny"


def test_divergence_is_explained():
    figure = drawn(autoencoder.plot, table([cell(network(2), diverged=[0]), cell(network(2), "pathcond")]))
    assert labels(figure.legends[0]) == ["Baseline", "PathCond", curves.CROSS]
