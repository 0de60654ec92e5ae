"""Figure of CIFAR-NV by learning rate: a row a rate, each with its own epochs."""

from paper.figures import cifar_nv_lrs
from tests.paper.drawing import drawn
from tests.paper.trained_tables import CIFAR_NV, cells, table


def test_a_row_a_rate():
    runs = cells([CIFAR_NV], lrs=(1e-2,)) + cells([CIFAR_NV], lrs=(1e-4,), epochs=60)
    figure = drawn(cifar_nv_lrs.plot, table(runs, smoothing=0.2))
    assert len(figure.axes) == 6
    assert [figure.axes[number].get_title() for number in (1, 4)] == ["lr 0.01", "lr 0.0001"]
    assert [axes.get_xlim()[1] for axes in figure.axes] == [40] * 3 + [60] * 3
    assert [axes.get_xlabel() for axes in figure.axes] == [""] * 3 + ["epoch"] * 3
    assert cifar_nv_lrs.PAPER.endswith(".")


def test_one_rate_and_one_method():
    figure = drawn(cifar_nv_lrs.plot, table(cells([CIFAR_NV], ["pathcond"], seeds=(0,), epochs=2)))
    assert len(figure.axes) == 3
