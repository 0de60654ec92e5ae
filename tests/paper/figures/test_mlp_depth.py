"""Figure of MLPs by depth: three panels, every method, and tables with little in them."""

import pytest

from paper.figures import curves, mlp_depth
from tests.paper.drawing import drawn
from tests.paper.trained_tables import METHODS, cell, cells, labels, mlp, table


@pytest.mark.parametrize(
    "runs",
    [
        cells([mlp(2)], seeds=(0,), epochs=3),
        cells([mlp(1), mlp(2)], ["pathcond"]),
        [cell(mlp(2), method, speed=0.0) for method in METHODS],
        [cell(mlp(2), method, diverged=[0, 1, 2]) for method in METHODS],
    ],
)
def test_it_draws(runs):
    drawn(mlp_depth.plot, table(runs))


def test_panels():
    runs = cells(map(mlp, range(2, 5))) + [cell(mlp(3), "baseline", 1e-1)]
    figure = drawn(mlp_depth.plot, table(runs))
    left, middle, right = figure.axes
    assert labels(figure.legends[0]) == ["Baseline", "ENorm", "PathCond"]
    assert [text.get_text()[-1] for text in left.get_xticklabels()] == ["2", "3", "4"]
    assert left.get_title() == "MLPs by depth, lr 0.001"
    assert (middle.get_title(), right.get_title()) == ("Train accuracy, 3 hidden layers", "Train loss, 3 hidden layers")
    assert [len(axes.lines) for axes in (middle, right)] == [3, 3]
    assert right.get_yscale() == "log"
    assert mlp_depth.PAPER.endswith(".")


def test_open_cells_are_explained():
    figure = drawn(mlp_depth.plot, table([cell(mlp(3), "baseline", speed=0.01), cell(mlp(3), "pathcond")]))
    assert labels(figure.legends[0]) == ["Baseline", "PathCond", curves.END, curves.OPEN]


def test_counts_are_explained_where_some_are_drawn():
    figure = drawn(mlp_depth.plot, table([cell(mlp(3), "baseline", speed=0.064)]))
    assert [text.get_text() for text in figure.axes[0].texts] == ["1/3"]
    assert labels(figure.legends[0])[-1] == curves.OPEN + curves.SOME
