"""Methods that are compared: what each does to the start weights, after a step, and between epochs.

To add one: an entry here, its name in config.yaml, a line in figures/style.py, a test. No torch: the plan reads this.
"""

from dataclasses import asdict, dataclass
from typing import Any

from paper.errors import PaperError


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        rescale: apply PathCond to the start weights.
        part: which side of the scales is applied: ``both``, ``rows`` (incoming alone) or ``columns`` (outgoing alone).
        batchnorm: ``exclude`` (the paper's way) or ``affine`` (keeps the function).
        solver: ``sweeps`` (ten, as in the paper) or ``optimum``.
        sweeps: number of sweeps.
        pooling: ``plain`` (the paper's conv figures) or ``exact``.
        enorm: balance the layers' norms after every step.
        teleport: epochs between two rescalings during training; 0 for never.
    """

    rescale: bool = False
    part: str = "both"
    batchnorm: str = "exclude"
    solver: str = "sweeps"
    sweeps: int = 10
    pooling: str = "plain"
    enorm: bool = False
    teleport: int = 0


METHODS: dict[str, Method] = {
    "baseline": Method(),
    "pathcond": Method(rescale=True),
    "enorm": Method(enorm=True),
    "teleport": Method(rescale=True, batchnorm="affine", teleport=10),
    "rows": Method(rescale=True, part="rows"),
    "columns": Method(rescale=True, part="columns"),
    "exact": Method(rescale=True, batchnorm="affine"),
    "optimum": Method(rescale=True, solver="optimum"),
}


def describe(name: str) -> dict[str, Any]:
    """What of a method is part of a run's settings: the fields that matter to it."""
    if name not in METHODS:
        raise PaperError(f"method: expected one of {', '.join(METHODS)}, got {name!r}.")
    method = METHODS[name]
    if not method.rescale:
        return {"enorm": method.enorm}
    return {key: value for key, value in asdict(method).items() if key != "enorm"}
