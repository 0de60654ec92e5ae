"""Methods that are compared: what each does to the start weights, after a step, and between epochs.

A new method is one entry here, with its label and color, and its name in config.yaml. This module does not import
torch, because the workflow reads it each time it starts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paper.cli import PaperError

# Okabe and Ito's palette: distinguishable with all common kinds of color blindness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, OLIVE, VIOLET = "#777777", "#8F7700", "#6A3D9A"
_DRAWN = ("label", "colour", "marker", "dash")


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        label: its name in figures.
        colour: color of its curves.
        marker: marker of its points.
        dash: line style of its curves.
        rescale: apply PathCond to the start weights.
        part: what the scales are applied to: ``both`` sides of a unit, ``rows`` (incoming alone), ``columns`` (outgoing
            alone), or ``rates``: the weights do not change, and the learning rate of each parameter is multiplied by
            the mean factor that imitates the rescaling.
        batchnorm: ``exclude`` (the paper's way) or ``affine`` (keeps the function).
        solver: ``sweeps`` (ten, as in the paper) or ``optimum``.
        sweeps: number of sweeps.
        pooling: ``plain`` (the paper's conv figures) or ``exact``.
        enorm: balance the layers' norms after every step.
        teleport: epochs between two rescalings during training; 0 for never.
        statistics: ``running`` (the paper's) or ``input``: those of normalizations are measured on a batch.
        bound: bound on every abs(log lambda); None for none.
        damping: factor by which the log-scales are multiplied.
        smooth: scales cross GELU and the like.
        objective: ``paths`` (the paper's), or ``norms``: the least sum of squared weights.
    """

    label: str
    colour: str
    marker: str
    dash: str = "-"
    rescale: bool = False
    part: str = "both"
    batchnorm: str = "exclude"
    solver: str = "sweeps"
    sweeps: int = 10
    pooling: str = "plain"
    enorm: bool = False
    teleport: int = 0
    statistics: str = "running"
    bound: float | None = None
    damping: float = 1.0
    smooth: bool = True
    objective: str = "paths"


# Settings added after results had been recorded: at these values a run's settings leave them out.
_ADDED_LATER = {"statistics": "running", "bound": None, "damping": 1.0, "smooth": True, "objective": "paths"}
BOUND, DAMPING = 1.5, 0.5  # the library's defaults


def _library(label: str, colour: str, marker: str, dash: str = "-", **changes: Any) -> Method:
    """A candidate for the default of :func:`pathcond.rescale_` given a batch: ten sweeps with some changes."""
    full: dict[str, Any] = {
        "rescale": True, "batchnorm": "affine", "pooling": "exact", "statistics": "input", "bound": BOUND,
        "smooth": False,
    }  # fmt: skip
    return Method(label, colour, marker, dash, **{**full, **changes})


# In the order of legends.
METHODS: dict[str, Method] = {
    "baseline": Method("Baseline", GREY, "o"),
    "enorm": Method("ENorm", GREEN, "s", "--", enorm=True),  # dashed: it often lies on the baseline
    "pathcond": Method("PathCond", RED, "^", rescale=True),
    "rows": Method("rows only", BLUE, "v", rescale=True, part="rows"),
    "columns": Method("columns only", ORANGE, "D", rescale=True, part="columns"),
    "exact": Method("exact BatchNorm", SKY, "P", rescale=True, batchnorm="affine"),
    "optimum": Method("optimum", PINK, "<", rescale=True, solver="optimum"),
    "teleport": Method("exact BatchNorm, every 10 epochs", BLACK, "*", rescale=True, batchnorm="affine", teleport=10),
    "layer_lrs": Method("learning rate per layer", VIOLET, ">", "--", rescale=True, part="rates"),
    "full": _library("full (ten sweeps)", RED, "o"),
    "free": _library("full, no bound", BLUE, "p", bound=None),
    "half": _library("half of ten sweeps", SKY, "h", damping=DAMPING),
    "every_epoch": _library("default, every epoch", OLIVE, "*", damping=DAMPING, teleport=1),
    "norms": _library("least norms", GREEN, "D", objective="norms", bound=None, statistics="running"),
    "bounded": Method("PathCond, bounded", PINK, "v", rescale=True, bound=BOUND),
}


def describe(name: str) -> dict[str, Any]:
    """The fields of a method that are part of a run's settings: those its numbers depend on, not how it is drawn."""
    if name not in METHODS:
        raise PaperError(f"method: expected one of {', '.join(METHODS)}, got {name!r}.")
    method = METHODS[name]
    if not method.rescale:
        return {"enorm": method.enorm}
    found = {key: value for key, value in asdict(method).items() if key not in ("enorm", *_DRAWN)}
    return {key: value for key, value in found.items() if key not in _ADDED_LATER or value != _ADDED_LATER[key]}


def solver_options(rescaling: Mapping[str, Any]) -> dict[str, Any]:
    """Options of :func:`pathcond.solve` for the rescaling of a run; its ``clamp`` bounds abs(u) = 2 abs(log lambda)."""
    clamp = rescaling.get("clamp")
    bound = rescaling.get("bound") if clamp is None else clamp / 2
    return {"method": rescaling["solver"], "sweeps": rescaling["sweeps"], "clamp": bound}
