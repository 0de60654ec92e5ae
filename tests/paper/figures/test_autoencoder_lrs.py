"""Figure of autoencoders by learning rate: a column a rate."""

from paper.figures import autoencoder_lrs
from tests.paper.drawing import drawn
from tests.paper.trained_tables import autoencoder as network
from tests.paper.trained_tables import cell, cells, table


def test_a_column_a_rate():
    runs = cells([network(1), network(2)], lrs=(0.1, 1e-2, 1e-3))
    figure = drawn(autoencoder_lrs.plot, table(runs))
    assert [axes.get_title() for axes in figure.axes[:3]] == ["lr 0.1", "lr 0.01", "lr 0.001"]
    assert [axes.get_xlabel() for axes in figure.axes] == [""] * 3 + ["compression factor"] * 3
    assert [len(axes.texts) for axes in figure.axes[3:]] == [1, 0, 0]
    assert autoencoder_lrs.PAPER.endswith(".")


def test_divergence():
    runs = [cell(network(2), method, 0.1, diverged=[0, 1, 2]) for method in ("baseline", "pathcond")]
    figure = drawn(autoencoder_lrs.plot, table(runs))
    assert [text.get_text() for text in figure.axes[0].texts] == ["3/3", "3/3"]
