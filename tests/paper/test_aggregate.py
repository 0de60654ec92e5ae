"""From runs to tables: statistics computed by hand, and errors about missing or doubled runs."""

import math
from pathlib import Path

import pandas as pd
import pytest

from paper import results, runs
from paper.cli import PaperError
from paper.experiments.__main__ import aggregate as aggregate_with

TIMED = {"parameters": 100, "batches": 4, "epoch_batches": 8, "hardware": "CPU"}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(folder, name, rows, part="all", **settings):
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


def timing(network, seconds, **more):
    steps = [
        {"network": network, "pooling": pooling, "repeat": repeat, "step": "total", "seconds": value}
        for pooling, values in seconds.items()
        for repeat, value in enumerate(values)
    ]
    return [{**row, "units": 9, **TIMED, **more} for row in steps]


def depths(seconds):
    return [
        {"hidden_layers": depth, "repeat": repeat, "step": "total", "seconds": value, **TIMED, "parameters": 10 * depth}
        for depth, values in seconds.items()
        for repeat, value in enumerate(values)
    ]


def test_regimes_have_median_and_quartiles(tmp_path):
    rows = regimes(enumerate([5.0, 1.0, 2.0, 4.0, 3.0])) + [
        {**row, "alpha": 10.0} for row in regimes(enumerate([1.0, 1.0, 1.0, 1.0, 6.0]))
    ]
    table = aggregate("regimes", [write(tmp_path, "regimes", rows, seeds=[0, 1, 2, 3, 4])])
    columns = ["variance", "alpha", "median", "low", "high", "printed_root_fails", "n"]
    assert table[columns].to_numpy().tolist() == [
        [0.1, 1.0, 3.0, 2.0, 4.0, 0.2, 5],
        [0.1, 10.0, 1.0, 1.0, 1.0, 0.2, 5],
    ]
    assert table["ratio"].isna().all(), "there is no larger variance"
    large = regimes(enumerate([1.0, 2.0, 4.0]))
    small = [{**row, "variance": 0.01} for row in regimes(enumerate([2.0, 8.0, 24.0]))]
    table = aggregate("regimes", [write(tmp_path, "regimes", large + small, seeds=[0, 1, 2])]).set_index("variance")
    assert table.loc[0.01, ["ratio", "ratio_sd"]].tolist() == [4.0, 2.0], "by seed, to the next larger variance"


def test_a_nan_is_not_averaged_away(tmp_path):
    table = aggregate("smooth", [write(tmp_path, "smooth", smooth([(0, 1.0), (1, math.nan)]), seeds=[0, 1])])
    assert table[["error_mean", "error_sd"]].isna().all(axis=None)
    assert table["clamped_mean"].tolist() == [0.5]
    table = aggregate("smooth", [write(tmp_path, "smooth", smooth([(0, 1.0), (1, 2.0), (2, 6.0)]), seeds=[0, 1, 2])])
    assert table["error_mean"].tolist() == [3.0]
    assert table["error_sd"].tolist() == [pytest.approx(math.sqrt(7.0))]  # (4 + 1 + 9) / (3 - 1)


def test_timing_depth_joins_both_panels(tmp_path):
    deep = write(tmp_path, "timing_depth", depths({1: [1.0, 2.0], 2: [3.0, 5.0]}), repeats=2)
    nets = [
        write(tmp_path, "timing", timing(name, {"plain": values}), name, repeats=2)
        for name, values in (("mlp", [1.0, 1.0]), ("conv", [2.0, 4.0]))
    ]
    table = aggregate("timing_depth", [deep, *nets])
    depth, split = table[table["panel"] == "depth"], table[table["panel"] == "split"]
    assert len(table) == len(depth) + len(split)
    assert depth["hidden_layers"].tolist() == [1, 2]
    assert depth["parameters"].tolist() == [10, 20]
    assert depth["seconds_mean"].tolist() == [1.5, 4.0]
    assert depth["network"].isna().all()
    assert split["network"].tolist() == ["mlp", "conv"]
    assert split["seconds_mean"].tolist() == [1.0, 3.0]
    assert split["hidden_layers"].isna().all()
    assert split[["n", "units"]].to_numpy().tolist() == [[2, 9], [2, 9]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([(0, 1.0), (2, 1.0)], "seeds [0, 1, 2], got [0, 2]"),
        ([(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)], "seeds [0, 1, 2], got [0, 1, 2, 3]"),
        (
            [(0, 1.0), (1, 1.0), (1, 2.0), (2, 1.0)],
            "every seed once in every group, got rows by seed {0: 1, 1: 2, 2: 1}",
        ),
        ([(0, 1.0), (1, 1.0), (2, 1.0)] * 2, "every seed once in every group, got rows by seed {0: 2, 1: 2, 2: 2}"),
    ],
    ids=["missing", "too many", "doubled", "all doubled"],
)
def test_seeds_that_are_not_those_asked_for_are_an_error(tmp_path, values, said):
    spec = write(tmp_path, "regimes", regimes(values), seeds=[0, 1, 2])
    with pytest.raises(PaperError) as caught:
        aggregate("regimes", [spec])
    assert str(caught.value).startswith(f"{path_of(spec)}: expected {said}")
    assert str(caught.value).endswith("Delete it and run again.")


def test_seeds_of_a_group_and_of_training_and_repeats_are_counted_too(tmp_path):
    group = write(tmp_path, "smooth", smooth([(0, 1.0), (1, 1.0)]) + smooth([(0, 1.0)], depth=2), seeds=[0, 1])
    timed = write(tmp_path, "timing", timing("conv", {"plain": [1.0]}), "conv", repeats=2)
    trained = {"stage": "train", "preset": "tiny", "task": "classify", "network": "mlp", "method": "baseline",
               "lr": 0.1, "seed": 0}  # fmt: skip
    results.write_result(path_of(trained), pd.DataFrame({"seed": [0, 1], "epoch": 0}), trained, {"status": "done"})
    for name, spec, said in (
        ("smooth", group, r"every seed once in every group, got rows by seed \{0: 2, 1: 1\}"),
        ("timing", timed, r"repeats \[0, 1\], got \[0\]"),
        ("mlp_depth", trained, "seeds"),
    ):
        with pytest.raises(PaperError, match=rf"{path_of(spec).name}: expected {said}"):
            aggregate(name, [spec])


def test_only_the_rows_that_are_asked_for_enter(tmp_path):
    rows = [{**row, "alpha": alpha} for alpha in (1.0, 2.0, 3.0) for row in regimes([(0, alpha)])]
    spec = write(tmp_path, "regimes", rows, seed=0, variance=0.1)
    table = aggregate("regimes", [{**spec, "rows": {"alphas": [1.0, 3.0]}}])
    assert table["alpha"].tolist() == [1.0, 3.0]
    with pytest.raises(PaperError, match=r"expected rows with alpha \[4.0\], got none"):
        aggregate("regimes", [{**spec, "rows": {"alphas": [1.0, 4.0]}}])
