"""Appendix: smooth activations, and the output change that a rescaling makes where they are not homogeneous."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from paper import plotting
from paper.aggregate import joined, summary
from paper.experiments.base import Experiment, Runs
from paper.lazy import nn, np, pathcond, pd, torch
from paper.seeds import generator
from paper.settings import Activation, Block, Distinct, Initialisation, Positive, PositiveInt, SeedList
from paper.verdicts import NO, PARTLY, YES, Claim, Finding, NotMeasured, of_all, some

LABELS = {"gelu": "GELU", "silu": "SiLU", "relu": "ReLU"}
GRAPHS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
}
LINES = {"default": ("-", "default initialisation"), "he": ("--", "He initialisation")}
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
    """One row per activation, initialisation, depth and seed: relative output change of MLPs with BatchNorm.

    At one seed and depth all activations share weights and inputs, which are normal. Everything is in float64, with
    BatchNorm left out of the units; in eval mode but for `train_error`.

    Columns activation, initialisation, hidden_layers, seed, error (norm of the output's change over the norm of the
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


def _change(
    module: nn.Module, graph: pathcond.ScaleGraph, x: torch.Tensor, sweeps: int, clamp: float
) -> dict[str, float | int]:
    g = pathcond.compute_diag_g(module, x[:1], graph=graph)
    bounded = pathcond.solve(graph, g, sweeps=sweeps, clamp=clamp / 2).u
    free = pathcond.solve(graph, g, sweeps=sweeps).u
    try:
        kept = pathcond.solve(graph, _kept_magnitudes(module, x[:1]), sweeps=sweeps).u
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


def _error(
    module: nn.Module, graph: pathcond.ScaleGraph, x: torch.Tensor, u: torch.Tensor, training: bool = False
) -> float:
    """Relative change of the outputs that log-scales make; the module is left as it is."""
    before, after = copy.deepcopy(module).train(training), copy.deepcopy(module).train(training)
    pathcond.apply_scales_(after, graph, u)
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
    values = ("error", "train_error", "max_u", "clamped", "free_u", "kept_u", "kept_error")
    return summary(joined(runs, settings), KEYS, values)


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
BOUND = 5.0  # of the paper, on every |u|


def _errors(table: pd.DataFrame, activation: str, initialisation: str = "default") -> pd.Series:
    rows = some(table, activation=activation, initialisation=initialisation)
    if len(rows) < 2:
        raise NotMeasured("one depth shows no trend")
    return rows.sort_values("hidden_layers").set_index("hidden_layers")["error_mean"]


def _exact(table: pd.DataFrame) -> Finding:
    worst = float(some(table, activation="relu")["error_mean"].max(skipna=False))
    return Finding(f"at most {worst:.1e} of the output", YES if worst < EXACT else NO)


def _training(table: pd.DataFrame) -> Finding:
    rows = some(table, activation="relu", initialisation="default").sort_values("hidden_layers")
    errors = rows["train_error_mean"]
    first, last = rows["hidden_layers"].iloc[[0, -1]]
    text = f"relative change, hidden layers {first}: {errors.iloc[0]:.2g}, {last}: {errors.iloc[-1]:.2g}"
    return Finding(text, of_all((errors < EXACT).tolist()))


def _falls(table: pd.DataFrame) -> Finding:
    curve = _errors(table, "gelu")
    ends = float(curve.iloc[0]), float(curve.iloc[-1])
    near = [0.2 <= end / printed <= 5.0 for end, printed in zip(ends, (1e-1, 1e-3), strict=True)]
    falling = bool((curve.diff().iloc[1:] < 0).all())
    text = f"{ends[0]:.2g} at {curve.index[0]} to {ends[1]:.2g} at {curve.index[-1]} hidden layers"
    return Finding(text, of_all([falling, *near]))


def _identity(table: pd.DataFrame) -> Finding:
    gelu, silu = _errors(table, "gelu"), _errors(table, "silu")
    lower = (gelu < silu).tolist()
    return Finding(f"GELU's error is the smaller at {sum(lower)} of {len(lower)} depths", of_all(lower))


def _he(table: pd.DataFrame) -> Finding:
    curve = _errors(table, "gelu", "he")
    text = f"with He initialisation {curve.iloc[0]:.2g} at {curve.index[0]}, {curve.iloc[-1]:.2g} at {curve.index[-1]}"
    return Finding(f"{text} hidden layers", YES if curve.iloc[-1] < curve.iloc[0] else NO)


def _clamp(table: pd.DataFrame) -> Finding:
    rows = some(table, activation="gelu")
    broken = not math.isfinite(rows[["free_u_mean", "kept_u_mean", "kept_error_mean"]].to_numpy(float).sum())
    free, kept = float(rows["free_u_mean"].max()), float(rows["kept_u_mean"].max())
    answer = YES if broken else PARTLY if max(free, kept) > BOUND else NO
    seen = "NaN" if broken else "no NaN"
    text = f"{seen}; largest |u| without the bound (mean of seeds) {free:.2g}, or {kept:.2g} with GELU kept in diag(G)"
    return Finding(text, answer)


_CLAIMS = (
    Claim(
        "relu_exact",
        "For ReLU the rescaling keeps the function exactly (in eval mode, at the start)",
        "exact",
        f"relative change of the output below {EXACT:g} in float64, at every depth and initialisation",
        _exact,
    ),
    Claim.ours(
        "batchnorm_training",
        "Networks with BatchNorm keep their function in train mode too",
        f"relative change of the output in train mode, ReLU, default initialisation, below {EXACT:g}",
        _training,
        paper="train and eval mode not distinguished",
        cases="depth",
    ),
    Claim(
        "gelu_error",
        "For GELU the relative change falls with depth, from about 0.1 to 0.001",
        "0.1 at 2 layers to 0.001 at 9",
        "it falls with every layer, and both ends are within a factor 5 of the paper's; all three conditions: "
        "reproduced, some: partly",
        _falls,
    ),
    Claim.ours(
        "gelu_error_any_init",
        "GELU's error falls with depth because of the activation",
        "it falls with He initialisation too",
        _he,
        paper="seen at the default initialisation",
    ),
    Claim(
        "gelu_near_identity",
        "GELU's error is smaller than SiLU's, because GELU is nearer to the identity",
        "given as consistent with what is seen",
        "GELU's error, mean over seeds, is smaller at the default initialisation",
        _identity,
        cases="depth",
    ),
    Claim(
        "gelu_clamp",
        "Without a bound on u, MLPs with GELU can give NaN",
        "NaN without |u| <= 5",
        "NaN without the bound, with the activation left out of diag(G) or kept in it: reproduced; no NaN, but |u| "
        f"above {BOUND:g}: partly",
        _clamp,
    ),
)


EXPERIMENT = Experiment(
    name="smooth",
    title="Smooth activations",
    where="appendix O",
    caption=(
        "GELU and SiLU beside ReLU (a), and the relative change of the output that the rescaling makes in MLPs with "
        "these activations, against depth, for two initialisations (b). Means over {seeds_count} seeds; bands are one "
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
