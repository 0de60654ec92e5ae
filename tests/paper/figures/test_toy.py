"""Toy figure: four panels, runs told apart by line, starts by colour, and the start that loses on its own."""

import pandas as pd
import pytest

from paper.figures import toy
from tests.paper.drawing import drawn


def _table(starts=("0.2, 2.5, 5", "0.3, 5, -4"), seeds=(0,)):
    rows = []
    for number, start in enumerate([*starts, "3, 0.1, 0.3"]):
        for run in ("raw", "rescaled", "ideal"):
            for seed in seeds:
                for step in (0, 10, 25):
                    u = float("nan") if run == "ideal" else 1.0 + 0.01 * step
                    rows.append(
                        {
                            "start": start,
                            "extra": start == "3, 0.1, 0.3",
                            "run": run,
                            "seed": seed,
                            "step": step,
                            "loss": 10.0 ** -(step / 10),
                            "u": u,
                            "v": u + number,
                            "w": u - number,
                            "phi_1": 0.5 + step / 100,
                            "phi_2": number - step / 100,
                            "reached_1e2": 20.0,
                            "reached_1e4": float("nan"),
                            "distance": 0.1,
                        }  # fmt: skip
                    )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("table", [_table(), _table(("1, 2, 3",), seeds=(0, 1)), _table(tuple("abcd"))])
def test_it_draws_and_leaves_no_trace(table):
    drawn(toy.plot, table)


def test_panels():
    losses, lifted, parameters, slower = drawn(toy.plot, _table()).axes
    assert losses.get_title() == "Loss from 2 starts"
    assert "(3, 0.1, 0.3)" in slower.get_title()
    for axes in (losses, slower):
        assert axes.get_xlabel() == "iteration"
        assert axes.get_yscale() == "log"
        assert axes.get_xlim() == (0.0, 25.0)
    assert lifted.get_xlabel() == r"$\Phi_1 = uv$"
    assert parameters.get_ylabel() == "bias $w$"
    assert toy.PAPER.endswith(".")


def test_every_run_has_its_line():
    losses, lifted, parameters, slower = drawn(toy.plot, _table()).axes
    curves = {
        axes: [line.get_linestyle() for line in axes.lines if len(line.get_xdata()) == 3] for axes in (losses, lifted)
    }
    assert sorted(curves[losses]) == ["-", "-", "--", "--"], "the ideal loss is left out, as in the paper"
    assert sorted(curves[lifted]) == ["-", "-", "--", "--", ":", ":"]
    for look in ("get_color", "get_marker"):
        assert len({getattr(line, look)() for line in losses.lines}) == 2
    assert sorted(line.get_linestyle() for line in slower.lines) == ["-", "--", ":"]
    rescalings = [line for line in parameters.lines if line.get_linewidth() == 0.5]
    assert [len(line.get_xdata()) for line in rescalings] == [2, 2]


def test_legend():
    (legend,) = drawn(toy.plot, _table()).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "start (0.2, 2.5, 5)", "original start", "start (0.3, 5, -4)", "rescaled by PathCond", "the rescaling itself",
        r"ideal: descent on $\Phi$",
    ]  # fmt: skip
