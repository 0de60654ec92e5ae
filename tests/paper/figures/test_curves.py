"""Panels of trained networks: what is chosen, what is marked, and that nothing vanishes."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from paper.figures import curves, style
from tests.paper.trained_tables import CIFAR_NV, autoencoder, cell, cells, mlp, table


@pytest.fixture
def axes():
    with style.look(8.0):
        yield style.panels(1, 1, style.COLUMN, 2.0)[1][0]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def of_marker(axes, marker):
    return [line for line in axes.lines if line.get_marker() == marker]


def test_every_method_has_a_look_of_its_own():
    from paper.methods import METHODS

    assert set(style.METHODS) == set(METHODS)
    for looks in zip(*style.METHODS.values(), strict=True):
        assert len(set(looks)) == len(looks)


@pytest.mark.parametrize(("depths", "shown"), [([2, 3, 8], 3), ([1, 2], 2), ([2], 2), ([4, 5, 6], 5)])
def test_depth_shown(depths, shown):
    assert curves.shown_depth(table(cells(map(mlp, depths), ["baseline"], epochs=2))) == shown


@pytest.mark.parametrize(("lrs", "chosen"), [([1e-4, 1e-3, 1e-1], 1e-3), ([1e-1, 1e-2], 1e-2)])
def test_learning_rate_shown(lrs, chosen):
    assert set(curves.at_paper_lr(table(cells([mlp(2)], ["baseline"], lrs, epochs=2)))["lr"]) == {chosen}


def test_methods_keep_their_order():
    assert curves.methods(table(cells([mlp(2)], ["pathcond", "exact", "baseline"], epochs=2))) == [
        "baseline", "pathcond", "exact",
    ]  # fmt: skip


def test_epochs_to_target_are_means_with_deviations(axes):
    found = table(cells([mlp(2), mlp(3)], ["baseline"]))
    curves.reach(axes, found, "parameters")
    means = curves.panel(found, "cell").sort_values("parameters")["reached_mean"]
    assert axes.lines[0].get_ydata().tolist() == means.tolist()
    assert np.isfinite(means).all()
    assert texts(axes) == []
    assert not curves.open_cells(found)


def test_a_cell_that_no_seed_finishes_stands_open_at_its_limit(axes):
    found = table([cell(mlp(2), "baseline", speed=0.01), cell(mlp(3), "baseline")])
    curves.reach(axes, found, "parameters")
    (mark,) = [line for line in of_marker(axes, "o") if line.get_markerfacecolor() == "white"]
    assert mark.get_ydata()[0] == 40
    assert to_hex(mark.get_color()) == style.METHODS["baseline"][0].lower()
    assert len(of_marker(axes, r"$\uparrow$")) == 1
    assert texts(axes) == []
    curves.epochs_axis(axes, found)
    assert axes.get_ylim()[1] > 40
    assert max(axes.get_yticks()) == 40


def test_a_cell_that_some_seeds_finish_says_how_many_and_shows_them(axes):
    found = table([cell(mlp(2), "baseline", speed=0.064)])
    met = curves.panel(found, "run")["reached"].dropna().tolist()
    assert len(met) == 1
    curves.reach(axes, found, "parameters")
    assert texts(axes) == ["1/3"]
    (seeds,) = [line for line in of_marker(axes, ".") if len(line.get_ydata())]
    assert [y for y in seeds.get_ydata() if y == y] == met


def test_epochs_axis_is_logarithmic_if_asked(axes):
    curves.epochs_axis(axes, table([cell(mlp(2), speed=speed, lr=speed) for speed in (0.01, 0.9)]), log=True)
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 0
    assert max(axes.get_yticks()) <= 40


def test_epochs_axis_where_nothing_is_met(axes):
    found = table([cell(mlp(2), speed=0.0)])
    for log in (False, True):
        curves.epochs_axis(axes, found, log)
        assert axes.get_ylim()[0] < 40 < axes.get_ylim()[1]


def test_losses_are_means_and_divergence_is_marked_at_the_top(axes):
    found = table([cell(autoencoder(2), diverged=[1]), cell(autoencoder(4))])
    curves.settled(axes, found, "compression", "final_train_loss")
    assert len(of_marker(axes, "x")) == 1
    assert texts(axes) == ["1/3"]
    mean = curves.panel(found, "cell")["final_train_loss_mean"].tolist()
    assert np.isnan(axes.lines[0].get_ydata()[0])
    assert axes.lines[0].get_ydata()[1] == mean[1]
    (seeds,) = [line for line in of_marker(axes, ".") if len(line.get_ydata())]
    assert np.isfinite(seeds.get_ydata()).sum() == 2


@pytest.mark.parametrize(("speed", "scale"), [(0.1, "log"), (0.0001, "linear")])
def test_scale_of_losses(axes, speed, scale):
    curves.over_epochs(axes, table([cell(CIFAR_NV, speed=speed)]), "train_loss")
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < 2.3 * np.exp(-40 * speed) < 2.3 < high


def test_a_loss_that_is_nowhere_finite_leaves_the_axis_alone(axes):
    found = table([cell(autoencoder(2), diverged=[0, 1, 2])])
    curves.settled(axes, found, "compression", "final_train_loss")
    assert texts(axes) == ["3/3"]


def test_curves_name_the_methods_that_lost_seeds(axes):
    found = table([cell(CIFAR_NV, "pathcond", diverged=[0, 2]), cell(CIFAR_NV, "baseline")])
    curves.over_epochs(axes, found, "train_loss")
    assert texts(axes) == ["PathCond: 2 of 3 seeds diverged"]


def test_accuracies_are_in_percent(axes):
    curves.over_epochs(axes, table([cell(CIFAR_NV, seeds=[0])]), "train_accuracy", "here")
    (line,) = axes.lines
    assert line.get_ydata()[0] == pytest.approx(10)
    assert axes.get_ylabel() == "train accuracy (%)"
    assert axes.get_title() == "here"
    assert axes.get_xlim() == (0, 40)
