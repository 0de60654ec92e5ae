"""Methods that are compared: what each does to the start weights, after a step, and between epochs.

To add one: an entry here, with its label and colour, and its name in config.yaml. No torch: the workflow reads this.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paper.errors import PaperError

# Okabe and Ito's palette: distinguishable with all common kinds of colour blindness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#777777"
_DRAWN = ("label", "colour", "marker", "dash")


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        label: its name in figures.
        colour: of its curves.
        marker: of its points.
        dash: line style of its curves.
        rescale: apply PathCond to the start weights.
        part: which side of the scales is applied: ``both``, ``rows`` (incoming alone) or ``columns`` (outgoing alone).
        batchnorm: ``exclude`` (the paper's way) or ``affine`` (keeps the function).
        solver: ``sweeps`` (ten, as in the paper) or ``optimum``.
        sweeps: number of sweeps.
        pooling: ``plain`` (the paper's conv figures) or ``exact``.
        enorm: balance the layers' norms after every step.
        teleport: epochs between two rescalings during training; 0 for never.
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


# In the order of legends.
METHODS: dict[str, Method] = {
    "baseline": Method("Baseline", GREY, "o"),
    "enorm": Method("ENorm", GREEN, "s", "--", enorm=True),  # dashed: it often lies on the baseline
    "pathcond": Method("PathCond", RED, "^", rescale=True),
    "rows": Method("rows only", BLUE, "v", rescale=True, part="rows"),
    "columns": Method("columns only", ORANGE, "D", rescale=True, part="columns"),
    "exact": Method("exact BatchNorm", SKY, "P", rescale=True, batchnorm="affine"),
    "optimum": Method("optimum", PINK, "<", rescale=True, solver="optimum"),
    "teleport": Method("every 10 epochs", BLACK, "*", rescale=True, batchnorm="affine", teleport=10),
}


def describe(name: str) -> dict[str, Any]:
    """What of a method is part of a run's settings: the fields that matter to it; not how it is drawn."""
    if name not in METHODS:
        raise PaperError(f"method: expected one of {', '.join(METHODS)}, got {name!r}.")
    method = METHODS[name]
    if not method.rescale:
        return {"enorm": method.enorm}
    return {key: value for key, value in asdict(method).items() if key not in ("enorm", *_DRAWN)}


def solver_options(rescaling: Mapping[str, Any]) -> dict[str, Any]:
    """Options of :func:`pathcond.solve` for the rescaling of a run; its ``clamp`` bounds abs(u) = 2 abs(log lambda)."""
    clamp = rescaling.get("clamp")
    return {
        "method": rescaling["solver"],
        "sweeps": rescaling["sweeps"],
        "clamp": None if clamp is None else clamp / 2,
    }
