"""One figure of all gains: the estimate and the 95% interval of claims, from the file that joins them.

A row of the figure is one entry of :data:`ROWS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paper import plotting
from paper.experiments.practice import LABELS as PRACTICE


class Row(NamedTuple):
    """What is drawn: a label, the claim, its case (empty if it has none), and the group under which it stands."""

    group: str
    label: str
    claim: str
    case: str = ""


TIMES, POINTS = "times", "points"  # units, one panel each
_RATE, _TUNED = "at the paper's rate, 1e-3", "each at its best rate"
ROWS = {
    TIMES: (
        Row(f"MLPs, epochs, {_RATE}", "3 hidden layers", "mlp_speedup"),
        *(Row(f"MLPs, epochs, {_RATE}", f"{depth} hidden layers", "mlp_deeper", f"{depth}") for depth in (4, 6, 8)),
        Row(f"MLPs, epochs, {_RATE}", "GELU, 3 hidden layers", "mlp_gelu_speedup", "3"),
        Row(f"MLPs, epochs, {_RATE}", "8 hidden layers, bounded", "default_bounded", "8"),
        *(
            Row(f"MLPs, epochs, {_RATE}, library's default", f"{depth} hidden layers", "default_speed", f"{depth}")
            for depth in (3, 6, 8)
        ),
        *(
            Row(
                "MLPs without BatchNorm, epochs, rate 1e-3",
                f"{depth} hidden layers",
                "controls_no_batchnorm",
                f"{depth} hidden layers, lr 0.001",
            )
            for depth in (3, 6)
        ),
        *(Row("MLPs, epochs, at rate 0.1", f"{depth} hidden layers", "mlp_lrs_large", f"{depth}") for depth in (3, 8)),
        *(Row(f"MLPs, epochs, {_TUNED}", f"{d} hidden layers", "tuned_epochs", f"{d}") for d in (2, 3, 5, 8)),
        *(Row(f"Autoencoders, loss, {_RATE}", f"compression {c}", "autoencoder_loss", f"{c}") for c in (1, 2, 4, 7)),
        *(Row(f"Autoencoders, loss, {_TUNED}", f"compression {c}", "tuned_autoencoders", f"{c}") for c in (1, 2, 4, 7)),
    ),
    POINTS: (
        Row(f"MLPs, test accuracy, {_RATE}", "best epoch", "mlp_generalization", "best epoch"),
        Row(f"MLPs, test accuracy, {_RATE}", "last epoch", "mlp_generalization", "last epoch"),
        Row("MLP, test accuracy, other optimizers", "momentum", "optimisers_accuracy", "mlp_3x500_momentum"),
        Row("MLP, test accuracy, other optimizers", "AdamW", "optimisers_accuracy", "mlp_3x500_adamw"),
        Row("MLP, test accuracy, other optimizers", "Muon", "optimisers_accuracy", "mlp_3x500_muon"),
        Row("CIFAR-NV, test accuracy", "rate 1e-3", "cifar_generalization"),
        Row("CIFAR-NV, test accuracy", "best rate of each", "tuned_cifar_nv", "CIFAR-NV"),
        Row("CIFAR-NV, test accuracy", "rate 1e-3, library's default", "default_cifar_nv"),
        *(
            Row("Common networks, 2 epochs, library's default", label, "practice_no_harm", case)
            for case, label in PRACTICE.items()
            if not case.startswith("mnist")
        ),
        *(
            Row("Unequal starts (sigma 2), scales without bound", label, "unequal_gain", f"{case}, sigma 2, free")
            for case, label in PRACTICE.items()
            if case.startswith("mnist")
        ),
    ),
}
LABELS = {TIMES: "baseline / PathCond (above 1: PathCond is better)", POINTS: "PathCond - baseline (points)"}
NONE = {TIMES: 1.0, POINTS: 0.0}  # no effect
COLOURS = {"yes": plotting.GREEN, "no": plotting.RED}


def numbers(claims: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Row, list[Any]]]]:
    """Value and both ends of the interval of each row that the claims have, by unit; an open end is None."""
    known = {claim["id"]: claim for claim in claims}
    found: dict[str, list[tuple[Row, list[Any]]]] = {}
    for unit, rows in ROWS.items():
        for row in rows:
            claim = known.get(row.claim, {"numbers": {}, "value": None})
            value = claim["numbers"].get(row.case) if row.case else [claim["value"], *(claim["interval"] or ())]
            if value is not None and value[0] is not None:
                found.setdefault(unit, []).append((row, value))
    return found


def draw(claims: Sequence[Mapping[str, Any]]) -> plotting.Figure:
    """Ratios on the left, differences on the right, with groups as headings: a page wide."""
    found = numbers(claims)
    lines = {unit: len(rows) + 2 * len({row.group for row, _ in rows}) for unit, rows in found.items()}
    figure, axes = plotting.panels(1, len(found), plotting.PAGE, 0.8 + 0.135 * max(lines.values(), default=1))
    for place, (unit, rows) in zip(axes, found.items(), strict=True):
        ticks, at, group = [], 0.0, ""
        for row, (value, low, high) in rows:  # an open end is drawn at the value
            if row.group != group:
                at, group = at + 1.0, row.group
                place.text(0.0, at, group, transform=place.get_yaxis_transform(), fontsize="x-small", weight="bold")
                at += 1.0
            ends = [value if end is None else end for end in (low, high)]
            colour = _colour(unit, -math.inf if low is None else low, math.inf if high is None else high)
            place.plot(ends, [at, at], color=colour, linewidth=1.2)
            marker = "<" if low is None else ">" if high is None else "o"
            face = colour if marker == "o" else "white"
            place.plot(value, at, color=colour, marker=marker, markerfacecolor=face, markersize=3.5)
            ticks.append((at, row.label))
            at += 1.0
        place.axvline(NONE[unit], color=plotting.GREY, linewidth=0.8, linestyle="--", zorder=1)
        place.set_yticks([at for at, _ in ticks], [label for _, label in ticks], fontsize="x-small")
        place.set(ylim=(max(lines.values()), 0.0), xlabel=LABELS[unit])
        if unit == TIMES:
            place.set_xscale("log")
            plotting.ratios(place.xaxis)
        place.grid(visible=False, axis="y")
    plotting.letters(axes)
    plotting.note(
        figure,
        "bars: 95% intervals; green: PathCond is better, orange: it is worse, black: neither is shown\n"
        "open triangle: a bound, because runs missed the target or the best rate is the smallest or largest one tried",
    )
    return figure


def _colour(unit: str, low: float, high: float) -> str:
    """Green if the whole interval is a gain, red if it is a loss."""
    none = NONE[unit]
    return COLOURS["yes"] if low > none else COLOURS["no"] if high < none else plotting.BLACK
