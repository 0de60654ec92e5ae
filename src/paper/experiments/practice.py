"""Ours: does rescaling at the start help common networks in usual training, at each method's own learning rate?

Every network is trained from the same start weights, on the same batches, with each method and each learning rate of
its grid, by the optimizer it is usually trained with. A method's rate is the one with the highest mean validation
accuracy after the last epoch. Its gain is the test accuracy after the last epoch minus that of the baseline, each at
its own rate, paired by seed. The GPT predicts the next character of a text; its accuracy is that of all characters.

Where a chosen rate is the smallest or largest one tried, a better one may lie beyond: for the baseline this makes the
gain an upper bound, for the method a lower bound. docs/hypotheses.md has the hypotheses, committed before the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import create_model

from paper import plotting
from paper import settings as fields
from paper.experiments.base import Experiment, Runs
from paper.lazy import pd
from paper.methods import METHODS
from paper.runs import training_specs
from paper.verdicts import AT_LEAST, AT_MOST, EDGE, Claim, Estimate, above, at_least, at_most, some

BASELINE, DEFAULT = "baseline", "half"  # DEFAULT: what the library does to networks without shortcuts
MATTERS = 0.5  # points: a smaller gain is none that matters
CASE = ["network", "epochs", "sigma"]  # columns that tell one comparison from another
LABELS = {
    "plain5_bn": "five convolutions",
    "vgg11_bn": "VGG-11-BN", "vgg16_bn": "VGG-16-BN", "resnet18": "ResNet-18", "mobilenetv2": "MobileNetV2",
    "mobilenetv1": "MobileNet", "densenet": "DenseNet", "vit_tiny": "ViT-tiny", "gpt": "GPT",
    "mnist_mlp": "MLP on MNIST, SGD", "mnist_mlp_adamw": "MLP on MNIST, AdamW",
}  # fmt: skip
PLAIN, DEPTHWISE = ("vgg11_bn", "vgg16_bn"), ("mobilenetv1", "mobilenetv2")
RESIDUAL = ("resnet18", "densenet", "vit_tiny", "gpt")
HELD_OUT = ("plain5_bn",)  # played no part in the hypotheses; see docs/hypotheses.md
NETWORKS = (*PLAIN, *DEPTHWISE, *RESIDUAL, *HELD_OUT)
CHAINS = (*PLAIN, "mobilenetv1", *HELD_OUT)  # networks without shortcuts


_BUDGETS = ("", "_more", "_8", "_8_more", "_32", "_32_more")  # ends of the names of grids
_GRIDS: dict[str, Any] = {
    f"{network}{end}": (fields.TrainingGrid | None, None) for end in _BUDGETS for network in NETWORKS
}


class Grids(fields.Block):
    """Training grids whose methods are compared; a block's name tells its network."""

    @staticmethod
    def network(block: str) -> str:
        """The network of a block."""
        return next(network for network in NETWORKS if block.startswith(network))

    def grids(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names of the blocks that are there, and their training grids under the names of their networks."""
        for name in type(self).model_fields:
            if (grid := getattr(self, name)) is not None:
                yield name, {**fields.plain(grid), "network": self.network(name)}

    @fields.model_validator(mode="after")
    def _can_be_compared(self) -> Grids:
        cases: dict[tuple, dict[tuple, set[int]]] = {}  # seeds by method and rate
        for name, grid in self.grids():
            kind = "mlp" if "mlp" in grid["network"] else grid["network"].removesuffix("_bn")
            if (got := grid["model"]["kind"]) != kind:
                raise ValueError(f"{name}.model.kind: expected {kind}, as the name of the block says, got {got}")
            for spec in training_specs(grid, ""):
                case = cases.setdefault((spec["network"], spec["epochs"], spec.get("unequal", 0)), {})
                case.setdefault((spec["method"], spec["lr"]), set()).add(spec["seed"])
        if not cases:
            raise ValueError("expected at least one training grid, got null for all")
        for (network, epochs, sigma), seeds in cases.items():
            where = f"{network}, {epochs} epochs, sigma {sigma:g}: expected"
            if BASELINE not in (methods := list(dict.fromkeys(method for method, _ in seeds))):
                raise ValueError(f"{where} {BASELINE} among the methods, to compare the others with it, got {methods}")
            if not set.intersection(*seeds.values()):
                raise ValueError(f"{where} a seed that all methods have at all learning rates, got none; add one")
        return self


Settings = create_model("Settings", __base__=Grids, __doc__="Training grids by network and budget.", **_GRIDS)


def all_grids(settings: Any) -> Iterator[dict[str, Any]]:
    """The training grids of the networks that are there."""
    return (grid for _, grid in settings.grids())


# The table


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Two panels: `run`, one row per run, and `best`, one row per network, budget, sigma and method."""
    rows = []
    for found, provenance in runs:
        spec, last = provenance["spec"], found.sort_values("epoch").iloc[-1]
        rows.append(
            {
                "panel": "run",
                "network": spec["network"],
                "epochs": spec["epochs"],
                "sigma": float(spec.get("unequal") or 0.0),
                "method": spec["method"],
                "lr": float(spec["lr"]),
                "seed": spec["seed"],
                "validation": 100 * float(last["validation_accuracy"]),
                "accuracy": 100 * float(last["test_accuracy"]),
                "diverged": bool(found["diverged"].any()),
                "max_log_scale": float(last["max_log_scale"]),
            }
        )
    every = pd.DataFrame(rows)
    return pd.concat([every, best(every)], ignore_index=True)


def best(runs: pd.DataFrame) -> pd.DataFrame:
    """Each method at the rate with the best validation accuracy, and its gain over the baseline by seed."""
    rows = []
    for case, part in runs.groupby(CASE, sort=False):
        chosen, ends = {}, {}
        for method, mine in part.groupby("method", sort=False):
            # A rate may have more seeds than another: rates are compared over the seeds that all of them have.
            shared = set.intersection(*(set(at["seed"]) for _, at in mine.groupby("lr")))
            means = mine[mine["seed"].isin(shared)].groupby("lr")["validation"].mean()
            chosen[method] = mine[mine["lr"] == means.idxmax()].set_index("seed")
            ends[method] = means.idxmax() in (means.index.min(), means.index.max())
        for method, at in chosen.items():
            gains = (at["accuracy"] - chosen[BASELINE]["accuracy"]).dropna()
            estimate = Estimate.of(gains)
            rows.append(
                {
                    "panel": "best",
                    **dict(zip(CASE, case, strict=True)),
                    "method": method,
                    "lr": at["lr"].iloc[0],
                    "at_end": ends[method],
                    "baseline_at_end": ends[BASELINE],
                    "accuracy": at["accuracy"].mean(),
                    "max_log_scale": at["max_log_scale"].max(),
                    "gain": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "n": len(gains),
                }
            )
    return pd.DataFrame(rows)


def gain(row: Any) -> Estimate:
    """The gain of a row of the panel `best`; open on the side on which a better rate may lie beyond those tried."""
    low, high = -math.inf if row.baseline_at_end else row.low, math.inf if row.at_end else row.high
    ends = [name for name, there in (("baseline", row.baseline_at_end), ("method", row.at_end)) if there]
    bound = "" if len(ends) != 1 else AT_MOST if row.baseline_at_end else AT_LEAST
    note = f"best rate of {' and '.join(ends)} {EDGE}" if ends else ""
    return Estimate(row.gain, low, high, bound, note=note, seeds=int(row.n))


# The figure


def gains(place: Any, rows: pd.DataFrame, names: Sequence[Any], column: str) -> None:
    """Gains of the methods with their intervals: one line per value of a column; open where a rate is at an end."""
    drawn = rows[rows["method"] != BASELINE]
    methods = [name for name in plotting.methods(rows) if (drawn["method"] == name).any()]
    for number, method in enumerate(methods):
        one = drawn[drawn["method"] == method]
        at = [names.index(value) + 0.8 * ((number + 0.5) / len(methods) - 0.5) for value in one[column]]
        width = (one["high"] - one["gain"]).where(lambda value: value < math.inf, 0.0)
        look: dict[str, Any] = {"color": METHODS[method].colour, "marker": METHODS[method].marker, "linestyle": ""}
        open_ = one["at_end"] | one["baseline_at_end"]
        place.errorbar(one["gain"], at, xerr=width, elinewidth=0.7, **look, markersize=0)
        for where, face in ((~open_, look["color"]), (open_, "white")):
            y = [value for value, chosen in zip(at, where, strict=True) if chosen]
            place.plot(one["gain"][where], y, **look, markerfacecolor=face)
    place.axvline(0.0, color="#777777", linewidth=0.6, linestyle="--", zorder=1)
    place.set_ylim(len(names) - 0.5, -0.5)
    place.set_xlabel("gain in test accuracy (points)")


def key(figure: Any, rows: pd.DataFrame) -> None:
    """Legend of the methods, and what an open marker means if there is one."""
    looks = [METHODS[name] for name in plotting.methods(rows) if name != BASELINE]
    handles = [plotting.handle(color=m.colour, marker=m.marker, linestyle="", label=m.label) for m in looks]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    if bool((rows["at_end"] | rows["baseline_at_end"]).any()):
        plotting.note(figure, "open: the best rate of the method or baseline is the smallest or largest one tried")


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Gain of half and of all of ten sweeps by network, one panel per budget."""
    rows = table[(table["panel"] == "best") & table["method"].isin([BASELINE, DEFAULT, "full"])]
    names: list[str] = rows["network"].drop_duplicates().tolist()
    budgets = sorted(rows["epochs"].unique())
    size = plotting.PAGE, 1.2 + 0.42 * len(names)
    figure, axes = plotting.panels(1, len(budgets), *size, sharex=True, sharey=True)
    for place, epochs in zip(axes, budgets, strict=True):
        one = rows[rows["epochs"] == epochs]
        gains(place, one, names, "network")
        place.set_title(f"{epochs:g} epochs")
        place.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
        place.annotate("baseline", (1, 1), (4, 2), "axes fraction", "offset points",
                       ha="left", va="bottom", fontsize="small", color="#777777")  # fmt: skip
        accuracies = one[one["method"] == BASELINE].set_index("network")["accuracy"]
        for at, name in enumerate(names):
            text = f"{accuracies[name]:.1f}%" if name in accuracies else "not run"
            place.annotate(text, (1, at), (4, 0), ("axes fraction", "data"), "offset points",
                           ha="left", va="center", fontsize="small", color="#777777")  # fmt: skip
    key(figure, rows)
    return figure


# Claims, and the choice of the library's default


def estimates(method: str, networks: Sequence[str] = NETWORKS) -> Callable[[pd.DataFrame], dict[str, Estimate | None]]:
    """Gains of a method by network; a later budget than the first is named."""

    def found(table: pd.DataFrame) -> dict[str, Estimate | None]:
        rows = some(table, panel="best", method=method)
        budget = {count: f", {count:g} epochs" for count in rows["epochs"]} | {rows["epochs"].min(): ""}
        chosen = rows[rows["network"].isin(networks)]
        return {f"{LABELS[row.network]}{budget[row.epochs]}": gain(row) for row in chosen.itertuples()}

    return found


def _plain(table: pd.DataFrame) -> dict[str, Estimate | None]:
    """Gains of plain networks in two epochs, less those in eight, and half a point less those in 32."""
    found: dict[str, Estimate | None] = {}
    for network in PLAIN:
        rows = some(table, panel="best", method=DEFAULT, network=network).sort_values("epochs")
        first, *later = (gain(row) for row in rows.itertuples())
        found[LABELS[network]] = first
        for epochs, other in zip(rows["epochs"].iloc[1:], later, strict=True):
            more, words = (first, "less") if epochs < 32 else (Estimate.exact(MATTERS), "half a point less")
            found[f"{LABELS[network]}, {words} {epochs:g} epochs"] = more.less(other)
    return found


def candidates(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Candidates for the default by docs/hypotheses.md: whom they harm, mean gains, also over shared comparisons."""
    best = some(table, panel="best").set_index(["network", "epochs", "method"])
    rows = []
    for name, method, networks in (
        ("half of ten sweeps", DEFAULT, NETWORKS),
        ("all of ten sweeps", "full", NETWORKS),
        ("all of ten sweeps, without the bound", "free", NETWORKS),
        ("half of ten sweeps, on networks without shortcuts alone", DEFAULT, CHAINS),
        ("no rescaling", BASELINE, NETWORKS),
    ):
        gains, harmed = {}, []
        for network, epochs in dict.fromkeys((key[0], key[1]) for key in best.index):
            used = method if network in networks else BASELINE
            if used == "free" and (network, epochs, used) not in best.index:
                used = "full"  # no scale is bounded
            if (network, epochs, used) in best.index:
                row = best.loc[(network, epochs, used)]
                gains[network, epochs] = row["gain"]
                harmed += [f"{LABELS[network]} ({epochs:g} epochs)"] * bool(row["high"] < 0)
        rows.append({"name": name, "harmed": harmed, "gains": gains})
    shared = set.intersection(*(set(row["gains"]) for row in rows))
    for row in rows:
        gains = row.pop("gains")
        row |= {"gain": fmean(gains.values()), "count": len(gains), "shared": fmean(gains[case] for case in shared)}
    return rows


GAIN = "test accuracy minus that of the baseline, each at the rate with its best validation accuracy, paired by seed"
_HYPOTHESES = (
    ("plain", "plain networks with BatchNorm gain test accuracy in two epochs, less in eight, and below 0.5 in 32",
     f"{GAIN}; the gain in two epochs minus that in eight; and half a point minus that in 32", _plain, above(0.0)),
    ("depthwise", "networks of depthwise convolutions gain test accuracy in two and in eight epochs", GAIN,
     estimates(DEFAULT, DEPTHWISE), above(0.0)),
    ("residual", "residual networks and transformers gain less than half a point", GAIN,
     estimates(DEFAULT, RESIDUAL), at_most(MATTERS)),
    ("no_harm", "no network gets worse", GAIN, estimates(DEFAULT), at_least(0.0)),
)  # fmt: skip
_CLAIMS = tuple(
    Claim.ours(
        f"practice_{name}", f"With half of ten sweeps {text}", quantity, found, yes, unit="points", cases="network"
    )
    for name, text, quantity, found, yes in _HYPOTHESES
)


EXPERIMENT = Experiment(
    name="practice",
    title="Networks as people train them",
    where="ours",
    caption=(
        "Gain in test accuracy over the baseline by network, each method at the learning rate with its best validation "
        "accuracy. CIFAR-10 with flips and crops and a one-cycle schedule; the GPT predicts the next character of a "
        "text. At the right the baseline's accuracy. Bars are 95% intervals of the difference paired by seed."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=all_grids,
    table=table,
    distinct=("unequal",),
)
