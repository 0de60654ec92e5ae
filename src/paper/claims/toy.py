"""Claims of Figure 1: one neuron."""

import pandas as pd

from paper.claims.rules import Claim, Finding, NotMeasured, of_all


def _runs(table: pd.DataFrame, run: str, extra: bool) -> pd.DataFrame:
    rows = table[(table["run"] == run) & (table["extra"] == extra)]
    return rows.drop_duplicates(["start", "seed"]).set_index(["start", "seed"])


def _compared(table: pd.DataFrame, column: str, extra: bool) -> tuple[list[bool], str]:
    raw, rescaled = (_runs(table, run, extra)[column] for run in ("raw", "rescaled"))
    if raw.empty:
        raise NotMeasured("no such start")
    # A run that never gets there took longer than any that does.
    better = [bool(rescaled.fillna(float("inf"))[i] < raw.fillna(float("inf"))[i]) for i in raw.index]

    def text(value: float) -> str:
        return "never" if pd.isna(value) else f"{value:.3g}"

    pairs = ", ".join(f"{text(raw[i])} -> {text(rescaled[i])}" for i in raw.index)
    return better, pairs


def _faster(table: pd.DataFrame) -> Finding:
    better, pairs = _compared(table, "reached_1e2", extra=False)
    return Finding(f"{sum(better)} of {len(better)} starts; steps to loss 0.01: {pairs}", of_all(better), sum(better))


def _closer(table: pd.DataFrame) -> Finding:
    better, pairs = _compared(table, "distance", extra=False)
    return Finding(f"{sum(better)} of {len(better)} starts; mean distance: {pairs}", of_all(better), sum(better))


def _everywhere(table: pd.DataFrame) -> Finding:
    shown, _ = _compared(table, "reached_1e4", extra=False)
    other, pairs = _compared(table, "reached_1e4", extra=True)
    where = "also" if all(other) else "not"
    return Finding(f"{where} from the start with large u; steps to loss 0.0001: {pairs}", of_all([*shown, *other]))


CLAIMS = (
    Claim(
        "toy_faster",
        "On one neuron, gradient descent from the rescaled start lowers the loss faster",
        "all three starts",
        "steps to a loss of 0.01 are fewer; all starts: reproduced, some: partly",
        _faster,
    ),
    Claim(
        "toy_closer",
        "Its path in lifted space is closer to that of gradient descent in lifted space",
        "all three starts",
        "mean distance to the ideal path is smaller; all starts: reproduced, some: partly",
        _closer,
    ),
    Claim(
        "toy_any_start",
        "The same holds whatever the start",
        "says it of three starts",
        "steps to a loss of 0.0001 are fewer, from a start with |u| > |(v, w)| too; all: reproduced, some: partly",
        _everywhere,
        ours=True,
    ),
)
