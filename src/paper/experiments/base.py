"""What an experiment is: one figure or table of the paper, from its settings to its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paper.aggregate import Runs, joined
from paper.lazy import pd, plotting, torch
from paper.settings import plain
from paper.verdicts import Claim

if TYPE_CHECKING:
    from pydantic import BaseModel

Part = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper.

    Attributes:
        name: its name, that of its module.
        title: its heading.
        where: its place in the paper, such as "Figure 2" or "appendix"; "ours" if it is not in the paper.
        caption: what is drawn; placeholders are filled by :meth:`described`.
        settings: the model of its block in config.yaml.
        plot: draws its table.
        claims: claims of the paper, or our own, that it decides.
        keys: columns that identify a row within one seed or repeat.
        version: version of the measurement, part of its specs; raised by hand when its results change.
        measure: function from the settings of one part and a device to the table of that part; None if it is trained.
            If the settings have a `dataset`, they also have `data`, the path of its file.
        parts: name and settings of each part, which is one result; None for one part `all` with all settings.
        grids: the training grids of a trained experiment; None if it is measured.
        table: function from its runs and settings to the table that is drawn and judged.
        exclusive: whether it measures time, and so runs alone on the machine.
        precision: numerical precision of the measurement in words, for the provenance.
        also: other experiments whose runs its table reads.
        rows: name of a list in the settings of its parts with one row per entry; a part that lacks rows is completed.
    """

    name: str
    title: str
    where: str
    caption: str
    settings: type[BaseModel]
    plot: Callable[[pd.DataFrame], plotting.Figure]
    claims: tuple[Claim, ...]
    keys: tuple[str, ...] = ("epoch",)
    version: int = 1
    measure: Callable[[Mapping[str, Any], torch.device], pd.DataFrame] | None = None
    parts: Callable[[Any], Iterable[Part]] | None = None
    grids: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None
    table: Callable[[Runs, Mapping[str, Any]], pd.DataFrame] = joined
    exclusive: bool = False
    precision: str = "float64"
    also: tuple[str, ...] = ()
    rows: str | None = None

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
        """The caption with its placeholders filled.

        Args:
            settings: settings of the experiment, as a plain dictionary. For each list or dictionary NAME a caption
                may use NAME_count, and for numbers NAME_min and NAME_max.
        """
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
