"""Ours: condition numbers of the path kernel and of the NTK before and after the rescaling, and the speed-up.

Symbols: Phi is the path-lifting and G = dPhi^T dPhi the path kernel, whose non-zero spectrum is that of dPhi dPhi^T.
The NTK of images x_i is the Gram matrix of df_c(x_i)/dtheta, summed over outputs c. A condition number is the largest
eigenvalue over the smallest that is not zero, which means above `ZERO` times the largest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from paper import plotting
from paper import settings as fields
from paper.experiments.base import Experiment, Part, Runs
from paper.lazy import functional, nn, np, pathcond, pd, torch
from paper.methods import describe
from paper.verdicts import Claim, Estimate, Estimates, NotMeasured, above, at_least, correlation, noted, rank

ZERO = 1e-10  # of the largest eigenvalue; rounding in float64 makes about 1e-13 of it
LOW = 0.1  # quantile of the eigenvalues that stands for the small ones where the smallest is an outlier
PATH, NTK, BATCH = "path", "ntk", "ntk_batch"
LEAST = 3  # networks of a rank correlation


class Small(fields.Block):
    """Networks without BatchNorm whose paths can be listed: all hidden widths with all initializations and seeds."""

    inputs: fields.PositiveInt
    outputs: fields.PositiveInt
    hidden: fields.Distinct[fields.Some[fields.PositiveInt]]
    initialisations: fields.Distinct[fields.Initialisation]
    seeds: fields.SeedList


class Settings(fields.Block):
    """Small networks for the path kernel; for the NTK the networks, seeds and batches of two training grids.

    The NTK in eval mode has `images` and at most `outputs`, evenly spaced. In train mode, where BatchNorm couples
    images, it is that of one batch, with `batch_outputs`.
    """

    small: Small
    mlp: fields.DepthGrid
    autoencoder: fields.CompressionGrid
    sweeps: fields.PositiveInt
    images: fields.PositiveInt
    outputs: fields.PositiveInt
    batch_outputs: fields.PositiveInt


def parts(settings: Settings) -> Iterator[Part]:
    """All small networks, then one part per network of the training grids."""
    block = fields.plain(settings)
    rescaling = {**describe("pathcond"), "sweeps": block["sweeps"]}
    yield "small", {**block["small"], "rescaling": rescaling}
    for grid in (block["mlp"], block["autoencoder"]):
        shared = {name: grid[name] for name in ("dataset", "batch", "seeds")}
        shared |= {name: block[name] for name in ("images", "outputs", "batch_outputs")}
        for network, model in fields.networks(grid):
            yield network, {"network": network, "model": model, "rescaling": rescaling, **shared}


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row per network, initialization, kernel and seed: the spectrum before and after the rescaling, in float64.

    Columns network, `initialisation`, kernel, seed, hidden_layers, compression, parameters, units, max_log_scale; and
    for both states, with the suffix _before or _after: rank (eigenvalues that are not zero), condition (of those), low
    (the largest over their quantile `LOW`), mean (of all eigenvalues).
    """
    found = _path_kernels(settings, device) if "hidden" in settings else _tangent_kernels(settings, device)
    return pd.DataFrame(list(found))


def _path_kernels(settings: Mapping[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    from paper import models

    def spectrum(module: nn.Module) -> torch.Tensor:  # by singular values, so that small eigenvalues keep their digits
        return torch.linalg.svdvals(path_jacobian(module)) ** 2

    for hidden, initialisation, seed in product(settings["hidden"], settings["initialisations"], settings["seeds"]):
        widths = [settings["inputs"], *hidden, settings["outputs"]]
        model = {"kind": "mlp", "inputs": widths[0], "hidden": hidden, "outputs": widths[-1], "batchnorm": False}
        module = models.make(model, seed, "conditioning", *hidden, initialisation=initialisation)
        names = {"network": "_".join(map(str, widths)), "initialisation": initialisation}
        facts, (values,) = compared(module, model, settings["rescaling"], device, [spectrum])
        yield {**names, "kernel": PATH, "seed": seed, **facts, **values}


def _tangent_kernels(settings: Mapping[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    from paper import models

    model, images = settings["model"], _images(settings, device)

    def in_eval_mode(module: nn.Module) -> torch.Tensor:
        return torch.linalg.eigvalsh(tangent_kernel(module.eval(), images[: settings["images"]], settings["outputs"]))

    def in_train_mode(module: nn.Module) -> torch.Tensor:
        gram = tangent_kernel(module.train(), images[: settings["batch"]], settings["batch_outputs"])
        return torch.linalg.eigvalsh(gram)

    spectra = {NTK: in_eval_mode}
    if model["kind"] == "mlp" and model.get("batchnorm", True):
        spectra[BATCH] = in_train_mode
    for seed in settings["seeds"]:
        module = models.make(model, seed)  # the network that training starts from
        facts, found = compared(module, model, settings["rescaling"], device, list(spectra.values()))
        for kernel, values in zip(spectra, found, strict=True):
            names = {"network": settings["network"], "initialisation": "default", "kernel": kernel, "seed": seed}
            yield {**names, **facts, **values}


Spectrum = Callable[["nn.Module"], "torch.Tensor"]


def compared(
    module: nn.Module,
    model: Mapping[str, Any],
    rescaling: Mapping[str, Any],
    device: torch.device,
    spectra: list[Spectrum],
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Facts of a network, and the numbers of each of its spectra before and after its rescaling."""
    from paper import models, starts

    graph, solution, _ = starts.log_scales({"model": model, "rescaling": rescaling}, module.eval())
    module.double().to(device)
    before = [numbers(spectrum(module), "before") for spectrum in spectra]
    pathcond.apply_scales_(module, graph, solution["u"].to(device) / 2)
    after = [numbers(spectrum(module), "after") for spectrum in spectra]
    facts = {
        "hidden_layers": len(model.get("hidden", ())) or None,
        "compression": model.get("compression"),
        "parameters": models.parameters(module),
        "units": graph.units,
        "max_log_scale": float(solution["u"].abs().amax()) / 2,
    }
    return facts, [first | second for first, second in zip(before, after, strict=True)]


def numbers(values: torch.Tensor, state: str) -> dict[str, float]:
    """Rank, condition numbers and mean of the eigenvalues of one state, before or after."""
    largest = values.max()
    kept = values[values > ZERO * largest]
    return {
        f"rank_{state}": len(kept),
        f"condition_{state}": float(largest / kept.min()),
        f"low_{state}": float(largest / kept.quantile(LOW)),
        f"mean_{state}": float(values.mean()),
    }


def _images(settings: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """The first training images, normalized, as the network takes them."""
    from paper.training.datasets import load

    count = max(settings["images"], settings["batch"])
    splits = load({**settings, "images": count, "validation": 0, "test_images": 1}, settings["data"], device)
    return splits.train.images.double() * splits.scale.double() + splits.shift.double()


def path_jacobian(module: nn.Module) -> torch.Tensor:
    """The Jacobian (paths, parameters) of the path-lifting of an MLP without BatchNorm, by listing all its paths.

    Paths start at an input or at any bias.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    parameters = dict(module.named_parameters())
    if sum(1 + (layer.bias is not None) for layer in layers) != len(parameters):
        raise ValueError(f"expected parameters of linear layers alone, got {', '.join(parameters)}.")
    biased = [layer.bias is not None for layer in layers]

    def lifted(values: list[torch.Tensor]) -> torch.Tensor:
        given = iter(values)
        found = values[0].new_ones(layers[0].in_features, 1)  # (units, paths that end in each)
        for has_bias in biased:
            found = (next(given)[:, :, None] * found).flatten(1)
            if has_bias:
                found = torch.cat([found, next(given)[:, None]], 1)
        return found.flatten()

    values = [parameter.detach() for parameter in parameters.values()]
    columns = []
    for number, value in enumerate(values):  # Phi is affine in each parameter tensor
        without = lifted([*values[:number], torch.zeros_like(value), *values[number + 1 :]])
        for unit in torch.eye(value.numel(), dtype=value.dtype, device=value.device):
            columns.append(lifted([*values[:number], unit.view_as(value), *values[number + 1 :]]) - without)
    return torch.stack(columns, 1)


def tangent_kernel(module: nn.Module, x: torch.Tensor, outputs: int) -> torch.Tensor:
    """The NTK (n, n) of linear and BatchNorm layers on images (n, inputs), in the mode that the module is in.

    A linear layer with inputs a and gradients d of its outputs adds <a_i, a_j> <d_i, d_j>. Where BatchNorm in train
    mode couples images, each output has a gradient at every image, and this is summed over pairs of images. The kernel
    is summed over `outputs` of the network at most, evenly spaced.
    """
    module = copy.deepcopy(module)  # train mode moves running statistics
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.BatchNorm1d)]
    if sum(len(list(layer.parameters())) for layer in layers) != len(list(module.parameters())):
        raise ValueError(f"expected linear and BatchNorm layers, got {type(module).__name__} with others.")
    taken: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []

    def record(layer: nn.Module, given: tuple[torch.Tensor, ...], z: torch.Tensor) -> None:
        taken.append((layer, given[0], z))

    for layer in layers:
        layer.register_forward_hook(record)
    y = module(x)
    coupled = any(isinstance(layer, nn.BatchNorm1d) and layer.training for layer in layers)
    gram = x.new_zeros(len(x), len(x))
    last = y.shape[1] - 1
    for output in sorted({round(k * last / max(1, outputs - 1)) for k in range(outputs)}):
        wanted = [z for _, _, z in taken]
        value = y[:, output] if coupled else y[:, output].sum()
        each = torch.eye(len(x), dtype=x.dtype, device=x.device) if coupled else None
        found = torch.autograd.grad(value, wanted, each, retain_graph=True, is_grads_batched=coupled)
        for (layer, a, _), d in zip(taken, found, strict=True):
            gram += _share(layer, a.detach(), d, coupled)
    return gram


def _share(layer: nn.Module, a: torch.Tensor, d: torch.Tensor, coupled: bool) -> torch.Tensor:
    """The term of one layer in the NTK: `a` are its inputs (n, inputs), `d` gradients of its outputs (n, outputs).

    If all images are coupled, `d` is (n, n, outputs): the gradient of network output i at image j.
    """
    if isinstance(layer, nn.Linear):
        similar = a @ a.T + float(layer.bias is not None)
        if not coupled:
            return similar * (d @ d.T)
        return (similar @ d).flatten(1) @ d.flatten(1).T
    assert isinstance(layer, nn.BatchNorm1d)  # noqa: S101 - the caller takes no others
    mean, variance = layer.running_mean, layer.running_var
    assert mean is not None and variance is not None  # noqa: S101, PT018 - it has running statistics
    normal = functional.batch_norm(a, mean.clone(), variance.clone(), training=layer.training, eps=layer.eps)
    scale, shift = (d * normal, d) if not coupled else ((d * normal).sum(1), d.sum(1))
    return scale @ scale.T + shift @ shift.T


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The measured rows, with the gain of the trained runs of the same network and seed.

    Columns of the gain: speedup (epochs of the baseline over those of PathCond to the target accuracy or, without one,
    to the higher final loss), bound (the baseline missed the target, so it is at least this), loss_ratio (final train
    loss, baseline over PathCond).
    """
    measured = pd.concat([table for table, _ in runs if "epoch" not in table], ignore_index=True)
    measured = measured.astype({"hidden_layers": float, "compression": float})
    target = settings["mlp"]["target"]
    gains = pd.DataFrame(list(_gains(runs, target)), columns=["network", "seed", "speedup", "bound", "loss_ratio"])
    return measured.merge(gains, on=["network", "seed"], how="left")


def _gains(runs: Runs, target: float) -> Iterator[tuple[str, int, float, bool, float]]:
    curves: dict[tuple[str, int], dict[str, pd.DataFrame]] = {}
    for rows, provenance in runs:
        if "epoch" in rows:
            spec = provenance["spec"]
            for seed, curve in rows.groupby("seed"):
                curves.setdefault((spec["network"], seed), {})[spec["method"]] = curve.sort_values("epoch")  # type: ignore[arg-type]
    for (network, seed), found in curves.items():
        if {"baseline", "pathcond"} <= found.keys():
            slow, fast = found["baseline"], found["pathcond"]
            ends = [float(curve["train_loss"].iloc[-1]) for curve in (slow, fast)]
            yield network, seed, *_speedup(slow, fast, target, max(ends)), ends[0] / ends[1]


def _speedup(slow: pd.DataFrame, fast: pd.DataFrame, target: float, loss: float) -> tuple[float, bool]:
    """Epochs that one curve takes over those of the other, to an accuracy or, without one, a loss."""
    epochs = []
    for curve in (slow, fast):
        met = curve["train_accuracy"] >= target if "train_accuracy" in curve else curve["train_loss"] <= loss
        epochs.append(float(curve.loc[met, "epoch"].min()))
    if math.isnan(epochs[1]):
        return math.nan, False
    bound = math.isnan(epochs[0])
    first = float(slow["epoch"].max()) if bound else epochs[0]
    return max(1.0, first) / max(1.0, epochs[1]), bound  # a start that meets a low target counts as one epoch


# Statistics


def _trained_kernel(table: pd.DataFrame) -> pd.DataFrame:
    """One row per trained network and seed: the NTK in the mode in which it was trained."""
    rows = table[table["kernel"] != PATH]
    coupled = set(rows.loc[rows["kernel"] == BATCH, "network"])
    return rows[(rows["kernel"] == BATCH) | ~rows["network"].isin(coupled)]


def _by_network(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name in words and rows of each network, MLPs by depth before autoencoders by compression."""
    ordered = rows.sort_values(["compression", "hidden_layers"], na_position="first")
    for _, part in ordered.groupby("network", sort=False):
        depth, factor = part["hidden_layers"].iloc[0], part["compression"].iloc[0]
        yield f"MLP {depth:.0f}" if math.isnan(factor) else f"c = {factor:.0f}", part


def _logs(rows: pd.DataFrame, quantity: str) -> pd.Series:
    """Logarithm of a quantity before over after: above 0 where it fell."""
    return np.log(rows[f"{quantity}_before"] / rows[f"{quantity}_after"])


def _points(table: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds of each network that has a speed-up: name, is_mlp, fall, max_log_scale, speedup, bound."""
    found = []
    for name, rows in _by_network(_trained_kernel(table)):
        if rows["speedup"].notna().all():
            fall, speedup = (math.exp(v.mean()) for v in (_logs(rows, "condition"), np.log(rows["speedup"])))
            is_mlp, bound = bool(rows["compression"].isna().all()), bool(rows["bound"].any())
            found.append((name, is_mlp, fall, speedup, rows["max_log_scale"].mean(), bound))
    return pd.DataFrame(found, columns=["name", "is_mlp", "fall", "speedup", "max_log_scale", "bound"])


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Both kernels' condition numbers, and the speed-up against its fall and against the scales: 2 x 2, a page wide."""
    figure, axes = plotting.panels(2, 2, plotting.PAGE, 4.9)
    _draw_paths(axes[0], table[table["kernel"] == PATH])
    _draw_falls(axes[1], table[table["kernel"] != PATH])
    _draw_speedups(axes[2], table, "fall", "NTK condition number, before / after")
    _draw_speedups(axes[3], table, "max_log_scale", r"largest $|\log\,\lambda|$")
    titles = ("Path kernel, small networks", "NTK at the start", "By conditioning", "By scales")
    for place, title in zip(axes, titles, strict=True):
        place.set_title(title)
    plotting.letters(axes)
    return figure


def _draw_paths(axes: plotting.Axes, rows: pd.DataFrame) -> None:
    looks = {
        "default": (plotting.BLUE, "o", "default initialization"),
        "he": (plotting.ORANGE, "s", "He initialization"),
    }
    for name, part in rows.groupby("initialisation", sort=False):
        colour, marker, label = looks[str(name)]
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "", "label": label}
        axes.plot(part["condition_before"], part["condition_after"], markerfacecolor="none", **style)
    both = rows[["condition_before", "condition_after"]].to_numpy()
    ends = both.min() / 1.5, both.max() * 1.5
    axes.plot(ends, ends, color=plotting.GREY, linewidth=0.8, linestyle="--", zorder=1, label="no change")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="condition number of G, before", ylabel="after")
    axes.legend(loc="upper left", handletextpad=0.2)


def _draw_falls(axes: plotting.Axes, rows: pd.DataFrame) -> None:
    """Condition numbers before over after, with 95% intervals over seeds, one place per network."""
    names = [name for name, _ in _by_network(rows)]
    looks = {NTK: (plotting.BLUE, "o", "eval mode"), BATCH: (plotting.RED, "^", "train mode")}
    for offset, (kernel, part) in zip((-0.12, 0.12), rows.groupby("kernel", sort=False), strict=False):
        found = {name: Estimate.geometric(_logs(one, "condition")) for name, one in _by_network(part)}
        at = [names.index(name) + offset for name in found]
        colour, marker, label = looks[str(kernel)]
        middle = np.array([one.value for one in found.values()])
        ends = [(one.low, one.high) if math.isfinite(one.high) else (one.value,) * 2 for one in found.values()]
        low, high = np.array(ends).T
        bars = [middle - low, high - middle]
        axes.errorbar(at, middle, yerr=bars, linestyle="", color=colour, marker=marker, label=label)
    axes.axhline(1.0, color=plotting.GREY, linewidth=0.8, linestyle="--", zorder=1)
    axes.set(yscale="log", ylabel="condition number, before / after", xlabel="MLP: hidden layers; c: compression")
    axes.set_xticks(range(len(names)), [name.removeprefix("MLP ").replace("c = ", "c") for name in names])
    plotting.ratios(axes.yaxis)
    axes.legend(loc="best", handletextpad=0.2)


def _draw_speedups(axes: plotting.Axes, table: pd.DataFrame, value: str, label: str) -> None:
    """One point per trained network, named; open where the speed-up is a bound."""
    points = _points(table)
    for is_mlp, part in points.groupby("is_mlp", sort=False):
        colour, marker = (plotting.BLUE, "o") if is_mlp else (plotting.ORANGE, "s")
        for row in part.to_dict("records"):
            face = "white" if row["bound"] else colour
            axes.plot(row[value], row["speedup"], color=colour, marker=marker, markerfacecolor=face, linestyle="")
            name = row["name"].replace("MLP ", "").replace("c = ", "c")
            axes.annotate(name, (row[value], row["speedup"]), (3, 3), textcoords="offset points", fontsize="x-small")
        axes.plot([], [], color=colour, marker=marker, linestyle="", label="MLP" if is_mlp else "autoencoder")
    axes.set(xlabel=label, ylabel="speed-up in epochs")
    if len(points):
        axes.legend(loc="best", handletextpad=0.2)


# Claims


def _path(table: pd.DataFrame) -> Estimate:
    rows = table[table["kernel"] == PATH]
    if rows.empty:
        raise NotMeasured("no small network")
    logs = _logs(rows, "condition")
    return noted(Estimate.geometric(logs), f"it falls in {(logs > 0).sum()} of {len(rows)} networks")


def _kinds(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """MLPs, and autoencoders."""
    rows = _trained_kernel(table)
    return rows[rows["compression"].isna()], rows[rows["compression"].notna()]


def _growth(table: pd.DataFrame) -> Estimates:
    """By which factor the NTK's mean eigenvalue grows over that by which its condition number falls, for MLPs."""
    rows, _ = _kinds(table)
    if rows.empty:
        raise NotMeasured("no NTK")
    parts = _by_network(rows)
    return {name: Estimate.geometric(-_logs(part, "mean") - _logs(part, "condition")) for name, part in parts}


def _spread(table: pd.DataFrame) -> Estimates:
    """Rank correlation over networks of the largest scale with the speed-up, mean over seeds, by kind of network."""
    found: Estimates = {}
    for name, rows in zip(("MLPs", "autoencoders"), _kinds(table), strict=True):
        open_ones = set(rows.loc[rows["speedup"].isna() | rows["bound"].eq(True), "network"])
        rows = rows[~rows["network"].isin(open_ones)]
        ranks = [rank(part["max_log_scale"].tolist(), part["speedup"].tolist()) for _, part in rows.groupby("seed")]
        if rows["network"].nunique() >= LEAST:
            found[name] = correlation(ranks)
    return found


_GROWTH = (
    "factor by which the mean eigenvalue of the NTK grows over the factor by which its condition number falls, in the "
    "mode of training, geometric mean over seeds"
)
_CLAIMS = (
    Claim(
        "regimes_spread",
        "The wider the spread of diag(G), the more effective the rescaling",
        "hypothesized and verified",
        "rank correlation over networks of the largest |log lambda|, which stands for the spread, with the speed-up in "
        "epochs at lr 1e-3, mean over seeds; networks whose speed-up is a bound are left out",
        _spread,
        above(0.0),
        unit="rank correlation",
        cases="kind of network",
    ),
    Claim.ours(
        "conditioning_path",
        "PathCond lowers the condition number of the path kernel's non-zero spectrum on small networks",
        "condition number before over after, geometric mean over networks and its interval",
        _path,
        at_least(1.1),
        paper="motivates the method; not measured",
        unit="times smaller",
    ),
    Claim.ours(
        "conditioning_growth_mlps",
        "In train mode PathCond makes the neural tangent kernel (NTK) of MLPs larger rather than better conditioned",
        _GROWTH,
        _growth,
        above(1.0),
        unit="times",
        cases="network",
    ),
)


EXPERIMENT = Experiment(
    name="conditioning",
    title="Conditioning and speed-up",
    where="ours",
    caption=(
        "Condition number of the non-zero spectrum of the path kernel of small networks, before and after PathCond "
        "(a). Factor by which PathCond lowers the condition number of the neural tangent kernel (NTK) at the start of "
        "training, for MLPs by hidden layers and autoencoders by compression c: on {images} images in eval mode and, "
        "for networks with BatchNorm, on one batch in train mode; bars are 95% intervals over seeds (b). Speed-up in "
        "epochs against this factor, in the mode of training (c), and against the largest scale (d). One point per "
        "network; open markers are lower bounds, because the baseline missed the target."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("network", "initialisation", "kernel"),
    measure=measure,
    parts=parts,
    table=table,
    also=("mlp_depth", "autoencoder"),
)
