"""Ours: does rescaling at the start help common networks in usual training, at each method's own best learning rate?

Every network is trained from the same start weights, on the same batches, with each method and each learning rate of
its grid, by the optimiser it is usually trained with. A method's accuracy is that at the learning rate where the mean
of the final test accuracy over seeds is highest; its gain is the difference to the baseline at the baseline's best
rate, paired by seed. Intervals are 95% of Student's t; the deviation of paired differences is pooled over the methods
of a network, since three seeds alone estimate it poorly. Networks for images classify; the GPT predicts the next
character of a text, and its accuracy is that of all characters.

The rule for the library's default, stated before the runs:

1. A candidate passes if on no network that is not held out the interval of its gain lies below zero.
2. Of those that pass, the one with the largest mean gain over the networks that are not held out is chosen. A method
   that has no meaning on a network (BatchNorm left out where there is none) counts there as the ten-sweep rescaling.
3. If none passes, the candidate with the smallest scales is chosen: it changes least.

Added after the first runs (full, half, exclude, per_layer): in step 2, candidates whose mean gains cannot be told apart
(the 95% interval of the difference, paired by seed, contains zero) are tied, and of those the one with the smallest
scales is chosen. The other candidates were run later, by the same rule.

Held-out networks take no part in the choice and are reported apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from paper import plotting, verdicts
from paper import settings as fields
from paper.experiments.base import Experiment, Runs
from paper.lazy import np, pd, scipy
from paper.methods import METHODS
from paper.verdicts import NO, PARTLY, YES, Claim, Estimate, Finding, NotMeasured

BASELINE, FULL, DEFAULT = "baseline", "full", "half"  # DEFAULT: what the library does
EVERY_EPOCH = "every_epoch"  # the default, and again after every epoch
NEAR = 1.0  # a learning rate within so many points of the best accuracy counts as good; our choice
BATCHNORM = ("vgg11", "resnet18", "mobilenetv2", "efficientnet_b0")
LAYERNORM = ("convnext_zepto", "vit_tiny", "mixer", "gpt")
SMOOTH = (*LAYERNORM, "efficientnet_b0")


class Trained(fields.Block):
    """A network and how it is usually trained."""

    model: fields.Network
    optimiser: fields.Optimiser
    lrs: fields.LearningRates
    clip: fields.Positive | None = None
    methods: fields.MethodNames | None = None  # those compared on it, if not all
    extra_methods: fields.MethodNames | None = None  # besides; those that rescale during training are no candidates
    held_out: fields.Flag = False  # it takes no part in the choice of the default
    # In place of the shared settings:
    dataset: fields.DatasetName | None = None
    images: fields.AtLeast2 | None = None
    test_images: fields.PositiveInt | None = None
    batch: fields.AtLeast2 | None = None
    augmentation: fields.Augmentation | None = None


class TrainedNetworks(fields.Protocol):
    """Networks and how they are trained, also for `quantisation`."""

    networks: dict[fields.Name, Trained]
    schedule: fields.Schedule
    seeds: fields.SeedList

    def known(self, name: str) -> Trained:
        """The network of this name; a ValueError if there is none."""
        if name not in self.networks:
            raise ValueError(f"trained: expected names of networks ({', '.join(self.networks)}), got {name!r}")
        return self.networks[name]


class Settings(TrainedNetworks):
    """Networks, of which those of `trained` are trained with `methods`."""

    trained: fields.Distinct[fields.Name]
    methods: fields.MethodNames
    train_metrics: fields.TrainMetrics | None = None

    @fields.model_validator(mode="after")
    def _goes_together(self) -> Settings:
        for name in self.trained:
            twice = {*(self.known(name).extra_methods or ())} & {*(self.known(name).methods or self.methods)}
            if twice:
                raise ValueError(f"networks.{name}.extra_methods: expected other methods, got {min(twice)} twice")
        for methods in (self.methods, *(network.methods or self.methods for network in self.networks.values())):
            for needed in (BASELINE, FULL):
                if needed not in methods:
                    raise ValueError(f"methods: expected {needed} among them, got {', '.join(methods)}")
        for grid in all_grids(self):
            fields.TrainingGrid.model_validate({key: value for key, value in grid.items() if key != "network"})
        return self


def normalisation(model: Mapping[str, Any]) -> str:
    """BatchNorm, LayerNorm or none."""
    if model["kind"] in LAYERNORM:
        return "LayerNorm"
    return "BatchNorm" if model["kind"] in BATCHNORM and model.get("batchnorm", True) else "none"


def run_as(method: str, model: Mapping[str, Any]) -> str | None:
    """The method that does the same to a network and is run in its place; None where a method has no meaning."""
    normalised = normalisation(model)
    if method == "exclude":
        return method if normalised == "BatchNorm" else None
    if method in ("running", "per_part") and normalised == "none":  # then all parameters are one part
        return FULL
    if METHODS[method].smooth_paths and model["kind"] not in SMOOTH:
        return FULL if method == "smooth_paths" else DEFAULT
    return method


def all_grids(settings: Settings) -> Iterator[dict[str, Any]]:
    """One grid per network, with the methods that differ on it."""
    block = fields.plain(settings)
    shared = {key: value for key, value in block.items() if key not in ("networks", "trained", "methods")}
    for name in block["trained"]:
        own = block["networks"][name].items()
        network = {key: value for key, value in own if key not in ("held_out", "extra_methods")}
        methods = [method for method in compared(block, name) if run_as(method, network["model"]) == method]
        yield {"network": name, **shared, **network, "methods": methods}


def compared(block: Mapping[str, Any], name: str) -> list[str]:
    """The methods that are compared on a network."""
    network = block["networks"][name]
    return [*(network.get("methods") or block["methods"]), *(network.get("extra_methods") or [])]


# The table


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Two panels: `run`, one row per run, and `best`, one row per network and method (see :func:`best`)."""
    rows = []
    for found, provenance in runs:
        spec, last = provenance["spec"], found.sort_values("epoch").iloc[-1]
        network = settings["networks"][spec["network"]]
        row = {
            "panel": "run",
            "network": spec["network"],
            "held_out": bool(network.get("held_out", False)),
            "method": spec["method"],
            "lr": float(spec["lr"]),
            "seed": spec["seed"],
            "accuracy": 100 * float(last["test_accuracy"]),
            "loss": float(last["test_loss"]),
            "diverged": bool(found["diverged"].any()),
            "max_log_scale": float(last["max_log_scale"]),
        }
        rows.append(row | {name: provenance[name] for name in ("seconds", "rescale_seconds")})
    every = pd.DataFrame(rows)
    # If two methods are the same on a network, one is run and its runs are used for both.
    copies = []
    for name in settings["trained"]:
        for method in compared(settings, name):
            same = run_as(method, settings["networks"][name]["model"])
            if same not in (None, method):
                copies.append(every[(every["network"] == name) & (every["method"] == same)].assign(method=method))
    every = pd.concat([every, *copies], ignore_index=True)
    return pd.concat([every, best(every)], ignore_index=True)


def best(runs: pd.DataFrame) -> pd.DataFrame:
    """Each network and method at its best learning rate: accuracy, loss, gain over the baseline with its interval."""
    rows = []
    for _, part in runs.groupby("network", sort=False):
        means = part.groupby(["method", "lr"])["accuracy"].mean()
        found = {str(method): means[method].idxmax() for method in part["method"].unique()}
        at_rate = dict(list(part.set_index("seed").groupby(["method", "lr"])))
        chosen = {method: at_rate[method, lr] for method, lr in found.items()}
        if BASELINE not in chosen:
            continue
        pairs = {method: (at["accuracy"] - chosen[BASELINE]["accuracy"]).dropna() for method, at in chosen.items()}
        distinct = {tuple(pair): pair for method, pair in pairs.items() if method != BASELINE}
        half = _half_width(list(distinct.values()))  # methods that are the same on a network count once
        for method, at in chosen.items():
            mine = part[part["method"] == method]
            near = means[method][means[method] >= means[method].max() - NEAR].index
            gain = float(pairs[method].mean())
            own = 0.0 if method == BASELINE else half
            rows.append(
                {
                    "panel": "best",
                    "network": part["network"].iloc[0],
                    "held_out": part["held_out"].iloc[0],
                    "method": method,
                    "lr": found[method],
                    "accuracy": at["accuracy"].mean(),
                    "loss": at["loss"].mean(),
                    "gain": gain,
                    "low": gain - own,
                    "high": gain + own,
                    "lr_low": near.min(),
                    "lr_high": near.max(),
                    "lrs_near": len(near),
                    "at_edge": found[method] in (part["lr"].min(), part["lr"].max()),
                    "diverged": int(mine["diverged"].sum()),
                    "max_log_scale": mine["max_log_scale"].max(),
                    "seconds": mine["seconds"].median(),
                    "rescale_seconds": mine["rescale_seconds"].median(),
                    "n": len(pairs[method]),
                }
            )
    return pd.DataFrame(rows)


def _half_width(pairs: list[pd.Series]) -> float:
    """Half of the 95% interval of a mean of paired differences, whose deviation is pooled; infinite for one seed."""
    freedom = sum(len(pair) - 1 for pair in pairs)
    if not pairs or freedom < 1:
        return math.inf
    deviation = math.sqrt(sum(float(((pair - pair.mean()) ** 2).sum()) for pair in pairs) / freedom)
    return float(scipy.special.stdtrit(freedom, 0.975)) * deviation / math.sqrt(min(map(len, pairs)))


# The choice


def choose(table: pd.DataFrame) -> tuple[str, str, dict[str, tuple[float, list[str]]]]:
    """The default by the rule above, the choice without ties, and each candidate's mean gain and harmed networks."""
    rows = verdicts.some(table, panel="best", held_out=False)
    rows = rows[[not METHODS[name].teleport for name in rows["method"]]]
    scales = rows.groupby("method")["max_log_scale"].mean()
    sums = _mean_accuracies(table, rows)
    found: dict[str, tuple[float, list[str]]] = {}
    for method in (str(name) for name in sums if name != BASELINE):
        of_method = rows[rows["method"] == method]
        harmed = of_method.loc[of_method["high"] < 0, "network"].tolist()
        found[method] = float((sums[method] - sums[BASELINE]).mean()), harmed
    passed = [method for method, (_, harmed) in found.items() if not harmed]
    if not passed:
        least = str(scales.drop(BASELINE, errors="ignore").idxmin())
        return least, least, found
    best = max(passed, key=lambda method: found[method][0])
    tied = [method for method in passed if method == best or Estimate.of(sums[best] - sums[method]).low <= 0]
    return min(tied, key=lambda method: scales[method]), best, found


def _mean_accuracies(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Mean over the networks of `rows` of the accuracy at the best learning rate: a row per seed, a column per method.

    A method that has no meaning on a network counts there as the ten-sweep rescaling.
    """
    runs = verdicts.some(table, panel="run").merge(rows[["network", "method", "lr"]], on=["network", "method", "lr"])
    found = runs.pivot_table(index=["network", "seed"], columns="method", values="accuracy")
    for name in found:
        found[name] = found[name].fillna(found.get(FULL, math.nan))
    if found.isna().any(axis=None):
        missing = found.columns[found.isna().any()].tolist()
        raise NotMeasured(f"{', '.join(missing)}: not there for every network")
    return found.groupby("seed").mean()


# The figure


def same_as(rows: pd.DataFrame) -> pd.Series:
    """Ten sweeps or the default, where another method has its numbers because the two are the same; else ""."""
    found = pd.Series("", index=rows.index)
    for name in (FULL, DEFAULT):
        one = rows[rows["method"] == name].set_index("network")[["lr", "gain", "accuracy", "loss"]]
        same = (one.reindex(rows["network"]).to_numpy() == rows[one.columns].to_numpy()).all(1)
        found[same & (rows["method"] != name)] = name
    return found


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Gain of each method by network with its interval, and against the largest log-rescaling; a page wide."""
    rows = table[table["panel"] == "best"].sort_values("held_out", kind="stable")
    names = rows["network"].drop_duplicates().tolist()
    drawn = rows[(rows["method"] != BASELINE) & (same_as(rows) == "")]
    methods = [name for name in plotting.methods(rows) if (drawn["method"] == name).any()]
    order = {name: [m for m in methods if m in set(part["method"])] for name, part in drawn.groupby("network")}
    figure, axes = plotting.panels(1, 2, plotting.PAGE, 1.2 + 0.5 * len(names), width_ratios=[3, 2])
    for method in methods:
        look: dict[str, Any] = {"color": METHODS[method].colour, "marker": METHODS[method].marker, "linestyle": ""}
        one = drawn[drawn["method"] == method]
        shift = {name: (one.index(method) + 0.5) / len(one) - 0.5 for name, one in order.items() if method in one}
        place = [names.index(name) + 0.8 * shift[name] for name in one["network"]]
        width = (one["high"] - one["gain"]).where(lambda value: value < math.inf, 0.0)
        axes[0].errorbar(one["gain"], place, xerr=width, elinewidth=0.6, label=METHODS[method].label, **look)
        if not METHODS[method].teleport:  # its later scales are not known
            axes[1].plot(one["max_log_scale"], one["gain"], **look)
    held = dict(zip(rows["network"], rows["held_out"], strict=True))
    accuracy = rows[rows["method"] == BASELINE].set_index("network")["accuracy"]
    labels = [f"{name}{'*' if held[name] else ''}\n{accuracy[name]:.1f}%" for name in names]
    axes[0].set_yticks(range(len(names)), labels)
    axes[0].set(xlabel="gain in test accuracy (points)", title="Best learning rate of each")
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    axes[1].set(xlabel=r"largest $|\log\,\lambda|$", ylabel="gain (points)", title="Size of the rescaling")
    if rows["max_log_scale"].max() > 5:
        axes[1].set_xscale("symlog", linthresh=1.0)
    axes[1].set_xlim(left=0.0)
    for line in (axes[0].axvline, axes[1].axhline):
        line(0.0, color="#777777", linewidth=0.6, linestyle="--", zorder=1)
    plotting.letters(axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    plotting.note(
        figure,
        "*: held out of the choice of the default; below each name the baseline's accuracy; a method is not drawn "
        "where it is the ten-sweep rescaling or the default",
    )
    return figure


# Claims


def _estimate(row: Any) -> Estimate:
    return Estimate(float(row.gain), float(row.low), float(row.high))


def _harm(claim: str, method: str, table: pd.DataFrame) -> Finding:
    rows = verdicts.some(table, panel="best", method=method)
    found = {f"{row.network}{'*' * bool(row.held_out)}": _estimate(row) for row in rows.itertuples()}
    answers = {name: verdicts.decide(estimate, claim) for name, estimate in found.items()}
    chosen = {name: answer for name, answer in answers.items() if not name.endswith("*")}
    answer = verdicts.never(chosen.values() if chosen else answers.values())
    if answer != NO and NO in answers.values():
        answer = PARTLY
    worst = min(found, key=lambda name: found[name].value)
    words = "gain " + ", ".join(f"{name} {estimate}" for name, estimate in found.items())
    return Finding(words, answer, found[worst], f"points at {worst}", found)


def _chosen(table: pd.DataFrame) -> Finding:
    chosen, first, found = choose(table)
    gains = {
        method: f"{gain:+.2f}" + (f", harms {' and '.join(harmed)}" if harmed else "")
        for method, (gain, harmed) in found.items()
    }
    if DEFAULT not in found:
        raise NotMeasured(f"no {DEFAULT}")
    answer = NO if chosen != DEFAULT or found[DEFAULT][1] else YES if first == DEFAULT else PARTLY
    tie = "" if first == chosen else f" ({first} by the largest mean alone)"
    others = "; ".join(f"{method} {gain}" for method, gain in gains.items() if method != chosen)
    return Finding(f"chosen: {chosen}, mean gain {gains[chosen]}{tie}; the others: {others}", answer)


def _mean_gain(table: pd.DataFrame) -> Finding:
    at = verdicts.some(table, panel="best")
    both = at[at["network"].isin(at.loc[at["method"] == DEFAULT, "network"])]
    if both.empty:
        raise NotMeasured(f"no {DEFAULT}")
    sums = _mean_accuracies(table, both[both["method"].isin((BASELINE, DEFAULT))])
    estimate = Estimate.of(sums[DEFAULT] - sums[BASELINE])
    words = f"{estimate.words} points, mean of {both['network'].nunique()} networks"
    return Finding(words, verdicts.decide(estimate, "practice_gain"), estimate, "points")


def _range(table: pd.DataFrame) -> Finding:
    rows = verdicts.some(table, panel="best")
    rows = rows.assign(width=np.log2(rows["lr_high"] / rows["lr_low"]))
    widths = rows.pivot(index="network", columns="method", values="width")
    if DEFAULT not in widths or BASELINE not in widths:
        raise NotMeasured("no default or no baseline")
    difference = (widths[DEFAULT] - widths[BASELINE]).dropna()
    estimate = Estimate.of(difference)
    wider, narrower = int((difference > 0).sum()), int((difference < 0).sum())
    words = f"wider on {wider}, narrower on {narrower} of {len(difference)} networks; {estimate.words} doublings"
    return Finding(words, verdicts.decide(estimate, "practice_range"), estimate, "doublings")


def _teleport(table: pd.DataFrame) -> Finding:
    rows = verdicts.some(table, panel="best", method=EVERY_EPOCH)
    once = table[(table["panel"] == "best") & (table["method"] == DEFAULT)].set_index("network")["gain"]
    found = {str(row.network): _estimate(row) for row in rows.itertuples()}
    parts = [f"{name} {estimate}, rescaled once {once.get(name, math.nan):+.2f}" for name, estimate in found.items()]
    return Finding(f"gain {'; '.join(parts)}", verdicts.agreed("practice_teleport", found), cases=found)


_HARM = (
    "gain in test accuracy on each network, in points, paired by seed, its deviation pooled over the methods of a "
    "network; less on a held-out network alone: holds partly"
)
_CLAIMS = (
    Claim.ours(
        "practice_no_harm",
        "The library's default, half of ten sweeps, makes no network worse than the baseline, each at its own best "
        "learning rate",
        _HARM,
        partial(_harm, "practice_no_harm", DEFAULT),
    ),
    Claim.ours(
        "practice_full",
        "The ten-sweep rescaling makes no network worse than the baseline, each at its own best learning rate",
        _HARM,
        partial(_harm, "practice_full", FULL),
    ),
    Claim.ours(
        "practice_choice",
        "The rule of choice selects the library's default",
        "a candidate passes if on no network that is not held out the interval of its gain lies below zero; of those "
        "the largest mean gain is chosen: the default: holds; the default is tied with the largest (added after the "
        "runs) and has smaller scales: holds partly",
        _chosen,
    ),
    Claim.ours(
        "practice_gain",
        "Over all networks the library's default gains test accuracy at the best learning rate",
        "mean over networks of the difference to the baseline, in points, paired by seed",
        _mean_gain,
    ),
    Claim.ours(
        "practice_range",
        "After the library's default a wider range of learning rates is good",
        f"log2 of the largest over the smallest learning rate within {NEAR:g} point of the best, difference to the "
        "baseline, mean over networks",
        _range,
    ),
    Claim.ours(
        "practice_teleport",
        "Rescaling again after every epoch, with the state of the optimiser carried along, gains test accuracy",
        "gain in test accuracy over the baseline, in points, paired by seed, each at its own best learning rate",
        _teleport,
        paper="left open",
        cases="network",
    ),
)


EXPERIMENT = Experiment(
    name="practice",
    title="Networks as people train them",
    where="ours",
    caption=(
        "Gain in test accuracy over the baseline, each method at its own best learning rate, by network: {images:,} "
        "training images, {epochs} epochs, flips and crops, one-cycle schedule, {seeds_count} seeds; the GPT predicts "
        "the next character of a text. Bars are 95% intervals of the difference paired by seed, with a deviation "
        "pooled over the methods of a network. Right: the same gains against the largest log-rescaling. Networks with "
        "a star took no part in the choice of the default."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=all_grids,
    table=table,
)
