"""Ours: PathCond with other optimizers than plain SGD, each at its best learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import CurveGrid
from paper.experiments.tuned import ACCURACY, gains
from paper.lazy import pd
from paper.settings import Block, DepthGrid, grids_of_blocks, named_by_optimiser
from paper.verdicts import Claim, at_least, runs

NAMES = ("momentum", "adamw", "muon")
LABELS = {"momentum": "SGD with momentum", "adamw": "AdamW", "muon": "Muon"}


class Settings(Block):
    """A training grid of MLPs for each optimizer, and, if wanted, one of CIFAR-NV."""

    mlp_momentum: DepthGrid
    mlp_momentum_exact: DepthGrid | None = None
    mlp_adamw: DepthGrid
    mlp_muon: DepthGrid | None = None
    cifar_nv_momentum: CurveGrid | None = None
    cifar_nv_adamw: CurveGrid | None = None
    cifar_nv_muon: CurveGrid | None = None


def all_grids(settings: Settings) -> Iterator[dict[str, Any]]:
    """Every grid; the optimizer is part of a network's name."""
    return map(named_by_optimiser, grids_of_blocks(settings))


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment without its curves, with the optimizer of each run."""
    found = trained(runs, settings)
    found = found[found["panel"] != "curve"]
    return found.assign(optimiser=found["network"].str.rpartition("_")[2])


def _name(rows: pd.DataFrame) -> str:
    """A network and its optimizer."""
    depth, optimiser = rows[["hidden_layers", "optimiser"]].iloc[0]
    return f"{'CIFAR-NV' if depth != depth else f'{depth:.0f}-layer MLP'}, {LABELS[optimiser]}"


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Best test accuracy against the learning rate: a row of panels per network, a column per optimizer."""
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
        plotting.accuracies(place, one, "lr", "best_test_accuracy")
        place.set_title(_name(one))
        place.set_ylabel("" if number % len(columns) else "best test accuracy (%)")
    plotting.letters(axes)
    plotting.legend(figure, table[table["panel"] != "run"].assign(reached_n=table["n"]), markers=True)
    return figure


# Claims


def _networks(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for _, part in rows.groupby("network", sort=False):
        yield _name(part), part


_CLAIMS = (
    Claim.ours(
        "optimisers_accuracy",
        "PathCond raises the best test accuracy with other optimizers than plain SGD too",
        "best test accuracy, PathCond minus baseline, paired by seed, each at the rate where its mean is highest",
        lambda table: gains(_networks(runs(table)), ACCURACY),
        at_least(0.5),
        paper="left open",
        unit="points",
        cases="network",
    ),
)


EXPERIMENT = Experiment(
    name="optimisers",
    title="Other optimizers",
    where="ours",
    caption=(
        "Best test accuracy against the learning rate with other optimizers: MLPs, by their hidden layers, after "
        "{mlp_momentum[epochs]} epochs, and CIFAR-NV. PathCond rescales at the start. Two more curves, where they are "
        "there, are the rescaling that is exact with BatchNorm, at the start alone and again every ten epochs. Means "
        "over seeds; bars are one standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=all_grids,
    table=table,
)
