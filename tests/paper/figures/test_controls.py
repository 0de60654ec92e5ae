"""Figure of the controls: a panel a network, against the learning rate; the legend where there is room."""

import pytest

from paper.figures import controls, curves
from tests.paper.drawing import drawn
from tests.paper.trained_tables import autoencoder, cell, cells, labels, mlp, table

METHODS = ("baseline", "pathcond", "rows", "columns", "exact", "optimum")
LRS = (1e-3, 1e-1)
NAMES = ["Baseline", "PathCond", "rows alone", "columns alone", "exact BatchNorm", "optimum"]


@pytest.mark.parametrize(("depths", "factors"), [((), (4,)), ((2,), ()), ((2,), (4,)), ((3, 6), (4,))])
def test_a_panel_a_network(depths, factors):
    runs = cells(map(mlp, depths), METHODS, LRS, seeds=(0,)) + cells(map(autoencoder, factors), METHODS[:2], LRS)
    figure = drawn(controls.plot, table(runs))
    titles = [f"MLP, {depth} hidden layers" for depth in depths] + [f"Autoencoder, compression {c}" for c in factors]
    assert [axes.get_title() for axes in figure.axes if axes.axison] == titles
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    assert [labels(legend)[: len(NAMES) if depths else 2] for legend in legends] == [NAMES if depths else NAMES[:2]]
    for axes in (axes for axes in figure.axes if axes.axison):
        assert axes.get_xscale() == "log"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["0.001", "0.1"]
    assert "side by side" in figure.get_supxlabel()
    assert controls.PAPER.endswith(".")


def test_gaps():
    runs = [cell(mlp(3), speed=0.01), cell(autoencoder(4), lr=1.0, diverged=[1]), cell(autoencoder(4))]
    figure = drawn(controls.plot, table(runs))
    first, second = figure.axes
    assert any(line.get_markerfacecolor() == "white" for line in first.lines)
    assert [text.get_text() for text in second.texts] == ["1/3"]
    assert labels(figure.legends[0]) == ["Baseline", curves.END, curves.OPEN, curves.CROSS]
