"""Appendix: smooth activations, and the output change that a rescaling makes where they are not homogeneous."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from paper import plotting, verdicts
from paper.aggregate import joined, summary
from paper.experiments.base import Experiment, Runs
from paper.lazy import nn, np, pathcond, pd, torch
from paper.seeds import generator
from paper.settings import Activation, Block, Distinct, Initialisation, Positive, PositiveInt, SeedList
from paper.verdicts import Claim, Estimate, Estimates, NotMeasured, at_least, at_most, below, noted, some

LABELS = {"gelu": "GELU", "silu": "SiLU", "relu": "ReLU"}
GRAPHS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
}
LINES = {"default": ("-", "default initialization"), "he": ("--", "He initialization")}
KEYS = ("activation", "initialisation", "hidden_layers")


class Settings(Block):
    """MLPs by depth; `samples` inputs are averaged over, `clamp` bounds every abs(u)."""

    activations: Distinct[Activation]
    initialisations: Distinct[Initialisation]
    hidden_layers: Distinct[PositiveInt]
    inputs: PositiveInt
    width: PositiveInt
    outputs: PositiveInt
    samples: PositiveInt
    sweeps: PositiveInt
    clamp: Positive
    seeds: SeedList


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row per activation, initialization, depth and seed: relative output change of MLPs with BatchNorm.

    At one seed and depth all activations share weights and inputs, which are normal. Everything is in float64, with
    BatchNorm left out of the units; in eval mode but for `train_error`.

    Columns activation, `initialisation`, hidden_layers, seed, error (norm of the output's change over the norm of the
    output, mean over samples), train_error (the same in train mode, with the samples as the batch), max_u (largest
    absolute u), clamped (units at the bound); and without the bound: free_u (largest absolute u), kept_u and kept_error
    (u and change where the activations are kept in diag(G), NaN where there is no solution).
    """
    return pd.DataFrame(list(_rows(settings, device)))


def _rows(settings: Mapping[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    from paper import models

    for activation, depth in product(settings["activations"], settings["hidden_layers"]):
        model = {
            "kind": "mlp", "inputs": settings["inputs"], "hidden": [settings["width"]] * depth,
            "outputs": settings["outputs"], "activation": activation,
        }  # fmt: skip
        graph = None
        for initialisation, seed in product(settings["initialisations"], settings["seeds"]):
            module = models.make(model, seed, "smooth", depth, initialisation=initialisation)
            module = module.double().to(device).eval()
            draws = generator(seed, "input", "smooth", depth)
            x = torch.randn(settings["samples"], settings["inputs"], generator=draws, dtype=torch.float64).to(device)
            graph = graph or pathcond.extract_graph(module, x[:1], batchnorm="exclude", smooth=True)
            names = {"activation": activation, "initialisation": initialisation, "hidden_layers": depth, "seed": seed}
            yield names | _change(module, graph, x, settings["sweeps"], settings["clamp"])


def _change(module: nn.Module, graph: Any, x: torch.Tensor, sweeps: int, clamp: float) -> dict[str, float]:
    g = pathcond.compute_diag_g(module, x[:1], graph=graph)
    bounded = 2 * pathcond.solve(graph, g, sweeps=sweeps, clamp=clamp / 2).log_scales
    free = 2 * pathcond.solve(graph, g, sweeps=sweeps).log_scales
    try:
        kept = 2 * pathcond.solve(graph, _kept_magnitudes(module, x[:1]), sweeps=sweeps).log_scales
    except pathcond.SolveError:
        kept = torch.full_like(free, float("nan"))
    return {
        "error": _error(module, graph, x, bounded),
        "train_error": _error(module, graph, x, bounded, training=True),
        "max_u": float(bounded.abs().amax()),
        "clamped": int((bounded.abs() >= clamp).sum()),
        "free_u": float(free.abs().amax()),
        "kept_u": float(kept.abs().amax()),
        "kept_error": _error(module, graph, x, kept) if bool(kept.isfinite().all()) else float("nan"),
    }


def _error(module: nn.Module, graph: Any, x: torch.Tensor, u: torch.Tensor, training: bool = False) -> float:
    """Relative change of the outputs that log-scales make; the module is left as it is."""
    before, after = copy.deepcopy(module).train(training), copy.deepcopy(module).train(training)
    pathcond.apply_scales_(after, graph, u / 2)
    with torch.no_grad():
        first, second = before(x), after(x)
    return float(((second - first).norm(dim=1) / first.norm(dim=1)).mean())


def _kept_magnitudes(module: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """diag(G) computed with the activations kept in the network of squared weights, on ones."""
    squared = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in squared.parameters():
            parameter.square_()
    names, parameters = zip(*squared.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(squared(torch.ones_like(x)).sum(), parameters), strict=True))


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Means and deviations over seeds."""
    values = ("error", "train_error", "max_u", "clamped", "free_u", "kept_u", "kept_error", "trend")
    every = joined(runs, settings)
    curves = every.groupby(["activation", "initialisation", "seed"])["error"]
    every["trend"] = curves.transform(lambda one: verdicts.rank(list(every.loc[one.index, "hidden_layers"]), list(one)))
    return summary(every, KEYS, values)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Graphs of the activations, and the change of the output against depth."""
    looks = {"gelu": (plotting.BLUE, "o"), "silu": (plotting.ORANGE, "s"), "relu": (plotting.BLACK, "")}
    figure, axes = plotting.panels(1, 2, plotting.PAGE, 2.6, gridspec_kw={"wspace": 0.08})
    names = list(dict.fromkeys(table["activation"]))
    x = np.linspace(-4, 3, 281)
    for name in names:
        axes[0].plot(x, [GRAPHS[name](value) for value in x], color=looks[name][0])
    axes[0].set(xlabel="$x$", ylabel="activation", xlim=(-4, 3), title="Activations")
    smooth = table.query("activation != 'relu'")
    for (name, initialisation), rows in smooth.groupby(["activation", "initialisation"], sort=False):
        colour, marker = looks[name]
        look = {"color": colour, "marker": marker, "linestyle": LINES[initialisation][0]}
        # A band down to zero would run out of the logarithmic axis.
        plotting.band(axes[1], plotting.spread(rows, "error", 1e-3), "hidden_layers", look)
    axes[1].set(xlabel="hidden layers", ylabel="relative output change", yscale="log", title="Change made by rescaling")
    axes[1].set_ylim(0.2 * min(smooth["error_mean"]), max(2.0, 2 * max(smooth["error_mean"])))
    axes[1].set_xticks(sorted(set(smooth["hidden_layers"])))
    relu = table.query("activation == 'relu'")
    if len(relu):
        text = f"ReLU: at most {max(relu['error_mean']):.0e} (rounding)"
        axes[1].text(0.97, 0.04, text, transform=axes[1].transAxes, ha="right", fontsize="x-small")
    handles = [plotting.handle(color=looks[n][0], marker=looks[n][1], label=LABELS[n]) for n in names]
    lines = (LINES[name] for name in dict.fromkeys(smooth["initialisation"]))
    handles += [plotting.handle(color=plotting.GREY, linestyle=line, label=label) for line, label in lines]
    plotting.letters(axes)
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handlelength=2.6)
    return figure


EXACT = 1e-10  # of the output, in float64
NEAR = 5.0  # factor from the paper's number


def _errors(table: pd.DataFrame, initialisation: str = "default") -> pd.Series:
    rows = some(table, activation="gelu", initialisation=initialisation)
    if len(rows) < 2:
        raise NotMeasured("one depth shows no trend")
    return rows.sort_values("hidden_layers").set_index("hidden_layers")["error_mean"]


def _largest_error(column: str) -> Callable[[pd.DataFrame], Estimate]:
    """The largest relative change of the output of networks with ReLU."""
    return lambda table: Estimate.exact(some(table, activation="relu")[column].max(skipna=False), digits=None)


def _off(table: pd.DataFrame) -> Estimates:
    """GELU's error over the paper's at both ends."""
    curve = _errors(table)
    ends = ((curve.index[0], curve.iloc[0], 1e-1), (curve.index[-1], curve.iloc[-1], 1e-3))
    return {
        f"{depth} hidden layers, over {printed:g}": Estimate.exact(error / printed) for depth, error, printed in ends
    }


def _trend(table: pd.DataFrame) -> Estimate:
    """Rank correlation of GELU's error with depth, mean over seeds."""
    row = some(table, activation="gelu", initialisation="default").iloc[0]
    if math.isnan(row["trend_mean"]):
        raise NotMeasured("one depth shows no trend")
    low, high = verdicts.interval(row["trend_mean"], row["trend_sd"], int(row["n"]))
    return Estimate(row["trend_mean"], max(-1.0, low), min(1.0, high), seeds=int(row["n"]))


def _not_finite(table: pd.DataFrame) -> Estimate:
    rows = some(table, activation="gelu")[["free_u_mean", "kept_u_mean", "kept_error_mean"]].astype(float)
    share = float((~np.isfinite(rows).all(axis=1)).mean())
    largest = rows[["free_u_mean", "kept_u_mean"]].max().max()
    return noted(Estimate.exact(share), f"largest |u| {largest:.2g}")


_CLAIMS = (
    Claim(
        "relu_exact",
        "For ReLU the rescaling keeps the function exactly (in eval mode, at the start)",
        "exact",
        "largest relative change of the output in float64, over depths and initializations",
        _largest_error("error_mean"),
        at_most(EXACT),
        unit="of the output",
    ),
    Claim.ours(
        "batchnorm_training",
        "Networks with BatchNorm keep their function in train mode too",
        "largest relative change of the output in train mode, over depths and initializations",
        _largest_error("train_error_mean"),
        at_most(EXACT),
        paper="train and eval mode not distinguished",
        unit="times the output",
    ),
    Claim(
        "gelu_error",
        "For GELU the relative change is about 0.1 with one hidden layer and 0.001 with eight",
        "0.1 at L = 2 to 0.001 at L = 9",
        "mean relative change over the paper's",
        _off,
        (1 / NEAR, NEAR),
        unit="times the paper's",
        cases="depth",
    ),
    Claim(
        "gelu_error_falls",
        "For GELU the relative change falls with depth",
        "decreases with depth",
        "rank correlation of the relative change with depth, mean over seeds, default initialization",
        _trend,
        below(0.0),
        unit="rank correlation",
    ),
    Claim(
        "gelu_clamp",
        "Without a bound on u, MLPs with GELU can give NaN",
        "NaN without |u| <= 5",
        "share of the depths and initializations with a value that is not finite, with the activation left out of "
        "diag(G) or kept in it",
        _not_finite,
        at_least(0.01),
        unit="of the cases",
    ),
)


EXPERIMENT = Experiment(
    name="smooth",
    title="Smooth activations",
    where="appendix O",
    caption=(
        "GELU and SiLU beside ReLU (a), and the relative change of the output that the rescaling makes in MLPs with "
        "these activations, against depth, for two initializations (b). Means over {seeds_count} seeds; bands are one "
        "standard deviation."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=KEYS,
    version=2,
    measure=measure,
    table=table,
)
