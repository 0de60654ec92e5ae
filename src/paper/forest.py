"""One figure of all gains: the estimate and the 95% interval of claims, from the file that joins them.

A row of the figure is one entry of :data:`ROWS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paper import plotting
from paper.experiments.practice import LABELS as PRACTICE
from paper.methods import METHODS


class Row(NamedTuple):
    """What is drawn: a label, the claim, its case (empty if it has none), and the group under which it stands."""

    group: str
    label: str
    claim: str
    case: str = ""


TIMES, POINTS = "times", "points"  # units, one panel each


def _rows(group: str, claim: str, cases: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of a claim, from labels to cases."""
    return tuple(Row(group, label, claim, case) for label, case in cases.items())


def _layers(*depths: int, more: str = "") -> dict[str, str]:
    return {f"{depth} hidden layers": f"{depth}{more}" for depth in depths}


_RATE, _TUNED = "at the paper's rate, 1e-3", "each at its best rate"
_COMPRESSIONS = {f"compression {factor}": f"{factor}" for factor in (1, 2, 4, 7)}
_OPTIMISERS = ("SGD with momentum", "AdamW", "Muon")
_COMMON = {label: label for network, label in PRACTICE.items() if not network.startswith("mnist")}
_MNIST = {f"MLP, {name}": f"MLP on MNIST, {name}, {METHODS['free'].label}" for name in ("SGD", "AdamW")}
ROWS = {
    TIMES: (
        Row(f"MLPs, epochs, {_RATE}", "3 hidden layers", "mlp_speedup"),
        *_rows(f"MLPs, epochs, {_RATE}", "mlp_deeper", _layers(4, 6, 8)),
        *_rows(f"MLPs, epochs, {_RATE}", "mlp_gelu_speedup", {"GELU, 3 hidden layers": "3"}),
        *_rows(f"MLPs, epochs, {_RATE}", "default_bounded", {"8 hidden layers, bounded": "8"}),
        *_rows(f"MLPs, epochs, {_RATE}, library's default", "default_speed", _layers(3, 6, 8)),
        *_rows("MLPs without BatchNorm, epochs, rate 1e-3", "controls_no_batchnorm",
               _layers(3, 6, more=" hidden layers, lr 0.001")),
        *_rows("MLPs, epochs, at rate 0.1", "mlp_lrs_large", _layers(3, 8)),
        *_rows(f"MLPs, epochs, {_TUNED}", "tuned_epochs", _layers(2, 3, 5, 8)),
        *_rows(f"Autoencoders, loss, {_RATE}", "autoencoder_loss", _COMPRESSIONS),
        *_rows(f"Autoencoders, loss, {_TUNED}", "tuned_autoencoders", _COMPRESSIONS),
    ),
    POINTS: (
        *_rows(f"MLPs, test accuracy, {_RATE}", "mlp_generalization", {c: c for c in ("best epoch", "last epoch")}),
        *_rows("MLP, test accuracy, other optimizers", "optimisers_accuracy",
               {name: f"3-layer MLP, {name}" for name in _OPTIMISERS}),
        Row("CIFAR-NV, test accuracy", "rate 1e-3", "cifar_generalization"),
        Row("CIFAR-NV, test accuracy", "best rate of each", "tuned_cifar_nv", "CIFAR-NV"),
        *_rows("MLPs, train accuracy, start of small variance", "default_small_start",
               {f"rate {lr}": lr for lr in ("0.001", "0.01")}),
        *_rows("Common networks, 2 epochs, half of ten sweeps", "practice_no_harm", _COMMON),
        *_rows("Common networks, 8 epochs, half of ten sweeps", "practice_no_harm",
               {label: f"{label}, 8 epochs" for label in _COMMON}),
        *_rows("Common networks, 32 epochs, half of ten sweeps", "practice_no_harm",
               {label: f"{label}, 32 epochs" for label in ("VGG-11-BN", "VGG-16-BN", "ResNet-18")}),
        *_rows("Unequal starts (sigma 2), scales without bound", "unequal_gain", _MNIST),
    ),
}  # fmt: skip
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
                place.text(0.0, at, group, transform=place.get_yaxis_transform(), fontsize="x-small", weight="bold",
                           bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
                at += 1.0
            ends, none = [value if end is None else end for end in (low, high)], NONE[unit]
            loss = high is not None and high < none
            colour = COLOURS["yes"] if low is not None and low > none else COLOURS["no"] if loss else plotting.BLACK
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
