"""Appendix: convergence of the alternating minimization, by sweep, against the true optimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paper import plotting
from paper.aggregate import joined, summary
from paper.experiments.base import Experiment, Runs
from paper.experiments.timing import LABELS, parts
from paper.lazy import pathcond, pd, torch
from paper.settings import Block, Distinct, Field, Name, Network, Pooling, PositiveInt, SeedList
from paper.verdicts import ERRATUM, Claim, Estimate, Estimates, above, at_most, interval, one, some

LINES = {"plain": ("-", "pools as they are"), "exact": ("--", "exact pools")}
USED = 10  # sweeps of the paper's experiments
KEYS = ("network", "pooling", "sweep")


class Settings(Block):
    """Networks by name, ways to count pools, and the number of sweeps."""

    networks: dict[Name, Network] = Field(min_length=1)
    poolings: Distinct[Pooling]
    sweeps: PositiveInt
    seeds: SeedList


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row per pooling, seed and sweep of one network at initialization, without the units of BatchNorm.

    Columns network, pooling, seed, sweep (0 is the start), objective, `normalised` (F above its last value, as a
    fraction of the whole decrease), to_optimum (the same above the minimum of F), update (mean absolute change of
    u in the sweep, NaN at 0), and of the last sweep's u, the same in all rows of a run: max_u (largest absolute u)
    and printed (as `normalised`, had it been applied as exp(Bu) instead of exp(-Bu/2); 1 is no rescaling).
    """
    from paper import models

    model, frames = settings["model"], []
    x = models.example_input(model).to(device)
    for seed in settings["seeds"]:
        module = models.make(model, seed, model["kind"]).to(device).eval()
        graph = models.units(module, x, model)
        for pooling in settings["poolings"]:
            g = pathcond.compute_diag_g(module, x, graph=graph, pooling=pooling, dtype=torch.float64)
            names = {"network": settings["network"], "pooling": pooling, "seed": seed}
            found = trajectory(graph, g, settings["sweeps"])
            frames.append(found.assign(**names)[[*names, *found]])
    return pd.concat(frames, ignore_index=True)


def trajectory(graph: pathcond.ScaleGraph, g: Mapping[str, torch.Tensor], sweeps: int) -> pd.DataFrame:
    """The columns of :func:`measure` from ``sweep`` on, for one problem."""
    run = pathcond.solve(graph, g, sweeps=sweeps)
    best = pathcond.solve(graph, g, method="optimum").objective[-1]
    f = torch.tensor(run.objective, dtype=torch.float64)
    printed = objective(graph, g, -4.0 * run.log_scales)  # u = 2 log lambda, and exp(Bu) is exp(-Bu'/2) of u' = -2u
    return pd.DataFrame(
        {
            "sweep": range(len(run.objective)),
            "objective": f,
            "normalised": (f - f[-1]) / (f[0] - f[-1]),
            "to_optimum": (f - best) / (f[0] - best),
            "update": [float("nan"), *(2 * update for update in run.mean_update)],
            "max_u": 2 * float(run.log_scales.abs().amax()),
            "printed": float((printed - f[-1]) / (f[0] - f[-1])),
        }
    )


def objective(graph: pathcond.ScaleGraph, g: Mapping[str, torch.Tensor], u: torch.Tensor) -> float:
    """F(u) = p log(sum_i exp((Bu)_i) g_i) - sum_i (Bu)_i, term by term."""
    full = torch.cat((u.new_zeros(1), u))
    size, total, linear = 0, 0.0, 0.0
    for name, values in g.items():
        units, values = graph.params.get(name), values.cpu()
        moved = torch.zeros_like(values) if units is None else (full[units.col] - full[units.row]).expand_as(values)
        size, total = size + values.numel(), total + float((moved.exp() * values).sum())
        linear += float(moved.sum())
    return size * math.log(total) - linear


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Means and deviations over seeds."""
    return summary(joined(runs, settings), KEYS, ("normalised", "to_optimum", "update", "printed"))


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Objective and mean update by sweep."""
    figure, axes = plotting.panels(1, 2, plotting.PAGE, 2.6, gridspec_kw={"wspace": 0.08})
    networks = [name for name in plotting.NETWORKS if name in set(table["network"])]
    poolings = [name for name in LINES if name in set(table["pooling"])]
    last = max(2, *table["sweep"])
    for place, value in zip(axes, ("normalised", "update"), strict=True):
        for network in networks:
            for pooling in poolings:
                rows = table.query(f"network == {network!r} and pooling == {pooling!r} and sweep > 0")
                colour, marker, _ = plotting.NETWORKS[network]
                look = {"color": colour, "marker": marker, "markevery": 0.12, "linestyle": LINES[pooling][0]}
                plotting.band(place, plotting.spread(rows, value, 0.01), "sweep", look)
        place.set(xlabel="sweep", xscale="log", xlim=(1, last))
        place.xaxis.set_major_formatter("{x:g}")
        if last > USED:
            place.axvline(USED, color=plotting.GREY, linewidth=0.8, linestyle=":", zorder=1)
    axes[0].set(ylabel="fraction of the decrease left", ylim=(-0.02, 1.02), title="Normalized objective")
    axes[1].set(ylabel=r"mean $|u^{(k)} - u^{(k-1)}|$", yscale="log", title=r"Mean update of $u = 2\,\log\,\lambda$")
    looks = (plotting.NETWORKS[network] for network in networks)
    handles = [plotting.handle(color=colour, marker=marker, label=label) for colour, marker, label in looks]
    handles += [plotting.handle(color=plotting.GREY, linestyle=LINES[p][0], label=LINES[p][1]) for p in poolings]
    if last > USED:
        label = "the paper's 10 sweeps"
        handles.append(plotting.handle(color=plotting.GREY, linestyle=":", linewidth=0.8, label=label))
    plotting.letters(axes)
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=2.6)
    return figure


CONVOLUTIONAL = ("cifar_nv", "resnet18_c_held")  # with the units that the paper's solver has


def _at(value: str, sweep: int, networks: Sequence[str] = (), digits: int = 3) -> Callable[[pd.DataFrame], Estimates]:
    """A value after a sweep, by network (all if none is named)."""

    def estimate(table: pd.DataFrame) -> Estimates:
        return {_label(name): _one(table, name, value, sweep, digits) for name in networks or table["network"].unique()}

    return estimate


def _one(table: pd.DataFrame, network: str, value: str, sweep: int, digits: int) -> Estimate:
    row = one(table, network=network, pooling="plain", sweep=sweep)
    mean = float(row[f"{value}_mean"])
    return Estimate(mean, *interval(mean, float(row[f"{value}_sd"]), int(row["n"])), digits=digits)


def _label(network: str) -> str:
    return LABELS.get(network, network) + ", the paper's units" * network.endswith("_held")


def _needed(table: pd.DataFrame) -> Estimates:
    found: Estimates = {}
    for network in CONVOLUTIONAL:
        rows = some(table, network=network, pooling="plain").sort_values("sweep")
        ends = [interval(row.normalised_mean, row.normalised_sd, int(row.n)) for row in rows.itertuples()]
        curves = (rows["normalised_mean"], [low for low, _ in ends], [high for _, high in ends])
        mean, low, high = (_first(rows["sweep"], curve) for curve in curves)
        found[_label(network)] = Estimate(mean, low, high, digits=0)
    return found


def _first(sweeps: Iterable[int], left: Iterable[float]) -> float:
    """First sweep after which at most 5% of the decrease is left; infinite if none."""
    return float(min((sweep for sweep, share in zip(sweeps, left, strict=True) if share <= 0.05), default=math.inf))


_LEFT = "share of the objective's decrease that is left after {} sweeps"
_CLAIMS = (
    Claim(
        "bcd_mlp_five",
        "For the MLP, five sweeps make about 90% of the objective's decrease",
        "about 90% made",
        _LEFT.format("five"),
        _at("normalised", 5, ("mlp",)),
        (0.05, 0.15),
        unit="left",
        cases="network",
    ),
    Claim(
        "bcd_conv_ten",
        "For CIFAR-NV and ResNet-18-C, ten sweeps make only 20-30% of the decrease",
        "20-30% made",
        _LEFT.format("ten"),
        _at("normalised", 10, CONVOLUTIONAL),
        (0.65, 0.85),
        unit="left",
        cases="network",
    ),
    Claim(
        "bcd_conv_needed",
        "25-30 sweeps are needed to approach convergence on CIFAR-NV and ResNet-18-C",
        "25-30",
        "sweeps until the mean curve has made 95% of the decrease; the interval is where the ends of the curve's "
        "interval do",
        _needed,
        (20.0, 35.0),
        unit="sweeps",
        cases="network",
    ),
    Claim(
        "bcd_mlp_update",
        "After 20 sweeps the mean update of the MLP is below 0.01",
        "below 0.01",
        "mean absolute change of u in sweep 20",
        _at("update", 20, ("mlp",), 4),
        at_most(0.01),
        cases="network",
    ),
    Claim(
        "bcd_conv_update",
        "After 20 sweeps the mean update of CIFAR-NV and ResNet-18-C is still about 0.1",
        "about 0.1",
        "mean absolute change of u in sweep 20",
        _at("update", 20, CONVOLUTIONAL),
        (0.03, 0.3),
        cases="network",
    ),
    Claim(
        "bcd_near_optimal",
        "Ten sweeps are near-optimal for the MLP",
        "near-optimal for simple networks",
        _LEFT.format("ten") + ", up to the true optimum",
        _at("to_optimum", 10, ("mlp",)),
        at_most(0.1),
        unit="left",
        cases="network",
    ),
    Claim(
        "bcd_converged_in_ten",
        "Typically the solver converges in fewer than ten sweeps",
        "fewer than 10",
        _LEFT.format("ten") + ", up to the true optimum",
        _at("to_optimum", 10),
        at_most(0.1),
        unit="left",
        cases="network",
    ),
    Claim(
        "bcd_printed_scale",
        "Applied as printed, D = exp(Bu), the solution is worse than no rescaling; D = exp(-Bu/2) is meant",
        "exp(Bu) in the text and both algorithms",
        "the objective at exp(Bu), normalized so that no rescaling is 1 and exp(-Bu/2) is 0",
        _at("printed", 0, (), 1),
        above(1.0),
        ERRATUM,
        cases="network",
    ),
)


EXPERIMENT = Experiment(
    name="bcd",
    title="Convergence of the sweeps",
    where="appendix H.2",
    caption=(
        "Objective minus its last value after each sweep, as a fraction of its whole decrease (a). Mean absolute "
        "change of u = 2 log λ in each sweep (b). Means over {seeds_count} seeds; bands are one standard deviation. "
        "The MLP has no pools, so both ways to count them give the same curves. In ResNet-18-C, "
        "paper's units, the channels before the last layer are not rescaled, as in the paper's solver."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=KEYS,
    version=2,
    measure=measure,
    parts=parts,
    table=table,
)
