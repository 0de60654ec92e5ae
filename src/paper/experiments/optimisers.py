"""Ours: PathCond with other optimisers than plain SGD, each at its best learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import CurveGrid
from paper.experiments.tuned import ACCURACY, EPOCHS, compared
from paper.lazy import pd
from paper.settings import Block, DepthGrid, grids_of_blocks, named_by_optimiser
from paper.verdicts import Claim, Finding, runs

NAMES = ("momentum", "adamw", "muon")
LABELS = {"momentum": "SGD with momentum", "adamw": "AdamW", "muon": "Muon"}


class Settings(Block):
    """A training grid of MLPs for each optimiser, and, if wanted, one of CIFAR-NV."""

    mlp_momentum: DepthGrid
    mlp_adamw: DepthGrid
    mlp_muon: DepthGrid | None = None
    cifar_nv_momentum: CurveGrid | None = None
    cifar_nv_adamw: CurveGrid | None = None
    cifar_nv_muon: CurveGrid | None = None


def all_grids(settings: Settings) -> Iterator[dict[str, Any]]:
    """Every grid; the optimiser is part of a network's name."""
    return map(named_by_optimiser, grids_of_blocks(settings))


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment without its curves, with the optimiser of each run."""
    found = trained(runs, settings)
    found = found[found["panel"] != "curve"]
    return found.assign(optimiser=found["network"].str.rpartition("_")[2])


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Best test accuracy against the learning rate: a row of panels per network, a column per optimiser."""
    cells = table[table["panel"] == "cell"]
    names = cells["network"].str.rpartition("_")[0].drop_duplicates().tolist()
    columns = [name for name in NAMES if name in set(cells["optimiser"])]
    size = plotting.PAGE, 0.6 + 1.9 * len(names)
    figure, axes = plotting.panels(len(names), len(columns), *size)
    for number, place in enumerate(axes):
        network, optimiser = names[number // len(columns)], columns[number % len(columns)]
        one = table[table["network"] == f"{network}_{optimiser}"]
        if one.empty:
            place.set_axis_off()
            continue
        plotting.rates_axis(place, one)
        percent = one.assign(**{key: 100 * one[key] for key in one if key.startswith("best_test_accuracy")})
        plotting.accuracies(place, percent, "lr", "best_test_accuracy")
        depths = one["hidden_layers"].dropna()
        name = "CIFAR-NV" if depths.empty else f"{depths.iloc[0]:.0f}-layer MLP"
        place.set_title(f"{name}, {LABELS[optimiser]}")
        place.set_ylabel("" if number % len(columns) else "best test accuracy (%)")
    plotting.letters(axes)
    plotting.legend(figure, table[table["panel"] != "run"].assign(reached_n=table["n"]), markers=True)
    return figure


# Claims


def _networks(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for network, part in rows.groupby("network", sort=False):
        yield str(network), part


def _gains(table: pd.DataFrame) -> Finding:
    return compared(_networks(runs(table)), ACCURACY, "optimisers_accuracy", "pathcond", "baseline")


def _again(table: pd.DataFrame) -> Finding:
    return compared(_networks(runs(table)), ACCURACY, "optimisers_again", "teleport", "pathcond")


def _speed(table: pd.DataFrame) -> Finding:
    rows = runs(table, "hidden_layers")
    return compared(_networks(rows), EPOCHS, "optimisers_speed", "pathcond", "baseline")


_CLAIMS = (
    Claim.ours(
        "optimisers_accuracy",
        "PathCond raises the best test accuracy with other optimisers than plain SGD too",
        "difference of best test accuracy in points, PathCond minus baseline, paired by seed, each at the rate where "
        "its mean is highest (lr of the baseline and of PathCond)",
        _gains,
        paper="not studied: left open",
        cases="network",
    ),
    Claim.ours(
        "optimisers_speed",
        "With other optimisers than plain SGD too, MLPs reach the target in fewer epochs after PathCond",
        "ratio of epochs, baseline over PathCond, paired by seed, each at the rate where its mean is least and every "
        "seed gets there (lr of the baseline and of PathCond)",
        _speed,
        paper="not studied: left open",
        cases="network",
    ),
    Claim.ours(
        "optimisers_again",
        "With other optimisers than plain SGD, rescaling every ten epochs, exactly with BatchNorm, gives a higher best "
        "test accuracy than PathCond at the start alone",
        "difference of best test accuracy in points, every ten epochs minus PathCond, paired by seed, each at the rate "
        "where its mean is highest (lr of PathCond and of the repeated rescaling)",
        _again,
        paper="not studied: left open",
        cases="network",
    ),
)


EXPERIMENT = Experiment(
    name="optimisers",
    title="Other optimisers",
    where="ours",
    caption=(
        "Best test accuracy against the learning rate with other optimisers: MLPs, by their hidden layers, after "
        "{mlp_momentum[epochs]} epochs, and CIFAR-NV. PathCond rescales at the start. The third curve, where there is "
        "one, is the rescaling that is exact with BatchNorm, at the start and again every ten epochs. Means over "
        "seeds; bars are one standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=all_grids,
    table=table,
)
