"""Figure 6: wall time of the rescaling, step by step, against one epoch of training."""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from paper import cli, plotting
from paper import settings as fields
from paper.aggregate import joined, summary
from paper.experiments.base import Experiment, Part, Runs
from paper.lazy import functional, pathcond, pd, torch
from paper.seeds import generator
from paper.verdicts import Claim, Estimate, Estimates, at_most, interval, one, some

T = TypeVar("T")

LABELS = {"mlp": "MLP", "cifar_nv": "CIFAR-NV", "resnet18_c": "ResNet-18-C", "resnet18_c_held": "ResNet-18-C"}
POOLINGS = {"plain": "pools as they are", "exact": "exact pools"}
NO_POOLS = "mlp"  # has no pools, so both ways to count them are one computation
PAPER_FRACTIONS = {"mlp": 1.03, "cifar_nv": 0.22}  # of an epoch; it prints no number for ResNet-18-C
KEYS = ("network", "pooling", "step")
FACTS = ("parameters", "batches", "epoch_batches", "hardware")  # of every row


class Timed(fields.Block):
    """What is timed: `batches` steps of an epoch, which is scaled up from them, and the rescaling."""

    dataset: fields.DatasetName
    batch: fields.PositiveInt
    batches: fields.PositiveInt
    sweeps: fields.PositiveInt
    warmup: fields.NonNegativeInt
    repeats: fields.AtLeast2


class Settings(Timed):
    """Networks by name, and ways to count pools."""

    networks: dict[fields.Name, fields.Network] = fields.Field(min_length=1)
    poolings: fields.Distinct[fields.Pooling]

    @fields.model_validator(mode="after")
    def _fits(self) -> Settings:
        for name, network in self.networks.items():
            fields.check_timed(fields.plain(network), self.dataset, self.batch, f"networks.{name}, ")
        return self


def parts(settings: fields.Block) -> Iterator[Part]:
    """One part per network of the settings."""
    common = fields.plain(settings)
    for network, model in common.pop("networks").items():
        yield network, {**common, "network": network, "model": model}


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row per pooling, repeat and step of one network at initialization, without the units of BatchNorm.

    Every repeat starts from the same weights and repeats the whole rescaling, including the graph. Steps are
    interleaved, so that a slower phase of the machine affects all alike.

    Columns network, pooling, repeat, step, seconds, parameters, units, batches, epoch_batches, hardware. Steps are
    graph, diag_g, solve, apply, their sum total, and epoch: the time of ``batches`` steps of SGD scaled up to
    ``epoch_batches``. Training has no pooling, so the epoch of a repeat is listed under every pooling.
    """
    data = load(settings["dataset"], settings["data"], device)
    bench = Bench(settings["model"], data, settings["batch"], settings["batches"])
    rows: list[dict[str, Any]] = []
    for repeat in repeats(settings):
        epoch = bench.epoch(repeat)
        for pooling in settings["poolings"]:
            for step, seconds in (bench.rescaling(pooling, settings["sweeps"]) | {"epoch": epoch}).items():
                names = {"network": settings["network"], "pooling": pooling, "repeat": repeat}
                rows.append(names | {"step": step, "seconds": seconds} | bench.facts)
    return pd.DataFrame([row for row in rows if row["repeat"] >= 0])


def repeats(settings: Mapping[str, Any]) -> Iterator[int]:
    """Numbers of the repeats, negative for warm-ups; garbage is collected between them and only there."""
    on = gc.isenabled()
    gc.disable()
    try:
        for repeat in range(-settings["warmup"], settings["repeats"]):
            gc.collect()
            yield repeat
    finally:
        if on:
            gc.enable()


class TrainingSet(NamedTuple):
    """Images (count, channels, side, side) uint8 and labels (count,); an image x enters as x * scale + shift."""

    images: torch.Tensor
    labels: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor


def load(name: str, path: Path, device: torch.device) -> TrainingSet:
    """The training images of a data set, from its file."""
    from paper import data as datasets
    from paper.training.datasets import factors

    dataset = datasets.load(path, name)
    scale, shift = (factor.view(1, -1, 1, 1).to(device) for factor in factors(name))
    return TrainingSet(dataset.train_images.to(device), dataset.train_labels.to(device, torch.int64), scale, shift)


class Bench:
    """One network with its data: times a rescaling by step, or at most `batches` of an epoch, on the data's device."""

    def __init__(self, model: Mapping[str, Any], data: TrainingSet, batch: int, batches: int) -> None:
        from paper import models

        self.model, self.data, self.batch = model, data, batch
        self.device = device = data.images.device
        self.module = models.make(model, 0, "timing").to(device).eval()
        self.start = copy.deepcopy(self.module.state_dict())
        self.trained = copy.deepcopy(self.module).train()
        self.optimizer = torch.optim.SGD(self.trained.parameters(), lr=1e-3)
        self.epoch_batches = math.ceil(len(data.images) / batch)
        self.batches = min(batches, self.epoch_batches)
        self.x = models.example_input(model).to(device)
        self.units = models.units(self.module, self.x, model).units

    @property
    def facts(self) -> dict[str, Any]:
        """Columns of every row other than its time."""
        from paper import models

        return {
            "parameters": models.parameters(self.module),
            "units": self.units,
            "batches": self.batches,
            "epoch_batches": self.epoch_batches,
            "hardware": cli.describe_device(self.device),
        }

    def rescaling(self, pooling: str, sweeps: int) -> dict[str, float]:
        """Seconds of graph, diag_g, solve and apply, and their sum total; the weights are restored afterwards."""
        from paper import models

        module, x = self.module, self.x
        options: Any = {"pooling": pooling}
        graph, first = self._timed(lambda: models.units(module, x, self.model))
        g, second = self._timed(lambda: pathcond.compute_diag_g(module, x, graph=graph, **options))
        solution, third = self._timed(lambda: pathcond.solve(graph, g, sweeps=sweeps))
        _, fourth = self._timed(lambda: pathcond.apply_scales_(module, graph, solution.log_scales))
        module.load_state_dict(self.start)
        steps = {"graph": first, "diag_g": second, "solve": third, "apply": fourth}
        return steps | {"total": sum(steps.values())}

    def epoch(self, repeat: int) -> float:
        """Seconds of an epoch of SGD, from the time of ``batches`` steps."""
        draws = generator(0, "order", "timing", repeat)
        order = torch.randperm(len(self.data.images), generator=draws).to(self.device)
        batches = order.split(self.batch)[: self.batches]
        return self._timed(lambda: self._train(batches))[1] * self.epoch_batches / self.batches

    def _train(self, batches: Iterable[torch.Tensor]) -> None:
        from paper import models

        for index in batches:
            images = models.fit_images(self.data.images[index] * self.data.scale + self.data.shift, self.model)
            loss = functional.cross_entropy(self.trained(images), self.data.labels[index])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        self._wait()
        start = time.perf_counter()
        found = work()
        self._wait()
        return found, time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Means and deviations over repeats."""
    return summary(joined(runs, settings), (*KEYS, "units", *FACTS), ("seconds",))


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Time of the rescaling as a fraction of an epoch, with the paper's where printed: one panel, a column wide."""
    figure, (axes,) = plotting.panels(1, 1, plotting.COLUMN, 3.0)
    looks = {"plain": (plotting.RED, "^"), "exact": (plotting.BLUE, "s")}
    networks = [name for name in plotting.NETWORKS if name in set(table["network"])]
    poolings = [name for name in POOLINGS if name in set(table["pooling"])]
    epochs = _rows(table, networks, poolings[0], "epoch")
    for number, pooling in enumerate(poolings):
        colour, marker = looks[pooling]
        axes.plot([], [], color=colour, marker=marker, linestyle="", label=POOLINGS[pooling])
        for place, total in enumerate(_rows(table, networks, pooling, "total")):
            alone = networks[place] == NO_POOLS
            if number and alone:
                continue
            x = place + (0.0 if alone else 0.44 * (number - (len(poolings) - 1) / 2))
            _dot(axes, x, total, epochs[place]["seconds_mean"], colour, marker)
    for place, network in enumerate(networks):
        if network in PAPER_FRACTIONS:
            percentage = 100 * PAPER_FRACTIONS[network]
            axes.hlines(percentage, place - 0.4, place + 0.4, color=plotting.BLACK, linewidth=1.0, linestyle="--")
            axes.text(place, 1.06 * percentage, f"{percentage:.0f}%", fontsize="x-small", ha="center", va="bottom")
    axes.plot([], [], color=plotting.BLACK, linewidth=1.0, linestyle="--", label="the paper, RTX A4000")
    axes.set(ylabel="time of the rescaling,\n% of one training epoch", title=hardware_note(table), yscale="log")
    low, high = axes.get_ylim()
    top = max(high, 100.0)
    room = max(3.0, (top / low) ** 0.3)  # for the legend, on a logarithmic axis
    axes.set(xlim=(-0.5, len(networks) - 0.5), ylim=(0.8 * low, room * top))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(networks)), [_name(*pair) for pair in zip(networks, epochs, strict=True)])
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper center", ncols=2, borderaxespad=0.1, columnspacing=1.0, handletextpad=0.4)
    return figure


def duration(seconds: float) -> str:
    """A time as text with three digits, such as 38.2 ms or 1.25 s."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def hardware_note(table: pd.DataFrame) -> str:
    """The hardware, and how much of an epoch was timed, in two lines."""
    pairs = dict.fromkeys(zip(table["batches"], table["epoch_batches"], strict=True))
    scaled = [f"{part:.0f} of {whole:.0f}" for part, whole in pairs if part < whole]
    note = f"epoch scaled up from {' or '.join(scaled)} batches" if scaled else "whole epochs timed"
    return f"{' and '.join(dict.fromkeys(table['hardware']))}\n{note}"


def _rows(table: pd.DataFrame, networks: list[str], pooling: str, step: str) -> list[dict[str, Any]]:
    rows = table.query(f"pooling == {pooling!r} and step == {step!r}").set_index("network")
    return rows.reindex(index=networks).to_dict("records")


def _deviation(row: dict[str, Any]) -> float:
    """The deviation over repeats; zero for one repeat."""
    return 0.0 if math.isnan(row["seconds_sd"]) else row["seconds_sd"]


def _name(network: str, epoch: dict[str, Any]) -> str:
    """A network, and how long its epoch takes."""
    pools = " (no pools)" if network == NO_POOLS else ""
    spread = f" ± {float(f'{_deviation(epoch):.1g}'):g}" if _deviation(epoch) else ""
    seconds = epoch["seconds_mean"]
    mean = f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}"
    return f"{plotting.NETWORKS[network][2]}{pools}\nepoch:\n{mean}{spread} s"


def _dot(axes: plotting.Axes, x: float, total: dict[str, Any], epoch: float, colour: str, marker: str) -> None:
    """Share of an epoch with its deviation, and the share and the time in words."""
    share, deviation = total["seconds_mean"] / epoch, _deviation(total) / epoch
    axes.errorbar(x, 100 * share, 100 * deviation, color=colour, marker=marker)
    place = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    percent = f"{100 * share:#.2g}%" if share < 0.0995 else f"{100 * share:.0f}%"  # two digits or more
    text = f"{percent}\n{duration(total['seconds_mean'])}"
    axes.annotate(text, (x, 100 * (share + deviation)), fontsize="x-small", **place)


OTHER_SOLVER = "the paper's solver takes one neuron after the other, ours a layer, on other hardware"


def _shares(table: pd.DataFrame) -> Estimates:
    """Rescaling time over the mean time of one epoch, by network; intervals over repeats."""
    found: Estimates = {}
    for network, rows in some(table, pooling="plain").groupby("network"):
        total, epoch = (one(rows, step=step) for step in ("total", "epoch"))
        mean, unit = float(total["seconds_mean"]), float(epoch["seconds_mean"])
        low, high = interval(mean, total["seconds_sd"], int(total["n"]))
        found[LABELS.get(str(network), network)] = Estimate(mean / unit, low / unit, high / unit, digits=3)
    return found


_CLAIMS = (
    Claim(
        "timing_one_epoch",
        "Rescaling costs at most about one training epoch, between 22% (CIFAR-NV) and 103% (MLP)",
        "22% to 103%, typically half to one epoch",
        "time of the rescaling over that of an epoch",
        _shares,
        at_most(1.1),
        unit="of an epoch",
        cases="network",
        not_comparable=OTHER_SOLVER,
    ),
)


EXPERIMENT = Experiment(
    name="timing",
    title="Cost of the rescaling",
    where="Figure 6",
    caption=(
        "Time of the whole rescaling at initialization as a fraction of one training epoch on CIFAR-10, for "
        "{networks_count} networks. Means over {repeats} runs after a warm-up; bars are one standard deviation. "
        "Dashed: the fractions that the paper prints, on its own hardware and with its own solver. The MLP has no "
        "pools, so both ways to count them are the same computation, drawn once."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=KEYS,
    measure=measure,
    parts=parts,
    table=table,
    exclusive=True,
    precision="float32, solver in float64",
)
