"""Ours: every method at its own best learning rate, and how wide the range of good learning rates is.

The optional blocks of the settings add rates, seeds or epochs to those that all networks of a kind have. Of runs that
differ in epochs alone the longest count. A method's best rate in a network is that of the best mean over the seeds that
all its rates have; two methods are then compared at their best rates, over all seeds that both have there. Best test
accuracy is the highest of all epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import CurveGrid
from paper.lazy import np, pd
from paper.settings import Block, CompressionGrid, DepthGrid, grids_of_blocks
from paper.verdicts import BASELINE, EDGE, PATHCOND, Claim, Estimate, Estimates, above, at_least, by, noted, of, runs

COLUMNS = (
    "panel", "network", "hidden_layers", "compression", "parameters", "method", "lr", "epochs", "seed", "diverged",
    "reached", "best_test_accuracy", "final_train_loss", "max_log_scale",
)  # fmt: skip


class Settings(Block):
    """Training grids: learning rates that all networks of a kind have, and more that some of them have."""

    mlp: DepthGrid
    mlp_more: DepthGrid | None = None
    mlp_dense: DepthGrid | None = None
    mlp_longer: DepthGrid | None = None
    autoencoder: CompressionGrid
    autoencoder_more: CompressionGrid | None = None
    autoencoder_seeds: CompressionGrid | None = None
    autoencoder_seeds_lower: CompressionGrid | None = None
    cifar_nv: CurveGrid
    cifar_nv_more: CurveGrid | None = None
    cifar_nv_seeds: CurveGrid | None = None


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """One row per seed of the runs that count."""
    found = trained(runs, settings)
    found = found.loc[found["panel"] == "run", list(COLUMNS)]
    longest = found.groupby(["network", "method", "lr", "seed"])["epochs"].transform("max")
    return found[found["epochs"] == longest].reset_index(drop=True)


# Statistics


@dataclass(frozen=True)
class Criterion:
    """How the best learning rate is chosen.

    Attributes:
        column: column of the runs that is compared.
        accuracy: whether the largest is best, and a gain is a difference in points, not a ratio.
    """

    column: str
    accuracy: bool = False

    def by_rate(self, rows: pd.DataFrame) -> dict[float, pd.Series]:
        """Values by learning rate, each by seed, the smaller the better; NaN for a run that has none."""
        values = rows[self.column].replace(np.inf, np.nan)
        values = values.clip(lower=1.0) if self.column == "reached" else values * (-100 if self.accuracy else 1)
        return {lr: part.set_index("seed")["value"] for lr, part in by(rows.assign(value=values), "lr")}

    def gain(self, method: pd.Series, other: pd.Series) -> pd.Series:
        """By seed: how many times fewer epochs (or how much smaller a loss), or how many points more, a method has."""
        return (other - method if self.accuracy else other / method).dropna()


EPOCHS = Criterion("reached")
ACCURACY = Criterion("best_test_accuracy", accuracy=True)
LOSS = Criterion("final_train_loss")


@dataclass(frozen=True)
class Best:
    """A method at its best learning rate.

    Attributes:
        lr: the rate.
        values: values by seed; smaller is better.
        at_end: whether the best rate is the lowest or highest of those tried.
    """

    lr: float
    values: pd.Series
    at_end: bool


def shared_seeds(by_rate: Mapping[float, pd.Series]) -> pd.DataFrame:
    """Values by seed (rows) and learning rate (columns), of the seeds that all rates have."""
    return pd.concat(by_rate, axis=1, join="inner") if by_rate else pd.DataFrame()


def best(rows: pd.DataFrame, criterion: Criterion) -> Best | None:
    """A method's runs of one network at the rate of the best mean, of those where every seed has a value."""
    by_rate = criterion.by_rate(rows)
    means = shared_seeds(by_rate).mean(skipna=False)
    means = means.where([values.notna().all() for values in by_rate.values()])
    if means.isna().all():  # also where there is no rate at all
        return None
    lr = float(means.idxmin())
    return Best(lr, by_rate[lr], lr in (means.index[0], means.index[-1]))


def pair(rows: pd.DataFrame, criterion: Criterion, method: str, other: str) -> tuple[Best, Best] | None:
    """Two methods in one network, each at its own best of the rates that both have; None if one has none."""
    shared = set(of(rows, method)["lr"]) & set(of(rows, other)["lr"])
    rows = rows[rows["lr"].isin(shared)]
    first, second = best(of(rows, method), criterion), best(of(rows, other), criterion)
    return None if first is None or second is None else (first, second)


def gain(
    rows: pd.DataFrame, criterion: Criterion, method: str = "pathcond", other: str = "baseline"
) -> Estimate | None:
    """The gain of a method over another in one network, each at its own best rate, paired by seed."""
    found = pair(rows, criterion, method, other)
    if found is None:
        return None
    return Estimate.of(criterion.gain(found[0].values, found[1].values), digits=3 if criterion is LOSS else 2)


# Figure


def plot(table: pd.DataFrame) -> plotting.Figure:
    """MLPs and autoencoders at their best rates, and CIFAR-NV by rate: a page wide."""
    rows = runs(table)
    mlps, coders = rows[rows["hidden_layers"].notna()], rows[rows["compression"].notna()]
    conv = _convolutional(rows)
    figure, axes = plotting.panels(2, 2, plotting.PAGE, 4.8)
    _at_best(axes[0], mlps, "hidden_layers", EPOCHS, 0.12)
    axes[0].set(ylabel="epochs to target", title="MLPs: epochs at the best rate")
    _at_best(axes[1], mlps, "hidden_layers", ACCURACY, 0.12)
    axes[1].set(ylabel="best test accuracy (%)", title="MLPs: test accuracy at the best rate")
    for place in axes[:2]:
        depths = sorted(set(mlps["hidden_layers"]))
        place.set(xlabel="hidden layers")
        place.set_xticks(depths, [f"{depth:.0f}" for depth in depths])
    _loss_gains(axes[2], coders)
    _by_rate(axes[3], conv)
    axes[3].set(ylabel="best test accuracy (%)", title="CIFAR-NV by learning rate")
    plotting.letters(axes)
    figure.legend(handles=_handles(rows), loc="outside upper center", ncols=4, handlelength=2.6)
    return figure


def _convolutional(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["hidden_layers"].isna() & rows["compression"].isna()]


def _handles(rows: pd.DataFrame) -> list[plotting.Line2D]:
    found = []
    for name in plotting.methods(rows):
        method = plotting.METHODS[name]
        look: dict[str, Any] = {"color": method.colour, "linestyle": method.dash, "marker": method.marker}
        found.append(plotting.handle(label=method.label, **look))
    gap: dict[str, Any] = {"linestyle": "", "marker": "o", "color": plotting.GREY, "markerfacecolor": "white"}
    return [*found, plotting.handle(label="open: best rate is the smallest or largest tried", **gap)]


def _at_best(axes: plotting.Axes, rows: pd.DataFrame, x: str, criterion: Criterion, offset: float = 0.0) -> None:
    """Means and 95% intervals of each method at its own best rate; open where that is the last one tried."""
    sign = -1.0 if criterion.accuracy else 1.0
    for number, name in enumerate(plotting.methods(rows)):
        method = plotting.METHODS[name]
        found = {value: best(of(part, name), criterion) for value, part in by(rows, x)}
        kept = {value: one for value, one in found.items() if one is not None}
        means = [sign * float(one.values.mean()) for one in kept.values()]
        halves = [_half(Estimate.of(one.values)) for one in kept.values()]
        at = [value + offset * (number - 1) for value in kept]
        look: dict[str, Any] = {"color": method.colour, "linestyle": method.dash, "linewidth": 0.8}
        axes.errorbar(at, means, yerr=halves, **look)
        for place, mean, one in zip(at, means, kept.values(), strict=True):
            face = "white" if one.at_end else method.colour
            axes.plot(place, mean, color=method.colour, marker=method.marker, markerfacecolor=face, linestyle="")


def _half(values: Estimate) -> float:
    """Half the width of an interval; none is drawn of one seed."""
    return values.high - values.value if math.isfinite(values.high) else 0.0


def _loss_gains(axes: plotting.Axes, rows: pd.DataFrame) -> None:
    """Final losses of autoencoders, baseline over method, each at its own best rate, with 95% intervals."""
    for name in plotting.methods(rows)[1:]:
        method = plotting.METHODS[name]
        found = {value: (gain(part, LOSS, name), part) for value, part in by(rows, "compression")}
        for value, (one, part) in found.items():
            if one is not None:
                at_end = any(chosen.at_end for chosen in pair(part, LOSS, name, "baseline") or ())
                face = "white" if at_end else method.colour
                look: dict[str, Any] = {"color": method.colour, "marker": method.marker, "markerfacecolor": face}
                axes.errorbar([value], [one.value], yerr=[_half(one)], linestyle="", **look)
        middle = [math.nan if one is None else one.value for one, _ in found.values()]
        axes.plot(list(found), middle, color=method.colour, linestyle=method.dash, linewidth=0.8)
    axes.axhline(1.0, color=plotting.GREY, linewidth=0.6, linestyle="--", zorder=1)
    factors = sorted(set(rows["compression"]))
    axes.set(xlabel="compression factor", ylabel="final train loss, baseline / method", title="Autoencoders")
    axes.set_xticks(factors, [f"{factor:.0f}" for factor in factors])


def _by_rate(axes: plotting.Axes, rows: pd.DataFrame) -> None:
    """Test accuracy of every seed against the learning rate, and means; open where the best rate is the last tried."""
    for name in plotting.methods(rows):
        method = plotting.METHODS[name]
        by_rate = {lr: -values for lr, values in ACCURACY.by_rate(of(rows, name)).items()}
        means = {lr: values.mean(skipna=False) for lr, values in by_rate.items()}
        look: dict[str, Any] = {"color": method.colour, "marker": method.marker}
        axes.plot(list(means), list(means.values()), linestyle=method.dash, **look)
        for lr, values in by_rate.items():
            axes.plot([lr] * len(values), values, linestyle="", markersize=1.8, alpha=0.6, **look)
        found = best(of(rows, name), ACCURACY)
        if found is not None and found.at_end:
            axes.plot(found.lr, means[found.lr], markerfacecolor="white", linestyle="", **look)
    plotting.rates_axis(axes, rows)


# Claims


def gains(
    cases: Iterable[tuple[Any, pd.DataFrame]], criterion: Criterion, method: str = PATHCOND, other: str = BASELINE
) -> Estimates:
    """A method's gains over another in several cases, each at its own best rate; the rates are noted, `other` first."""
    found: Estimates = {}
    for case, rows in cases:
        one, rates = gain(rows, criterion, method, other), pair(rows, criterion, other, method)
        if one is not None and rates is not None:
            told = " and ".join(f"{best.lr:g}" + f" {EDGE}" * best.at_end for best in rates)
            found[case] = noted(one, f"lr {told}")
    return found


def _over(x: str, criterion: Criterion) -> Callable[[pd.DataFrame], Estimates]:
    """PathCond's gains over the baseline by depth or compression."""
    return lambda table: gains(by(runs(table, x), x), criterion)


_LEAST = "each at the rate where its mean is smallest, among rates that both have and where every seed has a value"
_CLAIMS = (
    Claim.ours(
        "tuned_epochs",
        "With each method at its own best learning rate, MLPs need fewer epochs with PathCond than without",
        f"ratio of epochs to the target, baseline over PathCond, {_LEAST}",
        _over("hidden_layers", EPOCHS),
        above(1.0),
        paper="not studied: one rate for all",
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "tuned_cifar_nv",
        "With each method at its own best learning rate, CIFAR-NV still gains test accuracy with PathCond",
        "best test accuracy, PathCond minus baseline, each at the rate where its mean over the seeds that all rates "
        "have is highest",
        lambda table: gains([("CIFAR-NV", _convolutional(runs(table)))], ACCURACY),
        at_least(0.5),
        paper="not studied: higher at one rate for all",
        unit="points",
        cases="network",
    ),
    Claim.ours(
        "tuned_autoencoders",
        "With each method at its own best learning rate, autoencoders end with a smaller train loss with PathCond",
        f"ratio of final train losses, baseline over PathCond, {_LEAST}",
        _over("compression", LOSS),
        above(1.0),
        paper="smaller, at one rate for all",
        unit="times",
        cases="compression",
    ),
)


EXPERIMENT = Experiment(
    name="tuned",
    title="Each method at its own best learning rate",
    where="ours",
    caption=(
        "MLPs by depth, each method at its own best learning rate: epochs until {mlp[target]:.0%} of the training "
        "images are classified correctly, at the rate with the fewest epochs (a), and best test accuracy, at the rate "
        "with the highest (b). Final train loss of autoencoders, baseline over method, each at its best of the rates "
        "that both have (c). Best test accuracy of CIFAR-NV against the rate, with a small marker per seed (d). Means "
        "over seeds; bars are 95% intervals, in (c) paired by seed."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=table,
)
