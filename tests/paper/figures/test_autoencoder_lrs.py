"""Figure of autoencoders by learning rate: a panel a rate, one scale for all, and the start once."""

import pytest

from paper.figures import autoencoder_lrs
from tests.paper.drawing import drawn
from tests.paper.trained_tables import autoencoder as network
from tests.paper.trained_tables import cell, cells, table


def test_a_panel_a_rate_and_one_for_the_start():
    runs = cells([network(1), network(2)], lrs=(0.1, 1e-2, 1e-3))
    figure = drawn(autoencoder_lrs.plot, table(runs))
    titles = [*(f"lr {lr}" for lr in ("0.1", "0.01", "0.001")), "rescaling at the start"]
    assert [axes.get_title() for axes in figure.axes] == titles
    assert [axes.get_xlabel() for axes in figure.axes] == ["compression factor"] * 4
    assert [len(axes.texts) for axes in figure.axes] == [0, 0, 0, 1]
    assert len(figure.axes[3].containers) == 1, "the start is drawn once"
    assert autoencoder_lrs.PAPER.endswith(".")


@pytest.mark.parametrize(("speed", "scale"), [(0.14, "log"), (0.1, "linear")])
def test_losses_of_all_rates_are_on_one_kind_of_axis(speed, scale):
    """The losses of the first rate may span a factor of three or more, those of the second do not."""
    runs = [cell(network(1), lr=0.1, speed=0.1), cell(network(2), lr=0.1, speed=speed)]
    runs += [cell(network(1), lr=0.01, speed=0.1), cell(network(2), lr=0.01, speed=0.1)]
    *trained, _ = drawn(autoencoder_lrs.plot, table(runs)).axes
    assert [axes.get_yscale() for axes in trained] == [scale] * 2
    assert trained[0].get_ylabel() == ("final train loss (log scale)" if scale == "log" else "final train loss")
    for axes in trained:
        low, high = axes.get_ylim()
        assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) > 1


def test_divergence():
    runs = [cell(network(2), method, 0.1, diverged=[0, 1, 2]) for method in ("baseline", "pathcond")]
    figure = drawn(autoencoder_lrs.plot, table(runs))
    assert [text.get_text() for text in figure.axes[0].texts] == ["3/3", "3/3"]
