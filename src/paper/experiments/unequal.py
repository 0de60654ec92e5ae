"""Ours: starts whose units differ within a layer, which no single learning rate can make up for.

Every unit of the start is multiplied by exp(sigma z), z normal, and its outgoing weights are divided by it: the
function does not change. docs/hypotheses.md has the hypotheses, committed before the runs. The comparison is that of
`practice`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import create_model

from paper import plotting
from paper.experiments.base import Experiment
from paper.experiments.practice import DEFAULT, GAIN, LABELS, Grids, all_grids, gain, gains, key, table
from paper.lazy import pd
from paper.methods import METHODS
from paper.settings import TrainingGrid
from paper.verdicts import Claim, Estimate, above, some

NETWORKS = {"sgd": "mnist_mlp", "adamw": "mnist_mlp_adamw", "vgg": "vgg11_bn"}  # by the first word of a block


_BLOCKS = """sgd_0 sgd_half sgd_1 sgd_2 sgd_2_lower adamw_0 adamw_half adamw_1 adamw_2 vgg_0 vgg_1 vgg_2
    vgg_2_lower sgd_0_more adamw_0_more adamw_0_baseline"""  # network or optimizer, sigma; lower rates, more seeds
_GRIDS: dict[str, Any] = dict.fromkeys(_BLOCKS.split(), (TrainingGrid | None, None))


class UnequalGrids(Grids):
    """Training grids whose networks are those of the first words of their names."""

    @staticmethod
    def network(block: str) -> str:
        """The network of a block."""
        return NETWORKS[block.partition("_")[0]]


Settings = create_model("Settings", __base__=UnequalGrids, __doc__="Training grids by network and sigma.", **_GRIDS)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Gain of each method by sigma, one panel per network."""
    rows = table[table["panel"] == "best"]
    names = rows["network"].drop_duplicates().tolist()
    figure, axes = plotting.panels(1, len(names), plotting.PAGE, 3.4)
    for place, name in zip(axes, names, strict=True):
        one = rows[rows["network"] == name]
        sigmas = sorted(one["sigma"].unique())
        gains(place, one, sigmas, "sigma")
        accuracy = one[one["method"] == "baseline"].set_index("sigma")["accuracy"]
        place.set_yticks(range(len(sigmas)), [rf"$\sigma$ = {s:g}" + f"\n{accuracy[s]:.1f}%" for s in sigmas])
        place.set_title(LABELS.get(name) or name)
    plotting.letters(axes)
    key(figure, rows)
    return figure


def _at(sigma: float, *methods: str) -> Callable[[pd.DataFrame], dict[str, Estimate]]:
    """Gains of methods at a value of sigma, by network and method."""

    def found(table: pd.DataFrame) -> dict[str, Estimate]:
        rows: Any = some(table, panel="best", sigma=sigma)
        names = {name: METHODS[name].label for name in methods}
        return {f"{LABELS[r.network]}, {names[r.method]}": gain(r) for r in rows.itertuples() if r.method in names}

    return found


_CLAIMS = (
    Claim.ours(
        "unequal_gain",
        "Where units differ by sigma 2 within a layer, undoing it without a bound gains test accuracy",
        GAIN,
        _at(2.0, "free", "norms"),
        above(0.0),
        unit="points",
        cases="network and method",
    ),
    Claim.ours(
        "unequal_none",
        "Where units are equal to begin with, no method gains or loses half a point",
        GAIN,
        _at(0.0, DEFAULT, "full", "free", "norms"),
        (-0.5, 0.5),
        unit="points",
        cases="network and method",
    ),
)


EXPERIMENT = Experiment(
    name="unequal",
    title="Units that differ within a layer",
    where="ours",
    caption=(
        "Gain in test accuracy over the baseline, each method at the learning rate with its best validation accuracy, "
        "where the units of the start were multiplied at random by exp(sigma z) without changing the function. Below "
        "each sigma the baseline's accuracy. Two epochs. Bars are 95% intervals of the difference paired by seed."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=all_grids,
    table=table,
    distinct=("unequal",),
)
