"""Ours: PathCond before, or also during, training with momentum, AdamW and Muon, each at its best learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import CurveGrid
from paper.settings import Block, DepthGrid, grids
from paper.verdicts import (
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    Claim,
    Finding,
    NotMeasured,
    interval,
    of,
    runs,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAMES = ("momentum", "adamw", "muon")
LABELS = {"momentum": "SGD with momentum", "adamw": "AdamW", "muon": "Muon"}
POINTS = 0.5  # of test accuracy that we call a difference; ours


class Settings(Block):
    """A training grid of MLPs and one of CIFAR-NV for each optimiser."""

    mlp_momentum: DepthGrid
    mlp_adamw: DepthGrid
    mlp_muon: DepthGrid
    cifar_nv_momentum: CurveGrid
    cifar_nv_adamw: CurveGrid
    cifar_nv_muon: CurveGrid


def all_grids(settings: Settings) -> Iterator[dict[str, Any]]:
    """Every grid; the optimiser is part of the network's name, so that tables tell them apart."""
    for part in Settings.model_fields:
        optimiser = part.rpartition("_")[2]
        for grid in grids(getattr(settings, part)):
            yield {**grid, "network": f"{grid['network']}_{optimiser}"}


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment without its curves, with the optimiser of each run."""
    found = trained(runs, {"target": next((b["target"] for b in settings.values() if "target" in b), None)})
    found = found[found["panel"] != "curve"]
    return found.assign(optimiser=found["network"].str.rpartition("_")[2])


def plot(table: pd.DataFrame) -> Figure:
    """Best test accuracy against the learning rate: a row of panels per network, a column per optimiser."""
    from paper import plotting

    cells = table[table["panel"] == "cell"]
    names = cells["network"].str.rpartition("_")[0].drop_duplicates().tolist()
    columns = [name for name in NAMES if name in set(cells["optimiser"])]
    size = plotting.PAGE, 0.6 + 1.9 * len(names)
    figure, axes = plotting.panels(len(names), len(columns), *size, sharey="row")
    for number, place in enumerate(axes):
        network, optimiser = names[number // len(columns)], columns[number % len(columns)]
        one = table[table["network"] == f"{network}_{optimiser}"]
        if one.empty:
            place.set_axis_off()
            continue
        plotting.rates_axis(place, one)
        percent = one.assign(**{key: 100 * one[key] for key in one if key.startswith("best_test_accuracy")})
        plotting.accuracies(place, percent, "lr", "best_test_accuracy")
        place.set_title(f"{_label(one)}, {LABELS[optimiser]}")
        place.set_ylabel("" if number % len(columns) else "best test accuracy (%)")
    plotting.letters(axes)
    plotting.legend(figure, table[table["panel"] != "run"].assign(reached_n=table["n"]), markers=True)
    return figure


def _label(rows: pd.DataFrame) -> str:
    depth = rows["hidden_layers"].iloc[0]
    return "CIFAR-NV" if depth != depth else f"MLP {depth:.0f}"


# Claims


def _tuned(rows: pd.DataFrame, method: str) -> tuple[pd.DataFrame, float]:
    """A method's runs at the learning rate where its mean best test accuracy is highest, by seed, and that rate."""
    mine = of(rows, method)
    if mine.empty:
        raise NotMeasured(f"no run of {method}")
    lr = mine.groupby("lr")["best_test_accuracy"].mean().idxmax()
    return mine[mine["lr"] == lr].set_index("seed"), lr


def _differences(table: pd.DataFrame, method: str, optimisers: tuple[str, ...] = NAMES) -> Finding:
    """Gain of a method over the baseline on every network, each at its best learning rate, paired by seed."""
    every = runs(table)
    parts, ends = [], {}
    for network, rows in every[every["optimiser"].isin(optimisers)].groupby("network", sort=False):
        if of(rows, method).empty:
            continue
        (ours, lr), (base, base_lr) = _tuned(rows, method), _tuned(rows, "baseline")
        difference = 100 * (ours["best_test_accuracy"] - base["best_test_accuracy"]).dropna()
        mean = float(difference.mean())
        ends[str(network)] = mean, *interval(mean, float(difference.std()), len(difference))
        parts.append(f"{network} {mean:+.2f} ({ends[str(network)][1]:+.2f} to {ends[str(network)][2]:+.2f}; lr {lr:g} "
                     f"against {base_lr:g})")  # fmt: skip
    if not ends:
        raise NotMeasured(f"no run of {method} with {', '.join(optimisers)}")
    gains = [mean >= POINTS and low > 0 for mean, low, _ in ends.values()]
    harms = [mean <= -POINTS and high < 0 for mean, _, high in ends.values()]
    verdict = REPRODUCED if all(gains) else PARTLY if any(gains) and not any(harms) else NOT_REPRODUCED
    name, (mean, low, high) = max(ends.items(), key=lambda entry: entry[1][0])
    return Finding("; ".join(parts), verdict, mean, (low, high), f"95% at {name}:")


def _speed(table: pd.DataFrame) -> Finding:
    """Epochs to the target of MLPs, baseline over PathCond, each at its fastest learning rate."""
    rows = runs(table, "hidden_layers")
    parts, ends = [], {}
    for network, part in rows.groupby("network", sort=False):
        fastest = {}
        for method in ("baseline", "pathcond"):
            means = of(part, method).groupby("lr")["reached"]
            complete = means.mean()[means.count() == means.size()]
            if not complete.empty:
                mine = of(part, method)
                fastest[method] = mine[mine["lr"] == complete.idxmin()].set_index("seed")["reached"].clip(lower=1.0)
        if len(fastest) < 2:
            parts.append(f"{network} open")
            continue
        ratio = (fastest["baseline"] / fastest["pathcond"]).dropna()
        mean = float(ratio.mean())
        ends[str(network)] = mean, *interval(mean, float(ratio.std()), len(ratio))
        parts.append(f"{network} {mean:.2f} ({ends[str(network)][1]:.2f} to {ends[str(network)][2]:.2f})")
    if not ends:
        raise NotMeasured("no learning rate at which every seed reaches the target")
    faster = [low > 1 for _, low, _ in ends.values()]
    verdict = REPRODUCED if all(faster) else PARTLY if any(faster) else NOT_REPRODUCED
    name, (mean, low, high) = max(ends.items(), key=lambda entry: entry[1][0])
    return Finding("; ".join(parts), verdict, mean, (low, high), f"95% at {name}:")


_ACCURACY = (
    "paired difference of best test accuracy, each at the learning rate where its mean is highest: at least "
    f"{POINTS} points with its 95% interval above 0 on every network: reproduced; on some, and nowhere as much worse: "
    "partly"
)
_CLAIMS = (
    Claim(
        "optimisers_accuracy",
        "PathCond before training raises the best test accuracy with momentum and AdamW",
        "left open",
        _ACCURACY,
        lambda table: _differences(table, "pathcond", ("momentum", "adamw")),
        ours=True,
    ),
    Claim(
        "optimisers_muon",
        "PathCond before training raises the best test accuracy with Muon",
        "left open",
        _ACCURACY,
        lambda table: _differences(table, "pathcond", ("muon",)),
        ours=True,
    ),
    Claim(
        "optimisers_teleport",
        "Rescaling every ten epochs raises the best test accuracy with momentum and AdamW",
        "left open",
        _ACCURACY,
        lambda table: _differences(table, "teleport"),
        ours=True,
    ),
    Claim(
        "optimisers_speed",
        "With momentum, AdamW and Muon MLPs reach the target in fewer epochs after PathCond, each at its fastest "
        "learning rate",
        "left open",
        "ratio of epochs, baseline over PathCond, paired by seed, each at the rate where its mean is least and every "
        "seed gets there: 95% interval above 1 on every network: reproduced; on some: partly",
        _speed,
        ours=True,
    ),
)


EXPERIMENT = Experiment(
    name="optimisers",
    title="Other optimisers",
    where="ours",
    caption=(
        "Best test accuracy against the learning rate for MLPs ({mlp_momentum[epochs]} epochs) and CIFAR-NV "
        "({cifar_nv_momentum[epochs]} epochs), with SGD with momentum, AdamW and Muon: baseline, PathCond before "
        "training, and rescaling every ten epochs, where the optimiser's averages follow. Means over seeds; bars are "
        "one standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("epoch",),
    grids=all_grids,
    table=table,
)
