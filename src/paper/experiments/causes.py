"""Ours: does anything that is measured at the start predict whether the ten-sweep rescaling helps a network?

The networks, starts and gains are those of `practice`. Three causes are tried: the size of the scales; the change of
each layer's effective learning rate, which is the norm of its update over the norm of its weights; and the condition
number of the NTK. All three are measured in float64 and in train mode, before and after the rescaling.

A layer is a parameter with at least two axes of more than one entry: a matrix or a kernel. Its relative update is the
mean over the first steps, with the network's optimiser at the smallest learning rate of its grid. The NTK is that of
the first output on a few images; of a text's windows, that of the first output at the last character. BatchNorm has
the statistics of these images, and gradients pass through them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paper import plotting
from paper.experiments import practice
from paper.experiments.base import Experiment, Part, Runs
from paper.experiments.conditioning import numbers
from paper.lazy import functional, nn, np, pathcond, pd, torch
from paper.methods import describe
from paper.settings import AtLeast2, Block, PositiveInt, plain
from paper.verdicts import Claim, Estimate, Finding, NotMeasured, decide, rank, rank_estimate


class Settings(Block):
    """The networks of `practice`, and what is measured of them."""

    practice: practice.Settings
    steps: PositiveInt  # after the start, whose updates are measured
    batch: AtLeast2  # images of a step, or windows of a text
    images: AtLeast2  # of the NTK, or windows


def parts(settings: Settings) -> Iterator[Part]:
    """One part per network and seed."""
    own = {name: value for name, value in plain(settings).items() if name != "practice"}
    for grid in practice.all_grids(settings.practice):
        shared = {name: grid[name] for name in ("network", "model", "optimiser", "clip", "dataset") if name in grid}
        shared |= {"lr": min(grid["lrs"]), "rescaling": describe(practice.FULL), **own}
        for seed in grid["seeds"]:
            yield f"{grid['network']}-seed{seed}", {**shared, "seed": seed}


# Measurement


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row: a network before and after its rescaling.

    Columns network, seed, parameters; units (that have a scale), max_log_scale and mean_log_scale (of them), moved
    (share of all hidden units whose abs(log lambda) is above 0.001); layers (whose updates are compared), update
    (relative update after over before, median over layers) and update_deviation (over layers, of log2 of the same); and
    the columns of the NTK's spectrum, see :mod:`paper.experiments.conditioning`.
    """
    from paper import models, starts
    from paper.training import datasets
    from paper.training.modules import RESCALE_BATCH

    wanted = max(settings["images"], settings["steps"] * settings["batch"], RESCALE_BATCH)
    sizes = {"images": wanted, "validation": 0, "test_images": 1}
    splits = datasets.load({**settings, **sizes}, settings["data"], device)
    text = settings["model"]["kind"] in models.TEXT
    x = splits.train.images.long() if text else splits.train.images.float() * splits.scale + splits.shift
    before = starts.network(settings).to(device)
    after = copy.deepcopy(before)
    graph, solution, _ = starts.log_scales(settings, after, batch=x[:RESCALE_BATCH])
    pathcond.apply_scales_(after, graph, solution["u"])
    logs = solution["u"].abs() / 2
    x, states = x if text else x.double(), {"before": before.double().train(), "after": after.double().train()}
    updates = [relative_updates(module, x, splits.train.labels, settings) for module in states.values()]
    changes = torch.tensor([*log_changes(*updates)], dtype=torch.float64)
    row = {
        "network": settings["network"],
        "seed": settings["seed"],
        "parameters": models.parameters(before),
        "units": graph.units,
        "max_log_scale": float(logs.max()) if len(logs) else 0.0,
        "mean_log_scale": float(logs.mean()) if len(logs) else 0.0,
        "moved": float((logs > MOVED).sum()) / (graph.units + graph.frozen_units),
        "layers": len(changes),
        "update": 2.0 ** float(changes.quantile(0.5)),
        "update_deviation": float(changes.std(correction=0)),
    }
    for state, module in states.items():
        row |= numbers(torch.linalg.eigvalsh(tangent_kernel(module, x[: settings["images"]])), state)
    return pd.DataFrame([row])


MOVED = 1e-3  # as in the library's report


def relative_updates(
    module: nn.Module, x: torch.Tensor, labels: torch.Tensor, settings: Mapping[str, Any]
) -> dict[str, float]:
    """Norm of the update over norm of the weights of every layer, mean over the first steps; the module is not changed.

    The module is in the mode of its training; inputs and labels are in the order of the steps.
    """
    from paper.training.optimisers import optimisers

    module = copy.deepcopy(module)
    found = optimisers(module, settings["optimiser"], settings["lr"])
    layers = {name: p for name, p in module.named_parameters() if sum(size > 1 for size in p.shape) > 1}
    sums = dict.fromkeys(layers, 0.0)
    for first in range(0, settings["steps"] * settings["batch"], settings["batch"]):
        chosen = slice(first, first + settings["batch"])
        functional.cross_entropy(module(x[chosen]).flatten(0, -2), labels[chosen].flatten()).backward()
        if settings.get("clip"):
            torch.nn.utils.clip_grad_norm_(module.parameters(), settings["clip"])
        old = {name: layer.detach().clone() for name, layer in layers.items()}
        for optimiser in found:
            optimiser.step()
            optimiser.zero_grad()
        for name, layer in layers.items():
            sums[name] += float((layer.detach() - old[name]).norm() / old[name].norm())
    return {name: value / settings["steps"] for name, value in sums.items()}


def log_changes(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[float]:
    """log2 of each layer's relative update after over before; layers that start at zero have none."""
    for name in before:
        if all(0 < updates[name] < math.inf for updates in (before, after)):
            yield math.log2(after[name] / before[name])


def tangent_kernel(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The NTK (n, n) of the first output of any network, in the mode that it is in, on images or windows (n, ...).

    The gradient of each output is computed by itself. Only if BatchNorm couples images does it need all of them. Of a
    text, the output of a window's last character counts.
    """
    module = copy.deepcopy(module)  # train mode moves running statistics
    parameters = list(module.parameters())
    norms = nn.BatchNorm1d | nn.BatchNorm2d
    coupled = any(isinstance(part, norms) and part.training for part in module.modules())
    together = module(x) if coupled else None
    gradients = []
    for number in range(len(x)):
        y = module(x[number : number + 1])[0] if together is None else together[number]
        y = y[..., 0] if y.ndim == 1 else y[-1, 0]
        gradients.append(torch.autograd.grad(y, parameters, retain_graph=coupled))
    gram = parameters[0].new_zeros(len(x), len(x))
    for of_one in zip(*gradients, strict=True):
        rows = torch.stack([gradient.flatten() for gradient in of_one])
        gram += rows @ rows.T
    return gram


# The table


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The measured rows, with the network's normalisation, and the gain of its runs of `practice` where there are any.

    Columns of the gain: gain (points, each method at its own best learning rate), low and high (its interval).
    """
    measured = pd.concat([table for table, _ in runs if "epoch" not in table], ignore_index=True)
    models = {name: network["model"] for name, network in settings["practice"]["networks"].items()}
    measured["normalisation"] = [practice.normalisation(models[name]) for name in measured["network"]]
    columns = ["network", "gain", "low", "high"]
    gains = pd.DataFrame(columns=columns).astype(dict.fromkeys(columns[1:], float))
    if trained := [(table, provenance) for table, provenance in runs if "epoch" in table]:
        found = practice.table(trained, settings["practice"])
        gains = found.loc[(found["panel"] == "best") & (found["method"] == practice.FULL), columns]
    return measured.merge(gains, on="network", how="left")


def points(table: pd.DataFrame) -> pd.DataFrame:
    """One row per network that has a gain: means over seeds, geometric ones of factors.

    `fall` is that of the NTK's condition number, `growth` that of its mean eigenvalue.
    """
    rows = table.dropna(subset="gain")
    factors = {
        "update": rows["update"],
        "fall": rows["condition_before"] / rows["condition_after"],
        "growth": rows["mean_after"] / rows["mean_before"],
    }
    logs = rows.assign(**{name: np.log(values) for name, values in factors.items()})
    values = ["max_log_scale", "mean_log_scale", "moved", "update_deviation", *factors, "gain", "low", "high"]
    found = logs.groupby(["network", "normalisation"], sort=False)[values].mean()
    return found.assign(**{name: np.exp(found[name]) for name in factors}).reset_index()


def correlation(found: pd.DataFrame, value: str) -> Estimate:
    """Rank correlation of a column of :func:`points` with the gain, with a bootstrap interval over networks."""
    return rank_estimate(found[value].tolist(), found["gain"].tolist(), "networks with a gain")


# The figure


class Cause(NamedTuple):
    """A panel: column of :func:`points`, title, label of the axis, and whether it is a ratio."""

    value: str
    title: str
    label: str
    is_ratio: bool = False


CAUSES = (
    Cause("max_log_scale", "Scales", r"largest $|\log\,\lambda|$"),
    Cause("update", "Relative updates", "after / before, median over layers", is_ratio=True),
    Cause("update_deviation", "Uneven updates", r"deviation over layers of $\log_2$(after / before)"),
    Cause("fall", "NTK", "condition number, before / after", is_ratio=True),
)
MARKERS = "os^DvPX"


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Gain of the ten-sweep rescaling against each cause, one point per network: 2 x 2, a page wide."""
    figure, axes = plotting.panels(2, 2, plotting.PAGE, 5.4)
    found = points(table)
    for place, cause in zip(axes, CAUSES, strict=True):
        _draw(place, found, cause)
    plotting.letters(axes)
    if len(found):
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    plotting.note(figure, "blue: no normalisation; orange: BatchNorm; green: LayerNorm")
    return figure


def _draw(axes: plotting.Axes, found: pd.DataFrame, cause: Cause) -> None:
    colours = {"none": plotting.BLUE, "BatchNorm": plotting.ORANGE, "LayerNorm": plotting.GREEN}
    for normalisation, part in found.groupby("normalisation", sort=False):
        for marker, (_, row) in zip(MARKERS, part.iterrows(), strict=False):
            bars = [[row["gain"] - row["low"]], [row["high"] - row["gain"]]] if math.isfinite(row["high"]) else None
            look: dict[str, Any] = {"color": colours[str(normalisation)], "marker": marker, "linestyle": ""}
            axes.errorbar(row[cause.value], row["gain"], yerr=bars, elinewidth=0.6, label=row["network"], **look)
    axes.axhline(0.0, color=plotting.GREY, linewidth=0.6, linestyle="--", zorder=1)
    if cause.is_ratio and len(found):
        axes.set_xscale("log")
        plotting.ratios(axes.xaxis)
    else:
        axes.locator_params(axis="x", nbins=5)
    try:
        text = f"rank correlation {correlation(found, cause.value).words}"
    except NotMeasured:
        text = "no rank correlation"
    axes.set(xlabel=cause.label, ylabel="gain (points)", title=cause.title)
    axes.set_title(text, loc="right", fontsize="x-small", color=plotting.GREY)


# Claims


def _predicts(table: pd.DataFrame, claim: str, value: str, others: Mapping[str, str]) -> Finding:
    found = points(table)
    estimate = correlation(found, value)
    ends = f"{found[value].min():.2f} to {found[value].max():.2f}"
    ranks = {label: rank(found[name].tolist(), found["gain"].tolist()) for name, label in others.items()}
    listed = ", ".join(f"{label} {value:.2f}" for label, value in ranks.items() if not math.isnan(value))
    words = f"over {len(found)} networks, where it is {ends}" + f"; rank correlation of {listed}" * bool(listed)
    return Finding(words, decide(estimate, claim), estimate, "rank correlation")


_RULE = "rank correlation of {} with the gain in points of `practice`, with a bootstrap interval over networks"
_CLAIMS = (
    Claim.ours(
        "causes_scales",
        "The larger the scales of the ten-sweep rescaling, the larger its gain at the best learning rate",
        _RULE.format("the largest |log lambda|"),
        lambda table: _predicts(
            table,
            "causes_scales",
            "max_log_scale",
            {"mean_log_scale": "the mean |log lambda|", "moved": "the share of units moved"},
        ),
        paper="larger where widths vary",
    ),
    Claim.ours(
        "causes_updates",
        "The more the rescaling raises the effective learning rates of the layers, the larger the gain",
        _RULE.format("the relative update after over before, median over layers,"),
        lambda table: _predicts(table, "causes_updates", "update", {}),
    ),
    Claim.ours(
        "causes_uneven",
        "The less evenly the rescaling changes the effective learning rates of the layers, the smaller the gain",
        _RULE.format("the deviation over layers of log2 of the relative update after over before"),
        lambda table: _predicts(table, "causes_uneven", "update_deviation", {}),
    ),
    Claim.ours(
        "causes_ntk",
        "The more the condition number of the NTK falls, the larger the gain",
        _RULE.format("the condition number before over after"),
        lambda table: _predicts(table, "causes_ntk", "fall", {"growth": "the growth of the mean eigenvalue"}),
    ),
)


EXPERIMENT = Experiment(
    name="causes",
    title="What predicts the gain",
    where="ours",
    caption=(
        "Gain of the ten-sweep rescaling in test accuracy, from `practice`, against what is measured at the start: the "
        "largest scale (a); each layer's update relative to its weights in the first {steps} steps, after over before "
        "the rescaling, as the median over layers (b) and the spread over them (c); the condition number of the NTK on "
        "{images} images or windows of text, before over after (d). One point per network, mean over seeds; bars are "
        "95% intervals of the gain. Above each panel: rank correlation with its bootstrap interval over networks."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("network",),
    measure=measure,
    parts=parts,
    table=table,
    also=("practice",),
)
