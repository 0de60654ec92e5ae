"""Ours: PathCond with other optimisers than plain SGD, each at its best learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import CurveGrid
from paper.lazy import pd, plotting
from paper.settings import Block, DepthGrid, grids_of_blocks, named_by_optimiser
from paper.verdicts import Claim, Estimate, Finding, accuracy_gain, agreed, epochs_ratio, of, runs, tuned

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
        name = "CIFAR-NV" if depths.empty else f"MLP {depths.iloc[0]:.0f}"
        place.set_title(f"{name}, {LABELS[optimiser]}")
        place.set_ylabel("" if number % len(columns) else "best test accuracy (%)")
    plotting.letters(axes)
    plotting.legend(figure, table[table["panel"] != "run"].assign(reached_n=table["n"]), markers=True)
    return figure


# Claims


def _best(rows: pd.DataFrame) -> pd.DataFrame:
    """A method's runs at the learning rate where its mean best test accuracy is highest."""
    return rows[rows["lr"] == rows.groupby("lr")["best_test_accuracy"].mean().idxmax()]


def _gains(table: pd.DataFrame) -> Finding:
    return _finding("optimisers_accuracy", _points(table, "pathcond", "baseline"))


def _again(table: pd.DataFrame) -> Finding:
    return _finding("optimisers_again", _points(table, "teleport", "pathcond"))


def _points(table: pd.DataFrame, first: str, second: str) -> dict[Any, Estimate | None]:
    """By network: points of best test accuracy that one method gains over another, each at its best learning rate."""
    found: dict[Any, Estimate | None] = {}
    for network, rows in runs(table).groupby("network", sort=False):
        both = [of(rows, name) for name in (first, second)]
        if not any(part.empty for part in both):
            found[network] = accuracy_gain(pd.concat(map(_best, both)), first, second)
    return found


def _speed(table: pd.DataFrame) -> Finding:
    """Epochs to the target of MLPs, baseline over PathCond, each at its fastest learning rate."""
    found: dict[Any, Estimate | None] = {}
    for network, rows in runs(table, "hidden_layers").groupby("network", sort=False):
        slow, fast = (tuned(of(rows, method), "reached")[0] for method in ("baseline", "pathcond"))
        found[network] = epochs_ratio(slow, fast)
    return _finding("optimisers_speed", found)


def _finding(claim: str, found: Mapping[Any, Estimate | None]) -> Finding:
    words = ", ".join(f"{name} {'open' if estimate is None else estimate.words}" for name, estimate in found.items())
    return Finding(words, agreed(claim, found), cases=found)


_CLAIMS = (
    Claim.ours(
        "optimisers_accuracy",
        "PathCond raises the best test accuracy with other optimisers than plain SGD too",
        "difference of best test accuracy in points, paired by seed, each at the rate where its mean is highest",
        _gains,
        paper="left open",
        cases="network",
    ),
    Claim.ours(
        "optimisers_speed",
        "With other optimisers than plain SGD too, MLPs reach the target in fewer epochs after PathCond",
        "ratio of epochs, baseline over PathCond, paired by seed, each at the rate where its mean is least and every "
        "seed gets there",
        _speed,
        paper="left open",
        cases="network",
    ),
    Claim.ours(
        "optimisers_again",
        "Rescaling again every ten epochs raises the best test accuracy further, with other optimisers than plain SGD",
        "difference of best test accuracy in points, every ten epochs minus PathCond at the start alone, paired by "
        "seed, each at the rate where its mean is highest",
        _again,
        paper="left open",
        cases="network",
    ),
)


EXPERIMENT = Experiment(
    name="optimisers",
    title="Other optimisers",
    where="ours",
    caption=(
        "Best test accuracy against the learning rate with other optimisers, by network: the MLP with three hidden "
        "layers ({mlp_momentum[epochs]} epochs), and CIFAR-NV where it was trained. PathCond rescales at the start, "
        "or again every ten epochs. Means over seeds; bars are one standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=all_grids,
    table=table,
)
