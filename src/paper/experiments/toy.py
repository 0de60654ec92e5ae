"""Figure 1: gradient descent on f(x) = u relu(v x + w) towards relu: as drawn, rescaled, and in lifted space.

Symbols of the paper and their names here:

    theta = (u, v, w)      theta    shape (runs, 3)
    Phi = (u v, u w)       phi      shape (runs, 2); with u > 0 the loss is a function of Phi alone
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, zip_longest
from typing import Annotated, Any

from paper import plotting
from paper.experiments.base import Experiment
from paper.lazy import np, pd, sns, torch
from paper.seeds import generator
from paper.settings import Block, Distinct, Field, Number, Positive, PositiveInt, SeedList, model_validator
from paper.verdicts import AT_LEAST, AT_MOST, Claim, Estimate, Estimates, above

Start = Annotated[list[Number], Field(min_length=3, max_length=3)]


class Settings(Block):
    """Draws of x, step size and number of steps, which of them are recorded, and starts (u, v, w)."""

    draws: PositiveInt
    lr: Positive
    steps: PositiveInt
    every: PositiveInt
    starts: Distinct[Start]
    slower_start: Start
    seeds: SeedList

    @model_validator(mode="after")
    def _lives(self) -> Settings:
        for u, v, w in (*self.starts, self.slower_start):
            if u <= 0 or v == w == 0:
                raise ValueError(f"expected starts u, v, w with u > 0 and v or w not 0, got {[u, v, w]}; change it")
        return self


COLUMNS = [
    "start", "extra", "run", "seed", "step", "loss", "u", "v", "w", "phi_1", "phi_2",
    "reached_1e2", "reached_1e4", "distance",
]  # fmt: skip
# Points, evenly spaced along a run's curve, whose distances to the ideal curve are averaged.
POINTS = 400


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """Follow every start, raw, rescaled and ideal, by gradient descent on a CPU; one row per recorded step."""
    starts = [(list(start), False) for start in settings["starts"]] + [(list(settings["slower_start"]), True)]
    tables = []
    for seed in settings["seeds"]:
        x = torch.randn(settings["draws"], generator=generator(seed, "input"), dtype=torch.float64)
        tables.append(_follow(starts, x, settings).assign(seed=seed))
    return pd.concat(tables, ignore_index=True).reindex(columns=COLUMNS)


def curve_distance(path: np.ndarray, other: np.ndarray) -> float:
    """Mean distance from a curve (n, 2) to another (m, 2), over points evenly spaced along the first.

    Steps shrink as the loss falls, so a mean over steps would measure the end of the run alone.
    """
    along = np.concatenate(([0.0], np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()))
    spots = np.linspace(0.0, along[-1], POINTS)
    points = np.stack([np.interp(spots, along, coordinate) for coordinate in path.T], axis=1)
    pieces = np.diff(other, axis=0)
    offsets = points[:, None] - other[:-1]
    squares = np.maximum((pieces**2).sum(1), np.finfo(float).tiny)
    shares = ((offsets * pieces).sum(2) / squares).clip(0.0, 1.0)
    return float(np.linalg.norm(offsets - shares[..., None] * pieces, axis=2).min(1).mean())


def _follow(starts: Sequence[tuple[list[float], bool]], x: torch.Tensor, settings: Mapping[str, Any]) -> pd.DataFrame:
    from paper.theory import toy_rescaled

    raw = torch.tensor([start for start, _ in starts], dtype=torch.float64)
    rescaled = raw.new_tensor([toy_rescaled(*start) for start, _ in starts])
    # The lifted start with u = 1 held fixed is gradient descent on the loss as a function of Phi.
    ideal = torch.cat((torch.ones_like(raw[:, :1]), raw[:, :1] * raw[:, 1:]), 1)
    free = torch.ones(3 * len(starts), 3, dtype=torch.float64)
    free[2 * len(starts) :, 0] = 0.0
    theta, loss = _descend(torch.cat((raw, rescaled, ideal)), free, x, settings["lr"], settings["steps"])
    phi = theta[..., :1] * theta[..., 1:]
    theta[:, 2 * len(starts) :] = float("nan")  # descent on Phi has no parameters
    tables = []
    for number, (start, extra) in enumerate(starts):
        lifted = phi[:, 2 * len(starts) + number].numpy()
        names = {"start": ", ".join(f"{value:g}" for value in start), "extra": extra}
        for run, index in zip(("raw", "rescaled", "ideal"), range(number, 3 * len(starts), len(starts)), strict=True):
            path = theta[:, index].numpy(), phi[:, index].numpy(), loss[:, index].numpy()
            tables.append(pd.DataFrame(names | {"run": run} | _rows(*path, lifted, settings["every"])))
    return pd.concat(tables, ignore_index=True)


def _descend(
    theta: torch.Tensor, free: torch.Tensor, x: torch.Tensor, lr: float, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient descent on mean (u relu(v x + w) - relu(x))^2 from each row of `theta`; 0 in `free` holds an entry.

    Returns parameters (steps + 1, runs, 3) and losses (steps + 1, runs).
    """
    y = x.relu()
    # Filled in place: small tensors kept from every step would hold the memory of the large ones between them.
    path, losses = theta.new_empty(steps + 1, *theta.shape), theta.new_empty(steps + 1, len(theta))
    for step in range(steps + 1):
        u, v, w = theta.T[..., None]
        active = (v * x + w).relu()
        error = u * active - y
        path[step], losses[step] = theta, (error**2).mean(1)
        inner = torch.where(active > 0.0, u * error, 0.0)
        gradient = torch.stack(((error * active).mean(1), (inner * x).mean(1), inner.mean(1)), 1)
        theta = theta - lr * 2.0 * free * gradient
    return path, losses


def _rows(theta: np.ndarray, phi: np.ndarray, loss: np.ndarray, lifted: np.ndarray, every: int) -> dict[str, Any]:
    """Columns of one run: every `every`-th step, the last one, and all of the first `every` steps, where paths bend."""
    last = len(loss) - 1
    steps = np.union1d(np.arange(min(every, last)), np.append(np.arange(0, last + 1, every), last))
    columns: dict[str, Any] = {"step": steps, "loss": loss[steps]}
    columns |= dict(zip(("u", "v", "w"), theta[steps].T, strict=True))
    columns |= dict(zip(("phi_1", "phi_2"), phi[steps].T, strict=True))
    columns |= {"reached_1e2": _reached(loss, 1e-2), "reached_1e4": _reached(loss, 1e-4)}
    return columns | {"distance": 0.0 if np.isnan(theta).all() else curve_distance(phi, lifted)}


def _reached(loss: np.ndarray, target: float) -> float:
    """First step with a loss below the target; NaN if there is none."""
    below = np.flatnonzero(loss < target)
    return float(below[0]) if len(below) else np.nan


_Look = tuple[str, str]  # color and marker of a start
# Line style, width and label of a run.
RUNS = {
    "raw": ("--", 1.1, "original start"),
    "rescaled": ("-", 1.6, "rescaled by PathCond"),
    "ideal": (":", 1.3, r"ideal: descent on $\Phi$"),
}
# Losses below this are as good as zero.
FLOOR = 1e-6


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Losses, paths in lifted and in parameter space, and a start where rescaling slows down."""
    figure, axes = plotting.panels(1, 4, plotting.PAGE, 2.5)
    main, extra = table.query("not extra"), table.query("extra")
    looks = dict(zip(main["start"].unique().tolist(), cycle(plotting.SERIES), strict=False))
    _losses(axes[0], main.query("run != 'ideal'"), looks, "Loss")
    _lifted(axes[1], main, looks)
    _parameters(axes[2], main.query("run != 'ideal'"), looks)
    slow = str(extra["start"].iloc[0])
    _losses(axes[3], extra, {slow: (plotting.BLACK, "")}, f"Start ({slow})")
    plotting.letters(axes)
    # Two rows above the panels: starts over kinds of runs.
    starts = [plotting.handle(color=c, marker=m, linewidth=2.0, label=f"start ({s})") for s, (c, m) in looks.items()]
    starts.append(plotting.handle(color=plotting.BLACK, linewidth=0.5, label="the rescaling itself"))
    runs = [plotting.handle(color=plotting.BLACK, linestyle=s, linewidth=w, label=text) for s, w, text in RUNS.values()]
    handles = [handle for pair in zip_longest(starts, runs) for handle in pair if handle is not None]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, columnspacing=2.0)
    return figure


def _runs(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    for (start, run, _), path in rows.groupby(["start", "run", "seed"], sort=False):
        yield start, run, path


def _losses(axes: plotting.Axes, rows: pd.DataFrame, looks: Mapping[str, _Look], title: str) -> None:
    for start, run, path in _runs(rows):
        (line, width, _), (colour, marker) = RUNS[run], looks[start]
        every = {"marker": marker, "markevery": 0.25}
        look = {"color": colour, "linestyle": line, "linewidth": width, "errorbar": None, "legend": False}
        sns.lineplot(path, x="step", y="loss", ax=axes, **look, **every)
    axes.set(yscale="log", xlabel="iteration", ylabel=r"loss $L(\theta)$", title=title)
    axes.set_xlim(0.0, rows["step"].to_numpy().max())
    axes.set_ylim(FLOOR, 2.0 * rows["loss"].to_numpy().max())


def _path(axes: plotting.Axes, path: pd.DataFrame, x: str, y: str, look: _Look, run: str) -> None:
    """A run in the plane of two columns, with its marker where it starts."""
    (line, width, _), (colour, marker) = RUNS[run], look
    axes.plot(path[x], path[y], color=colour, linestyle=line, linewidth=width)
    axes.plot(path[x].iloc[:1], path[y].iloc[:1], color=colour, marker=marker, linestyle="")


def _lifted(axes: plotting.Axes, rows: pd.DataFrame, looks: Mapping[str, _Look]) -> None:
    for start, run, path in _runs(rows):
        _path(axes, path, "phi_1", "phi_2", looks[start], run)
    axes.plot(1.0, 0.0, color=plotting.BLACK, marker="*", markersize=8.0, linestyle="")
    axes.set(xlabel=r"$\Phi_1 = uv$", ylabel=r"$\Phi_2 = uw$", title="Lifted space")


def _parameters(axes: plotting.Axes, rows: pd.DataFrame, looks: Mapping[str, _Look]) -> None:
    """Paths of (v, w); a rescaling moves the start along a ray, and the optima are all (v, 0) with v > 0."""
    for start, run, path in _runs(rows):
        _path(axes, path, "v", "w", looks[start], run)
    for start, path in rows.query("step == 0").groupby("start", sort=False):
        axes.plot(path["v"], path["w"], color=looks[str(start)][0], linewidth=0.5, zorder=1)
    look: dict[str, Any] = {"color": plotting.GREY, "linewidth": 3.0, "alpha": 0.4, "solid_capstyle": "butt"}
    axes.plot([0.0, rows["v"].to_numpy().max()], [0.0, 0.0], zorder=0, **look)
    axes.set(xlabel="incoming weight $v$", ylabel="bias $w$", title="Parameter space")


def _ratios(column: str) -> Callable[[pd.DataFrame], Estimates]:
    """A value of the original start over that of the rescaled one; a run that never gets there has all its steps."""

    def estimate(table: pd.DataFrame) -> Estimates:
        last = table["step"].max()
        ends = table[~table["extra"]].drop_duplicates(["start", "seed", "run"]).set_index("run")
        raw, ours = (ends.loc[ends.index == run].set_index("start")[column] for run in ("raw", "rescaled"))
        found: Estimates = {}
        for start in raw.index:
            missed = math.isnan(raw[start]), math.isnan(ours[start])
            values = [last if math.isnan(value) else value for value in (raw[start], ours[start])]
            bound = AT_LEAST if missed[0] else AT_MOST if missed[1] else ""
            found[f"({start})"] = None if all(missed) else Estimate.exact(values[0] / values[1], 1, bound)
        return found

    return estimate


_CLAIMS = (
    Claim(
        "toy_faster",
        "On one neuron, gradient descent from the rescaled start lowers the loss faster",
        "all three starts",
        "steps to a loss of 0.01, original over rescaled start",
        _ratios("reached_1e2"),
        above(1.0),
        unit="times",
        cases="start",
    ),
    Claim(
        "toy_closer",
        "From the rescaled start, the trajectory of the path lifting is closer to that of gradient descent on the "
        "lifting itself",
        "all three starts",
        "mean distance to the ideal trajectory, original over rescaled start",
        _ratios("distance"),
        above(1.0),
        unit="times",
        cases="start",
    ),
)


EXPERIMENT = Experiment(
    name="toy",
    title="Gradient descent on one neuron",
    where="Figure 1",
    caption=(
        "Gradient descent on f(x) = u relu(v x + w) from {starts_count} starts, each original and rescaled by "
        "PathCond. Loss (a). Trajectory of Φ = (uv, uw), beside the ideal one of gradient descent on Φ itself; star: "
        "optimum (b). Trajectory of the parameters; gray: optima (c). Not in the paper: a start from which PathCond is "
        "slower (d)."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("start", "extra", "run", "step"),
    measure=measure,
)
