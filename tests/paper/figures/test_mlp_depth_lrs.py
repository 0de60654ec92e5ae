"""Figure of MLPs by learning rate: a panel a rate, on one scale; the legend takes a free place."""

import pytest

from paper.figures import curves, mlp_depth_lrs
from tests.paper.drawing import drawn
from tests.paper.trained_tables import cell, cells, labels, mlp, table

LRS = (5e-4, 1e-3, 5e-3, 1e-2, 1e-1, 1.0, 2.0)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_a_panel_a_rate(count):
    runs = cells([mlp(2), mlp(3)], lrs=LRS[:count], seeds=(0,), epochs=25)
    figure = drawn(mlp_depth_lrs.plot, table(runs))
    used = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in used] == [f"lr {lr:g}" for lr in LRS[:count]]
    assert len({axes.get_ylim() for axes in used}) == 1
    assert {axes.get_xlabel() for axes in used} == {"parameters (millions)\nhidden layers"}
    assert not any(axes.axison for axes in figure.axes[count:])
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    assert [labels(legend)[:3] for legend in legends] == [["Baseline", "ENorm", "PathCond"]]


def test_open_cells():
    figure = drawn(mlp_depth_lrs.plot, table([cell(mlp(2), speed=0.01), cell(mlp(2), lr=0.1)]))
    left, right = figure.axes
    assert len(left.lines) > len(right.lines)
    assert left.get_yscale() == "log"
    assert labels(figure.legends[0]) == ["Baseline", curves.END, curves.OPEN]


def test_columns_are_evenly_apart():
    runs = cells([mlp(2), mlp(3)], lrs=LRS[:5]) + [cell(mlp(4), lr=LRS[0], speed=0.01)]
    first, second, third, *_ = drawn(mlp_depth_lrs.plot, table(runs)).axes
    left, middle, right = (axes.get_position() for axes in (first, second, third))
    assert middle.x0 - left.x1 == pytest.approx(right.x0 - middle.x1, abs=0.01)
