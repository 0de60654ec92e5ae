"""What a claim is, and how findings become verdicts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

REPRODUCED, PARTLY, NOT_REPRODUCED = "reproduced", "partly", "not reproduced"
NOT_RUN = "not run at this scale"
NOT_YET = "not run yet"
RANGE = "range"
COLUMNS = ("claim", "paper", "ours", "interval", "verdict", "item")

# 97.5% points of Student's t by degrees of freedom; beyond the list the normal one is near enough.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)


@dataclass(frozen=True)
class Finding:
    """What the runs say of a claim.

    Attributes:
        ours: our value in words, as printed.
        verdict: one of REPRODUCED, PARTLY, NOT_REPRODUCED.
        value: our value as a number, where it is one.
        interval: what it lies in.
        of: what the interval is, if not 95% over seeds of that value: RANGE over cases, or 95% of one of several.
    """

    ours: str
    verdict: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    of: str = ""


class NotMeasured(Exception):
    """The table lacks what a claim is about, because the settings leave it out."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper (or ours about it) that runs decide.

    Attributes:
        id: slug, unique.
        text: the claim in our words.
        paper: the paper's value.
        rule: how the verdict follows from the value, in words.
        judge: the same in code.
        ours: whether it is a question of ours, which the paper does not put.
    """

    id: str
    text: str
    paper: str
    rule: str
    judge: Callable[[pd.DataFrame], Finding]
    ours: bool = False

    @property
    def said(self) -> str:
        """The claim, with a remark if it is ours."""
        return f"{self.text} (ours)" if self.ours else self.text

    @property
    def source(self) -> str:
        """Whose claim it is."""
        return "ours" if self.ours else "paper"


def judged(
    claim: Claim, item: str, table: pd.DataFrame, scale: str, artifact: str, without: str = ""
) -> dict[str, Any]:
    """A claim with our value, and `without` what it was found, and its verdict, which only the scale `paper` has."""
    try:
        finding = claim.judge(table)
    except NotMeasured as error:
        finding = Finding(f"not measured ({error})", NOT_RUN)
    return {
        "id": claim.id,
        "item": item,
        "source": claim.source,
        "claim": claim.said,
        "paper": claim.paper,
        "ours": f"{without}: {finding.ours}" if without else finding.ours,
        "value": _finite(finding.value),
        "interval": None if finding.interval is None else [_finite(end) for end in finding.interval],
        "interval_of": finding.of,
        "rule": claim.rule,
        "verdict": finding.verdict if scale == "paper" else NOT_RUN,
        "scale": scale,
        "artifact": artifact,
    }


def markdown(claims: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Claims as a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for claim in claims:
        ends = claim["interval"] or [None]
        interval = "" if None in ends else f"{claim['interval_of']} {ends[0]:.3g} to {ends[1]:.3g}".lstrip()
        texts = {**claim, "interval": interval, "item": f"`{claim['item']}`"}
        lines.append("| " + " | ".join(texts[column].replace("|", "\\|") for column in columns) + " |")
    return "\n".join(lines) + "\n"


def counted(claims: Sequence[Mapping[str, Any]]) -> str:
    """How many claims have which verdict, the paper's and ours apart."""
    parts = []
    for source, name in (("paper", "of the paper"), ("ours", "of ours")):
        found = [claim["verdict"] for claim in claims if claim["source"] == source]
        order = (REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_RUN, NOT_YET)
        counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in order if verdict in found)
        if found:
            parts.append(f"{len(found)} claims {name}: {counts}")
    return "; ".join(parts) + "."


def of_all(true: Sequence[bool]) -> str:
    """Reproduced if all are true, partly if some, not if none; NotMeasured if there is nothing to judge by."""
    if not true:
        raise NotMeasured("nothing to compare")
    if all(true):
        return REPRODUCED
    return PARTLY if any(true) else NOT_REPRODUCED


def within(value: float, near: tuple[float, float], far: tuple[float, float]) -> str:
    """Reproduced inside the near bounds, partly inside the far ones, else not."""
    if near[0] <= value <= near[1]:
        return REPRODUCED
    return PARTLY if far[0] <= value <= far[1] else NOT_REPRODUCED


def interval(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """95% interval of a mean over `count` seeds; the mean alone if there is one seed."""
    if count < 2:
        return mean, mean
    half = (_T[count - 2] if count - 2 < len(_T) else 1.96) * deviation / math.sqrt(count)
    return mean - half, mean + half


def one(table: pd.DataFrame, **where: Any) -> pd.Series:
    """The only row with these values."""
    rows = some(table, **where)
    if len(rows) != 1:
        raise ValueError(f"expected one row with {where}, got {len(rows)}")
    return rows.iloc[0]


def some(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The rows with these values; NotMeasured if there are none."""
    for name, value in where.items():
        table = table[table[name] == value]
        if table.empty:
            raise NotMeasured(f"no rows with {name} {value}")
    return table


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
