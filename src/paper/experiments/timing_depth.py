"""Appendix: wall time of the rescaling and of one epoch of training by depth, and its split by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import plotting
from paper.aggregate import summary
from paper.experiments.base import Experiment, Runs
from paper.experiments.timing import FACTS, LABELS, OTHER_SOLVER, Bench, Timed, duration, hardware_note, load, repeats
from paper.experiments.timing import table as timing_table
from paper.lazy import np, pd, torch
from paper.methods import METHODS
from paper.settings import Distinct, PositiveInt, check_timed, model_validator
from paper.verdicts import Claim, Estimate, Estimates, NotMeasured, at_least, some

KEYS = ("hidden_layers", "step")


class Settings(Timed):
    """MLPs by depth, with BatchNorm."""

    hidden_layers: Distinct[PositiveInt]
    inputs: PositiveInt
    width: PositiveInt
    outputs: PositiveInt

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        check_timed({"kind": "mlp", "inputs": self.inputs, "outputs": self.outputs}, self.dataset, self.batch)
        return self


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row per depth, repeat and step, as in `timing`; depths are interleaved."""
    images = load(settings["dataset"], settings["data"], device)
    benches = {}
    for depth in settings["hidden_layers"]:
        model = {"kind": "mlp", "inputs": settings["inputs"], "outputs": settings["outputs"]}
        model["hidden"] = [settings["width"]] * depth
        benches[depth] = Bench(model, images, settings["batch"], settings["batches"])
    rows: list[dict[str, Any]] = []
    for repeat in repeats(settings):
        for depth, bench in benches.items():
            seconds = bench.rescaling("exact", settings["sweeps"]) | {"epoch": bench.epoch(repeat)}
            names = {"hidden_layers": depth, "repeat": repeat} | bench.facts
            rows += [names | {"step": step, "seconds": value} for step, value in seconds.items()]
    table = pd.DataFrame([row for row in rows if row["repeat"] >= 0])
    last = ["batches", "epoch_batches", "hardware"]
    return table.reindex(columns=["hidden_layers", "parameters", "repeat", "step", "seconds", *last])


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Panel `depth`: means, deviations and medians over repeats by depth. Panel `split`: the table of `timing`."""
    depth = pd.concat([table for table, _ in runs if "hidden_layers" in table], ignore_index=True)
    split = timing_table([run for run in runs if "hidden_layers" not in run[0]], {})
    by = [*KEYS, *FACTS]
    medians = depth.groupby(by, sort=False)["seconds"].median().rename("seconds_median").reset_index()
    depth = summary(depth, by, ("seconds",)).merge(medians, on=by)
    return pd.concat([depth.assign(panel="depth"), split.assign(panel="split")], ignore_index=True)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Times against depth, and the fractions of the steps: two panels, a page wide."""
    figure, (left, right) = plotting.panels(1, 2, plotting.PAGE, 2.8, gridspec_kw={"wspace": 0.1})
    depth = table.query("panel == 'depth'")
    _depth(left, depth)
    _split(right, table.query("panel == 'split'"))
    plotting.letters([left, right])
    figure.suptitle(hardware_note(depth).replace("\n", "; "), fontsize="medium", color=plotting.GREY)
    return figure


def _depth(axes: plotting.Axes, table: pd.DataFrame) -> None:
    top = {step: 1e3 * table.loc[table["step"] == step, "seconds_mean"].max() for step in ("total", "epoch")}
    ratio = float(top["epoch"] / top["total"])  # of the two axes
    for step, method, label in (("total", "pathcond", "rescaling"), ("epoch", "baseline", "one training epoch")):
        rows = table.query(f"step == {step!r}").sort_values("hidden_layers")
        unit = 1e3 / (ratio if step == "epoch" else 1.0)
        mean, deviation = unit * rows["seconds_mean"], unit * rows["seconds_sd"].fillna(0.0)
        look = METHODS[method]
        axes.errorbar(rows["hidden_layers"], mean, deviation, color=look.colour, marker=look.marker, label=label)
    other = axes.secondary_yaxis("right", functions=(lambda v: np.multiply(v, ratio), lambda v: np.divide(v, ratio)))
    other.set_ylabel("one training epoch (ms)", color=METHODS["baseline"].colour)
    axes.set_ylabel("rescaling (ms)", color=METHODS["pathcond"].colour)
    axes.set_ylim(0.0, 1.5 * top["total"])
    sizes = dict(sorted(zip(table["hidden_layers"], table["parameters"], strict=True)))
    names = [f"{size / 1e6:.1f}M" if size >= 1e6 else f"{size / 1e3:.1f}k" for size in sizes.values()]
    axes.set_xticks(list(sizes), [f"{layers:.0f}\n{name}" for layers, name in zip(sizes, names, strict=True)])
    axes.set(xlabel="hidden layers, parameters", title="Rescaling of MLPs, by depth")
    axes.legend(loc="upper left")


def _split(axes: plotting.Axes, table: pd.DataFrame) -> None:
    pooling = "plain" if "plain" in set(table["pooling"]) else table["pooling"].tolist()[0]
    rows = table.query(f"pooling == {pooling!r}")
    networks = [name for name in plotting.NETWORKS if name in set(rows["network"])]
    seconds = dict(zip(zip(rows["network"], rows["step"], strict=True), rows["seconds_mean"], strict=True))
    for x, network in enumerate(networks):
        total, bottom = seconds[network, "total"], 0.0
        for step, (colour, label) in plotting.STEPS.items():
            share = 100 * seconds[network, step] / total
            axes.bar(x, share, 0.62, bottom, color=colour, label=None if x else label)
            at, side = (x, "center") if share >= 6 else (x + 0.33, "left")  # right of a segment that is too thin
            axes.text(at, bottom + share / 2, f"{share:.0f}%", ha=side, va="center", fontsize="x-small")
            bottom += share
        place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center"}
        axes.annotate(duration(total), (x, 100), **place)
    axes.set(ylabel="fraction of the time (%)", ylim=(0, 110), title="Rescaling by step")
    axes.set_xticks(range(len(networks)), [plotting.NETWORKS[network][2] for network in networks])
    axes.set_yticks(range(0, 101, 25))
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)


STEPS = ("graph", "diag_g", "solve", "apply")


def _solver(table: pd.DataFrame) -> Estimates:
    split = some(table, panel="split", pooling="plain")
    means = split.pivot(index="network", columns="step", values="seconds_mean")[list(STEPS)]
    shares = means["solve"] / means.sum(axis=1)
    return {LABELS.get(str(network), network): Estimate.exact(share) for network, share in shares.items()}


def _linear(table: pd.DataFrame) -> Estimate:
    """R squared of a rising line through the medians, with a bootstrap interval from the deviation of the repeats."""
    rows = some(table, panel="depth", step="total")
    if len(rows) < 3:
        raise NotMeasured("a line through fewer than three depths fits always")
    x, y = rows["parameters"].to_numpy(float), rows["seconds_median"].to_numpy(float)
    deviation = rows["seconds_sd"].to_numpy(float) / np.sqrt(rows["n"].to_numpy(float))
    draws = np.random.default_rng(0).normal(y, deviation, size=(999, len(y)))
    low, high = np.quantile([_explained(x, values) for values in draws], [0.025, 0.975])
    value = _explained(x, y)
    return Estimate(value, min(float(low), value), max(float(high), value))


def _explained(x: np.ndarray, y: np.ndarray) -> float:
    """R squared of a rising line, 0 if the line falls or nothing varies."""
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - slope * x - start) ** 2).sum()) / spread if slope > 0 and spread > 0 else 0.0


_CLAIMS = (
    Claim(
        "timing_solver_share",
        "The solver takes nearly all of the rescaling time",
        "about 98%",
        "share of the time of the four steps",
        _solver,
        at_least(0.9),
        unit="of the time",
        cases="network",
        not_comparable=OTHER_SOLVER,
    ),
    Claim(
        "timing_linear",
        "Rescaling time is linear in the number of parameters",
        "linear over 2 to 9 layers",
        "share of the variance of the medians over depths that a rising line explains; interval by bootstrap from the "
        "deviation of the repeats",
        _linear,
        at_least(0.9),
        unit="of the variance (R squared)",
        not_comparable=OTHER_SOLVER,
    ),
)


EXPERIMENT = Experiment(
    name="timing_depth",
    title="Cost by depth and by step",
    where="appendix H.1",
    caption=(
        "Time of the rescaling of MLPs against depth, with the time of one training epoch on an axis of its own (a); "
        "both axes are linear. Means over {repeats} runs; bars are one standard deviation. Shares of the four steps in "
        "the time of the rescaling, for each network of Figure 6 (b)."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=KEYS,
    measure=measure,
    table=table,
    exclusive=True,
    precision="float32, solver in float64",
    also=("timing",),
)
