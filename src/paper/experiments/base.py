"""What an experiment is: one figure or table of the paper, from its settings to its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper import plotting
from paper.aggregate import Runs, joined
from paper.lazy import pd, torch
from paper.settings import plain
from paper.verdicts import Claim

if TYPE_CHECKING:
    from pydantic import BaseModel

Part = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper: it has either `measure` or `grids`, if it is trained."""

    name: str  # that of its module
    title: str
    where: str  # its place in the paper, such as "Figure 2" or "appendix"; "ours" if it is not in the paper
    caption: str  # what is drawn; `described` fills its placeholders
    settings: type[BaseModel]  # the model of its block in config.yaml
    plot: Callable[[pd.DataFrame], plotting.Figure]
    claims: tuple[Claim, ...]  # of the paper, or our own, that it decides
    keys: tuple[str, ...] = ()  # columns that identify a row within one seed or repeat of a measurement
    version: int = 1  # of the measurement, part of its specs; raised by hand when its results change
    # From the settings of one part and a device to the table of that part. Settings with a `dataset` also have `data`,
    # the path of its file.
    measure: Callable[[Mapping[str, Any], torch.device], pd.DataFrame] | None = None
    parts: Callable[[Any], Iterable[Part]] | None = None  # each is one result; None for one part `all`
    grids: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None  # the training grids
    table: Callable[[Runs, Mapping[str, Any]], pd.DataFrame] = joined  # what is drawn and judged, from its runs
    distinct: tuple[str, ...] = ()  # settings by which its table tells runs of one network and method apart
    exclusive: bool = False  # whether it measures time, and so runs alone on the machine
    precision: str = "float64"  # of the measurement in words, for the provenance
    also: tuple[str, ...] = ()  # other experiments whose runs its table reads
    rows: str | None = None  # a list in the settings of its parts with one row per entry; missing rows are completed

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"experiment {self.name}: expected claims, got none. State what the figure is to show.")
        if (self.measure is None) == (self.grids is None):
            raise ValueError(f"experiment {self.name}: expected either measure or grids. Give one of them.")

    @property
    def trained(self) -> bool:
        """Whether it is made of training runs."""
        return self.grids is not None

    def all_parts(self, settings: BaseModel) -> list[Part]:
        """Name and settings of each part of a measured experiment."""
        return [("all", plain(settings))] if self.parts is None else list(self.parts(settings))

    def described(self, settings: Mapping[str, Any]) -> str:
        """The caption filled with settings; of a list or dictionary NAME it may use NAME_count, NAME_min, NAME_max."""
        values = dict(settings)
        for name, value in settings.items():
            if isinstance(value, list | dict) and value:
                values[f"{name}_count"] = len(value)
                if isinstance(value, list) and all(isinstance(entry, int | float) for entry in value):
                    values |= {f"{name}_min": min(value), f"{name}_max": max(value)}
        return self.caption.format(**values)


def order(experiment: Experiment) -> tuple[int, str, str]:
    """The paper's order: numbered figures, tables, propositions, appendices by letter, then ours."""
    kinds = ("Figure", "Table", "Proposition", "appendix", "ours")
    kind, _, rest = experiment.where.partition(" ")
    if kind not in kinds:
        raise ValueError(f"experiment {experiment.name}: expected where to begin with one of {', '.join(kinds)}.")
    return kinds.index(kind), rest, experiment.name
