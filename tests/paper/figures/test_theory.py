"""Theory figure: a panel a case, formula and random networks in each, crosses only where the print is off."""

import pandas as pd
import pytest

from paper.figures import theory
from tests.paper.drawing import drawn

NAN = float("nan")


def _case(case, values=(1.0,), off=(), biases=True, layers=3):
    rows = []
    for a in values:
        for kind, count in (("edge", layers), ("bias", layers - 1 if biases else 0)):
            for k in range(count):
                value = 2.0**k * (1.0 if a != a else a)
                wrong = kind == "edge" and k in off
                rows.append(
                    {
                        "case": case,
                        "kind": kind,
                        "layer": k,
                        "a": a,
                        "formula": value,
                        "monte_carlo": 1.01 * value,
                        "standard_error": 0.01 * value,
                        "z": 1.0,
                        "printed": 1.5 * value if wrong else NAN,
                        "printed_name": "",
                        "printed_z": NAN,
                        "draws": 10,
                        "seed": 0,
                        "limit": NAN,
                        "printed_off": wrong,
                    }  # fmt: skip
                )
    return pd.DataFrame(rows)


def _table():
    cases = [
        _case("by_layer", (NAN,), off=(1,)), _case("constant", (0.1, 1 / 3)),
        _case("constant_no_bias", (0.1, 1 / 3), off=(1, 2), biases=False), _case("small", (0.001,), off=(0,)),
        _case("another_one"),
    ]  # fmt: skip
    return pd.concat(cases, ignore_index=True)


@pytest.mark.parametrize("table", [_table(), _case("constant"), pd.concat([_case(c) for c in theory.TITLES])])
def test_it_draws_and_leaves_no_trace(table):
    drawn(theory.plot, table)


def test_panels():
    axes = [place for place in drawn(theory.plot, _table()).axes if place.get_visible()]
    assert [place.get_title() for place in axes] == [
        "equal widths\nwith biases", "equal widths\nno biases", "equal widths\n$a$ = 0.001",
        "unequal widths\nvariances by layer", "another one\n$a$ = 1",
    ]  # fmt: skip
    for place in axes:
        assert place.get_xlabel() == "layer $k$"
        assert place.get_yscale() == "log"
    assert [place.get_ylabel() for place in axes] == ["expected $g$", "", "", "", "expected $g$"]
    assert theory.PAPER.endswith(".")


def _crosses(axes):
    return [tuple(line.get_xydata().ravel()) for line in axes.lines if line.get_marker() == "x"]


def _ties(axes):
    """Ends of the lines from a formula to what is printed, for each value of a."""
    drawn = [lines for lines in axes.collections if len(lines.get_segments()[0]) == 2 and lines.get_linewidth() == 0.7]
    return [[segment.tolist() for segment in lines.get_segments()] for lines in drawn]


def test_crosses_stand_where_the_print_is_off():
    with_biases, no_biases, small, by_layer, other = drawn(theory.plot, _table()).axes[:5]
    assert _crosses(with_biases) == _crosses(other) == []
    assert _crosses(small) == [pytest.approx((0, 0.0015))]
    assert _crosses(by_layer) == [pytest.approx((1, 3.0))]
    low, high = -theory.ASIDE / 2, theory.ASIDE / 2
    assert _crosses(no_biases) == [
        pytest.approx((1 + low, 0.3, 2 + low, 0.6)), pytest.approx((1 + high, 1.0, 2 + high, 2.0)),
    ]  # fmt: skip
    first, second = _ties(no_biases)
    assert first[0] == [pytest.approx((1 + low, 0.2)), pytest.approx((1 + low, 0.3))]
    assert second[1] == [pytest.approx((2 + high, 4 / 3)), pytest.approx((2 + high, 2.0))]


def test_formula_and_random_networks():
    with_biases, no_biases, small, *_ = drawn(theory.plot, _table()).axes
    for axes, styles in ((with_biases, ["-", "-", ":", ":"]), (no_biases, ["-", "-"]), (small, ["-"])):
        formulas = [line for line in axes.lines if line.get_linestyle() != "None"]
        assert sorted(line.get_linestyle() for line in formulas) == styles
        assert len(axes.containers) == len(styles)
    (bars,) = small.containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((0.00099, 0.00103)), "two standard errors each way"


def test_values_are_told_apart_without_colours():
    with_biases = drawn(theory.plot, _table()).axes[0]
    looks = {(dots.lines[0].get_marker(), dots.lines[0].get_markerfacecolor()) for dots in with_biases.containers}
    assert len(looks) == 4
    assert len({marker for marker, _ in looks}) == 2


def test_legend():
    figure = drawn(theory.plot, _table())
    (legend,) = figure.legends
    assert "side by side" in figure.get_supxlabel()
    assert [text.get_text() for text in legend.get_texts()] == [
        "$a$ = 0.1", "$a$ = 0.33", "formula", "random networks", "biases", "paper's formula, where wrong",
    ]  # fmt: skip
