"""Figure of MLPs with GELU: the panels of the one with ReLU."""

from paper.figures import mlp_depth_gelu
from tests.paper.drawing import drawn
from tests.paper.trained_tables import cells, mlp, table


def test_panels():
    figure = drawn(mlp_depth_gelu.plot, table(cells(map(mlp, (2, 3)))))
    assert [axes.get_ylabel() for axes in figure.axes] == ["epochs to target", "train accuracy (%)", "train loss"]
    assert "GELU" in mlp_depth_gelu.PAPER
