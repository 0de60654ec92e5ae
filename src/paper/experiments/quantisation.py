"""Ours: does a rescaling with each objective of the library save accuracy when the weights are rounded to few bits?

A network of `practice` is trained without rescaling. Every BatchNorm is then folded into the convolution in front of
it, as is usual before quantisation; the function does not change. The network as it is, and after `rescale_` with each
objective, is quantised: every weight matrix and kernel is rounded to nearest with one step size per tensor, symmetric
around zero. Biases, gains of LayerNorm and embeddings of positions stay in float32, and so do the activations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from paper import plotting
from paper import settings as fields
from paper.aggregate import joined
from paper.cli import PaperError
from paper.experiments.base import Experiment, Part, Runs
from paper.experiments.practice import TrainedNetworks
from paper.lazy import functional, nn, pathcond, pd, torch
from paper.methods import BLUE, GREEN, GREY, RED
from paper.runs import training_specs
from paper.verdicts import Claim, Estimate, Finding, NotMeasured, agreed, some

if TYPE_CHECKING:
    from paper.training.datasets import Splits

NONE, FULL = "none", 32  # no rescaling; bits of a weight that is not quantised
EVALUATED = 2000  # images at once
OBJECTIVES = {  # label, colour and marker
    NONE: ("not rescaled", GREY, "o"),
    "paths": ("PathCond", RED, "^"),
    "norms": ("least norms", GREEN, "s"),
    "ranges": ("equal ranges", BLUE, "D"),
}


class TrainedAt(fields.Block):
    """A network and its learning rate."""

    network: fields.Name
    lr: fields.LearningRate


class Settings(TrainedNetworks):
    """Networks of `practice`, of which those of `trained` are trained; then objectives and bits.

    `clamp` bounds every abs(log lambda); `sweeps` are those of each objective.
    """

    trained: fields.Some[TrainedAt]
    objectives: fields.Distinct[Literal["paths", "norms", "ranges"]]
    bits: fields.Distinct[fields.AtLeast2]
    sweeps: fields.PositiveInt
    clamp: fields.Positive

    @fields.model_validator(mode="after")
    def _goes_together(self) -> Settings:
        for one in self.trained:
            if self.known(one.network).dataset is not None:
                raise ValueError(f"trained: expected networks for images of {self.dataset}, got {one.network!r}")
        for _, part in parts(self):
            fields.TrainingGrid.model_validate({key: value for key, value in _grid(part).items() if key != "network"})
        return self


def parts(settings: Settings) -> Iterator[Part]:
    """One part per network and seed."""
    block = fields.plain(settings)
    shared = {key: value for key, value in block.items() if key not in ("networks", "trained", "seeds")}
    for one in block["trained"]:
        network = block["networks"][one["network"]]
        how = {key: network[key] for key in ("model", "optimiser", "clip") if key in network}
        for seed in block["seeds"]:
            yield f"{one['network']}-seed{seed}", {**one, **how, **shared, "seed": seed}


def _grid(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The training grid of a part: one run of the baseline."""
    own = ("objectives", "bits", "sweeps", "clamp", "lr", "seed", "data")
    grid = {key: value for key, value in settings.items() if key not in own}
    return {**grid, "methods": ["baseline"], "lrs": [settings["lr"]], "seeds": [settings["seed"]]}


# The measurement


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Train one network, then evaluate it with each objective and number of bits, in float32.

    Columns network, seed, objective, bits, accuracy, loss, units, moved, max_log_scale; the accuracy is a fraction.
    `NONE` stands for no rescaling and `FULL` for weights that are not quantised.
    """
    from paper.training.modules import RESCALE_BATCH, tf32

    module, splits = train(settings, device)
    rows = []
    with tf32(False):
        module = fold_batchnorm(module)
        batch = _normalised(splits.train.images[:RESCALE_BATCH], splits)
        graph = pathcond.extract_graph(module, batch)
        for objective in (NONE, *settings["objectives"]):
            rescaled = copy.deepcopy(module)
            moved, largest = 0, 0.0
            if objective != NONE:
                options = {name: settings[name] for name in ("sweeps", "clamp")}
                report = pathcond.rescale_(rescaled, batch, objective=objective, damping=1.0, graph=graph, **options)
                moved, largest = report.moved, report.max_log_scale
            for bits in (FULL, *settings["bits"]):
                rounded = rescaled if bits == FULL else quantise_(copy.deepcopy(rescaled), bits)
                names = settings["network"], settings["seed"], objective, bits
                units = graph.units + graph.frozen_units
                rows.append((*names, *evaluate(rounded, splits), units, moved, largest))
    columns = ["network", "seed", "objective", "bits", "accuracy", "loss", "units", "moved", "max_log_scale"]
    return pd.DataFrame(rows, columns=columns)


def train(settings: Mapping[str, Any], device: torch.device) -> tuple[nn.Module, Splits]:
    """The trained network in eval mode, and its data; a PaperError if training diverged."""
    from paper.starts import is_finite
    from paper.training.datasets import load
    from paper.training.modules import ModuleTrainer
    from paper.training.trainer import Run

    (spec,) = training_specs(_grid(settings), "measure")
    splits = load(spec, settings["data"], device)
    trainer = ModuleTrainer(Run(spec, spec["seed"]), splits, device)
    for epoch in range(1, spec["epochs"] + 1):
        trainer.epoch(epoch)
    if not is_finite(trainer.module):
        name = f"{settings['network']} with seed {settings['seed']}"
        raise PaperError(f"{name}: expected finite weights after training, got NaN. Lower lr, now {settings['lr']:g}.")
    return trainer.module.eval().to(memory_format=torch.contiguous_format), splits  # type: ignore[call-overload]


def fold_batchnorm(module: nn.Module) -> nn.Module:
    """A copy of a network in eval mode whose BatchNorms are folded into the convolutions in front of them."""
    from torch import fx
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    module = copy.deepcopy(module)
    if not any(isinstance(part, norms) for part in module.modules()):
        return module
    folded = fx.symbolic_trace(module)
    parts: dict[Any, Any] = dict(folded.named_modules())
    calls = [node for node in folded.graph.nodes if node.op == "call_module"]
    for node in [node for node in calls if isinstance(parts[node.target], norms)]:
        name, before = str(node.target), cast("Any", node.args[0])
        users = [*before.users, *(call for call in calls if call.target == before.target and call is not before)]
        if users != [node] or before not in calls or not isinstance(parts[before.target], nn.Conv2d):
            expected = "expected a convolution of its own in front of this BatchNorm"
            raise PaperError(f"{name}: {expected}, got another input.")
        folded.set_submodule(str(before.target), fuse_conv_bn_eval(parts[before.target], parts[name]))
        node.replace_all_uses_with(before)
        folded.graph.erase_node(node)
    folded.delete_all_unused_submodules()
    folded.recompile()
    return folded


def quantise_(module: nn.Module, bits: int) -> nn.Module:
    """Round the matrices and kernels among the weights, in place: to nearest, symmetric, one step size per tensor.

    The integers go from ``-(2^(bits - 1) - 1)`` to ``2^(bits - 1) - 1``.
    """
    most = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.endswith("weight") and weight.ndim > 1:
                step = (weight.abs().amax() / most).clamp(min=torch.finfo(weight.dtype).tiny)
                weight.copy_((weight / step).round().clamp(-most, most) * step)
    return module


def evaluate(module: nn.Module, splits: Splits) -> tuple[float, float]:
    """Accuracy, a fraction, and mean loss on the test images."""
    test, correct, loss = splits.by_name["test"], 0, 0.0
    with torch.no_grad():
        for first in range(0, len(test), EVALUATED):
            labels = test.labels[first : first + EVALUATED]
            y = module(_normalised(test.images[first : first + EVALUATED], splits))
            correct += int((y.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(y, labels, reduction="sum"))
    return correct / len(test), loss / len(test)


def _normalised(images: torch.Tensor, splits: Splits) -> torch.Tensor:
    return images.float() * splits.scale + splits.shift


# The table


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Two panels: `run`, one row per network, seed, objective and bits, and `mean`, the same without seeds.

    Columns: accuracy in percent; lost, the points by which the network as trained is better; saved, the points that the
    objective loses less than no rescaling with the same bits. `mean` has their 95% intervals, paired by seed.
    """
    rows = joined(runs, settings)
    rows["accuracy"] *= 100
    plain = rows["objective"] == NONE
    trained = rows["accuracy"].where(plain & (rows["bits"] == FULL))
    rows["lost"] = trained.groupby([rows["network"], rows["seed"]]).transform("max") - rows["accuracy"]
    lost = rows["lost"].where(plain).groupby([rows["network"], rows["seed"], rows["bits"]]).transform("max")
    rows["saved"] = lost - rows["lost"]
    means = []
    for names, part in rows.groupby(["network", "objective", "bits"], sort=False):
        found = {name: Estimate.of(part[name]) for name in ("lost", "saved")}
        means.append(
            {
                "panel": "mean",
                **dict(zip(("network", "objective", "bits"), names, strict=True)),
                **part[["accuracy", "loss", "units", "moved", "max_log_scale"]].mean().to_dict(),
                **{name: one.value for name, one in found.items()},
                **{f"{name}_low": one.low for name, one in found.items()},
                **{f"{name}_high": one.high for name, one in found.items()},
                "n": len(part),
            }
        )
    return pd.concat([rows.assign(panel="run"), pd.DataFrame(means)], ignore_index=True)


# The figure


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Accuracy lost by network, one panel per number of bits, one colour per objective; a page wide."""
    rows = table[table["panel"] == "mean"]
    names = rows["network"].drop_duplicates().tolist()
    bits = [number for number in rows["bits"].drop_duplicates() if number != FULL]
    objectives = [name for name in OBJECTIVES if name in set(rows["objective"])]
    figure, axes = plotting.panels(1, len(bits), plotting.PAGE, 1.3 + 0.38 * len(names), sharey=True)
    for place, number in zip(axes, bits, strict=True):
        for offset, objective in enumerate(objectives):
            label, colour, marker = OBJECTIVES[objective]
            one = rows[(rows["objective"] == objective) & (rows["bits"] == number)]
            at = [names.index(name) + 0.7 * ((offset + 0.5) / len(objectives) - 0.5) for name in one["network"]]
            width = (one["lost_high"] - one["lost"]).where(lambda value: value < math.inf, 0.0)
            look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "", "label": label}
            place.errorbar(one["lost"], at, xerr=width, elinewidth=0.6, **look)
        place.axvline(0.0, color=plotting.GREY, linewidth=0.6, linestyle="--", zorder=1)
        place.set(xlabel="test accuracy lost (points)", title=f"{number:g} bits")
    accuracy = rows[(rows["objective"] == NONE) & (rows["bits"] == FULL)].set_index("network")["accuracy"]
    axes[0].set_yticks(range(len(names)), [f"{name}\n{accuracy[name]:.1f}%" for name in names])
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    plotting.letters(axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(objectives))
    plotting.note(figure, "below each name the accuracy of the unquantised network")
    return figure


# Claims


def _lost(table: pd.DataFrame) -> Finding:
    rows = some(table, panel="run", objective=NONE, bits=8)
    found = {str(name): Estimate.of(part["lost"]) for name, part in rows.groupby("network", sort=False)}
    words = "points lost: " + ", ".join(f"{name} {one.words}" for name, one in found.items())
    return Finding(words, agreed("quantisation_int8", found), cases=found)


def _saved(table: pd.DataFrame, claim: str, objective: str, instead_of: str = NONE) -> Finding:
    rows = some(table, panel="run")
    rows = rows[rows["bits"] != FULL]
    by_seed = rows.pivot_table(index=["bits", "seed"], columns="objective", values="saved", aggfunc="mean")
    if objective not in by_seed or instead_of not in by_seed:
        raise NotMeasured(f"no objective {objective} or {instead_of}")
    difference = (by_seed[objective] - by_seed[instead_of]).dropna()
    found = {int(bits): Estimate.of(part) for bits, part in difference.groupby("bits", sort=True)}
    best = rows[rows["objective"] == objective].groupby(["network", "bits"])["saved"].mean()
    text = ", ".join(f"{bits} bits {one.words}" for bits, one in found.items())
    (network, bits), most = best.idxmax(), best.max()  # type: ignore[misc]
    over = f"mean of {rows['network'].nunique()} networks"
    words = f"points saved, {over}: {text}; most {most:.1f}, {network} at {bits} bits"
    return Finding(words, agreed(claim, found), cases=found)


def _saving(objective: str, subject: str) -> Claim:
    claim = f"quantisation_{objective}"
    return Claim.ours(
        claim,
        f"{subject} saves accuracy when weights are rounded with one step size per tensor",
        "points of test accuracy lost without rescaling minus points lost with it, mean over networks, paired by seed",
        lambda table: _saved(table, claim, objective),
        cases="number of bits",
    )


_CLAIMS = (
    Claim.ours(
        "quantisation_int8",
        "Eight bits per weight with one step size per tensor cost no accuracy, without any rescaling",
        "points of test accuracy lost to rounding",
        _lost,
        cases="network",
    ),
    _saving("paths", "PathCond"),
    _saving("norms", "Rescaling to the least sum of squared weights"),
    _saving("ranges", "Rescaling to equal ranges of incoming and outgoing weights (cross-layer equalisation)"),
    Claim.ours(
        "quantisation_best",
        "Equal ranges, which are made for it, save more accuracy than PathCond",
        "points saved by equal ranges minus points saved by PathCond, mean over networks, paired by seed",
        lambda table: _saved(table, "quantisation_best", "ranges", "paths"),
        cases="number of bits",
    ),
)


EXPERIMENT = Experiment(
    name="quantisation",
    title="Quantisation after rescaling",
    where="ours",
    caption=(
        "Test accuracy lost when the weights of trained networks are rounded to few bits, one step size per tensor: "
        "without rescaling, and after a rescaling with each objective of the library. BatchNorm is folded into the "
        "convolutions first. {images:,} training images, {epochs} epochs, {seeds_count} seeds; bars are 95% intervals."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("network", "objective", "bits"),
    measure=measure,
    parts=parts,
    table=table,
    precision="training as in practice, quantisation and evaluation in float32",
)
