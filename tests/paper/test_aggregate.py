"""From runs to tables: statistics computed by hand, and errors about missing or doubled runs."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paper import results, runs
from paper.cli import PaperError
from paper.experiments.__main__ import aggregate as aggregate_with


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, rows, part="all", **settings):
    """A part of an experiment as the measuring stage writes it; returns its spec."""
    spec = {"stage": "measure", "preset": "tiny", "experiment": name, "part": part, "version": 1, "settings": settings}
    results.write_result(path_of(spec), pd.DataFrame(rows), spec, {"status": "done"})
    return spec


def path_of(spec):
    return runs.result_path(Path("results"), spec)


def aggregate(name, specs):
    return aggregate_with(name, specs, {}, Path("results"))


def regimes(values):
    return [
        {"variance": 0.1, "alpha": 1.0, "seed": seed, "max_log_scale": value, "printed_root_fails": value > 4,
         "widths": "2-2"} for seed, value in values
    ]  # fmt: skip


def smooth(values, depth=1):
    names = {"activation": "gelu", "initialisation": "he", "hidden_layers": depth}
    more = ("train_error", "free_u", "kept_u", "kept_error")
    return [
        {**names, "seed": seed, "error": value, "max_u": 2 * value, "clamped": seed, **dict.fromkeys(more, 3 * value)}
        for seed, value in values
    ]


def timing(seconds):
    row = {"network": "conv", "pooling": "plain", "step": "total"}
    return [{**row, "repeat": repeat, "seconds": value} for repeat, value in enumerate(seconds)]


def test_regimes_have_median_and_quartiles_and_ratios_by_seed():
    large, small = regimes(enumerate([5.0, 1.0, 2.0, 4.0, 3.0])), regimes(enumerate([10.0, 8.0, 4.0, 12.0, 6.0]))
    small = [{**row, "variance": 0.01} for row in small]
    table = aggregate("regimes", [write("regimes", large + small, seeds=[0, 1, 2, 3, 4])]).set_index("variance")
    assert table.loc[0.1, ["median", "low", "high", "printed_root_fails", "n"]].tolist() == [3.0, 2.0, 4.0, 0.2, 5]
    assert math.isnan(table.loc[0.1, "ratio"]), "there is no larger variance"
    ratios = [2.0, 8.0, 2.0, 3.0, 2.0]  # to the next larger variance
    expected = [np.mean(ratios), np.std(ratios, ddof=1)]
    assert table.loc[0.01, ["ratio", "ratio_sd"]].tolist() == pytest.approx(expected)


def test_a_nan_is_not_averaged_away():
    table = aggregate("smooth", [write("smooth", smooth([(0, 1.0), (1, math.nan)]), seeds=[0, 1])])
    assert table[["error_mean", "error_sd"]].isna().all(axis=None)
    assert table["clamped_mean"].tolist() == [0.5]
    table = aggregate("smooth", [write("smooth", smooth([(0, 1.0), (1, 2.0), (2, 6.0)]), seeds=[0, 1, 2])])
    assert table["error_mean"].tolist() == [3.0]
    assert table["error_sd"].tolist() == [pytest.approx(math.sqrt(7.0))]  # (4 + 1 + 9) / (3 - 1)


def test_seeds_and_repeats_that_are_not_those_asked_for_are_an_error():
    trained = {"stage": "train", "preset": "tiny", "task": "classify", "network": "mlp", "method": "baseline",
               "lr": 0.1, "seed": 0}  # fmt: skip
    results.write_result(path_of(trained), pd.DataFrame({"seed": [0, 1], "epoch": 0}), trained, {"status": "done"})
    uneven = smooth([(0, 1.0), (1, 1.0)]) + smooth([(0, 1.0)], depth=2)
    once = "every seed once in every group, got rows by seed "
    for name, spec, said in (
        ("regimes", write("regimes", regimes([(0, 1.0), (2, 1.0)]), seeds=[0, 1, 2]), "seeds [0, 1, 2], got [0, 2]"),
        ("regimes", write("regimes", regimes([(0, 1.0), (1, 1.0), (1, 2.0)]), seeds=[0, 1]), f"{once}{{0: 1, 1: 2}}"),
        ("smooth", write("smooth", uneven, seeds=[0, 1]), f"{once}{{0: 2, 1: 1}}"),
        ("timing", write("timing", timing([1.0]), "conv", repeats=2), "repeats [0, 1], got [0]"),
        ("mlp_depth", trained, "seeds"),
    ):
        with pytest.raises(PaperError) as caught:
            aggregate(name, [spec])
        assert str(caught.value).startswith(f"{path_of(spec)}: expected {said}")
        assert str(caught.value).endswith("Delete it and run again.")


def test_only_the_rows_that_are_asked_for_enter():
    rows = [{**row, "alpha": alpha} for alpha in (1.0, 2.0, 3.0) for row in regimes([(0, alpha)])]
    spec = write("regimes", rows, seed=0, variance=0.1)
    table = aggregate("regimes", [{**spec, "rows": {"alphas": [1.0, 3.0]}}])
    assert table["alpha"].tolist() == [1.0, 3.0]
    with pytest.raises(PaperError, match=r"expected rows with alpha \[4.0\], got none"):
        aggregate("regimes", [{**spec, "rows": {"alphas": [1.0, 4.0]}}])
