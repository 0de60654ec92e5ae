"""Claims, what runs find of them, and the verdict; with the statistics that decide it.

Ratios of epochs and losses are paired by seed. A seed that does not reach the target within its epochs is censored: it
counts with the epochs it had, which bounds the ratio from one side. Where that is no bound, the ratio is left open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd  # else only where a table is judged: the workflow reads the claims each time it starts

REPRODUCED, PARTLY, NOT_REPRODUCED = "reproduced", "partly", "not reproduced"
NOT_RUN = "not judged at this preset"
NOT_YET = "not run yet"
RANGE = "range"
COLUMNS = ("claim", "paper", "ours", "interval", "verdict", "experiment")

LR = 1e-3  # of the paper's main figures
AT_LEAST, AT_MOST = ">= ", "<= "
BOUNDS = "a ratio that a missed target leaves as a bound counts as that bound"
SMALLER = 1.001  # a loss is smaller if it is so by 0.1%


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
    claim: Claim, experiment: str, table: pd.DataFrame, is_paper: bool, artifact: str, without: str = ""
) -> dict[str, Any]:
    """A claim with our value, what the table lacks (`without`), and the verdict, if the settings are the paper's."""
    try:
        finding = claim.judge(table)
    except NotMeasured as error:
        finding = Finding(f"not measured ({error})", NOT_RUN)
    return {
        "id": claim.id,
        "experiment": experiment,
        "source": claim.source,
        "claim": claim.said,
        "paper": claim.paper,
        "ours": f"{without}: {finding.ours}" if without else finding.ours,
        "value": _finite(finding.value),
        "interval": None if finding.interval is None else [_finite(end) for end in finding.interval],
        "interval_of": finding.of,
        "rule": claim.rule,
        "verdict": finding.verdict if is_paper else NOT_RUN,
        "artifact": artifact,
    }


def markdown(claims: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Claims as a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for claim in claims:
        ends = claim["interval"] or [None]
        interval = "" if None in ends else f"{claim['interval_of']} {ends[0]:.3g} to {ends[1]:.3g}".lstrip()
        texts = {**claim, "interval": interval, "experiment": f"`{claim['experiment']}`"}
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
    from scipy import stats

    quantile = round(float(stats.t.ppf(0.975, count - 1)), 2)  # two decimals, as in the published intervals
    half = quantile * deviation / math.sqrt(count)
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


@dataclass(frozen=True)
class Ratio:
    """How many times the epochs (or the loss) of one configuration are those of another; mean over seeds.

    Attributes:
        value: the mean.
        bound: AT_LEAST or AT_MOST where targets were missed, else empty.
        interval: 95% over seeds; None for a bound.
        digits: printed after the point.
    """

    value: float
    bound: str = ""
    interval: tuple[float, float] | None = None
    digits: int = 2

    def __str__(self) -> str:
        return f"{self.bound}{self.value:.{self.digits}f}"


Ratios = dict[float, Ratio | None]  # None where a ratio is open


def runs(table: pd.DataFrame, kind: str | None = None, **where: object) -> pd.DataFrame:
    """The runs with these values, one row a seed.

    Args:
        table: of a trained experiment.
        kind: "hidden_layers" for MLPs alone, "compression" for autoencoders alone.
        where: values of columns.

    Raises:
        NotMeasured: there are none.
    """
    rows = some(table, panel="run", **where)
    if kind is not None:
        rows = rows[rows[kind].notna()]
        if rows.empty:
            raise NotMeasured(f"no run with {kind}")
    return rows


def of(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """The runs of a method, none if it was left out."""
    return rows[rows["method"] == method]


def by(rows: pd.DataFrame, column: str) -> Iterator[tuple[float, pd.DataFrame]]:
    """The rows of each value of a column of numbers, smallest first."""
    for value in sorted(set(rows[column].dropna())):
        yield float(value), rows[rows[column] == value]


def epochs_ratio(slow: pd.DataFrame, fast: pd.DataFrame) -> Ratio | None:
    """Epochs to the target of some runs over those of others, paired by seed.

    Args:
        slow: runs of the numerator.
        fast: runs of the denominator.

    Returns:
        The ratio; None if there is no pair, if a seed meets the target in neither, or bounds point both ways.
    """
    columns = ["seed", "reached", "epochs"]
    pairs = slow[columns].merge(fast[columns], on="seed", suffixes=("", "_fast"))
    missed, missed_fast = pairs["reached"].isna(), pairs["reached_fast"].isna()
    if pairs.empty or (missed.any() and missed_fast.any()):
        return None
    # The start itself may meet a low target: one epoch then, so that ratios stay finite.
    above = pairs["reached"].fillna(pairs["epochs"]).clip(lower=1.0)
    below = pairs["reached_fast"].fillna(pairs["epochs_fast"]).clip(lower=1.0)
    bound = AT_LEAST if missed.any() else AT_MOST if missed_fast.any() else ""
    return _over_seeds(above / below, bound)


def loss_ratio(high: pd.DataFrame, low: pd.DataFrame) -> Ratio | None:
    """Final train loss of some runs over that of others, paired by seed; a run that diverged has an infinite one.

    Returns:
        The ratio, 0 or infinite where one side diverged; None if there is no pair or both sides of one diverged.
    """
    columns = ["seed", "final_train_loss"]
    pairs = high[columns].merge(low[columns], on="seed", suffixes=("", "_low")).fillna(math.inf)
    values = pairs["final_train_loss"] / pairs["final_train_loss_low"]
    return None if pairs.empty or values.isna().any() else _over_seeds(values, digits=3)


def _over_seeds(values: pd.Series, bound: str = "", digits: int = 2) -> Ratio:
    mean = float(values.mean())
    if bound or not math.isfinite(mean):
        return Ratio(mean, bound, None, digits)
    return Ratio(mean, "", interval(mean, float(values.std()), len(values)), digits)


def ratios(rows: pd.DataFrame, column: str, fast: str = "pathcond", slow: str = "baseline") -> Ratios:
    """Ratios of epochs of two methods by the values of a column."""
    return {value: epochs_ratio(of(part, slow), of(part, fast)) for value, part in by(rows, column)}


def loss_ratios(rows: pd.DataFrame, column: str, low: str = "pathcond", high: str = "baseline") -> Ratios:
    """Ratios of final losses of two methods by the values of a column."""
    return {value: loss_ratio(of(part, high), of(part, low)) for value, part in by(rows, column)}


def known(found: Ratios, least: int = 1) -> dict[float, Ratio]:
    """The ratios that are not open.

    Raises:
        NotMeasured: there are fewer than `least`.
    """
    kept = {key: value for key, value in found.items() if value is not None}
    if len(kept) < least:
        raise NotMeasured(f"{len(kept)} of {len(found)} ratios known, {least} needed: targets missed or runs left out")
    return kept


def listed(found: Ratios, name: str) -> str:
    """Ratios in words, such as "hidden layers 2: >= 1.54, 3: 1.72, 4: open"."""
    return f"{name} " + ", ".join(f"{key:g}: {'open' if value is None else value}" for key, value in found.items())


def span(found: Mapping[float, Ratio]) -> tuple[float, float]:
    """Smallest and largest value."""
    values = [ratio.value for ratio in found.values()]
    return min(values), max(values)


def rank(values: Mapping[float, float]) -> float:
    """Rank correlation of values with their keys; NaN if either is constant."""
    from scipy import stats

    if len(set(values.values())) < 2:
        return math.nan
    return float(stats.spearmanr(list(values), list(values.values())).statistic)


def growth(values: Mapping[float, float]) -> str:
    """Reproduced if values grow from each key to the next, partly if the last is above the first, else not.

    Raises:
        NotMeasured: one value shows no trend.
    """
    ordered = [value for _, value in sorted(values.items())]
    if len(ordered) < 2:
        raise NotMeasured("one value shows no trend")
    if all(left < right for left, right in zip(ordered, ordered[1:], strict=False)):
        return REPRODUCED
    return PARTLY if ordered[-1] > ordered[0] else NOT_REPRODUCED


def tuned(rows: pd.DataFrame, value: str) -> tuple[pd.DataFrame, str]:
    """A method's runs at the learning rate where its mean is least, among those where every seed has a finite value.

    Returns:
        The runs, none if there is no such rate, and the mean and rate in words, with a remark if the rate is at an end
        of those tried.
    """
    means = rows.assign(value=rows[value].replace(float("inf"), float("nan"))).groupby("lr")["value"]
    complete = means.mean()[means.count() == means.size()]
    if complete.empty:
        return rows.iloc[:0], "open"
    lr = complete.idxmin()
    end = ", the end of those tried" if lr in (rows["lr"].min(), rows["lr"].max()) else ""
    return rows[rows["lr"] == lr], f"{complete.min():.3g} at lr {lr:g}{end}"


def more_accurate(rows: pd.DataFrame, first: str, second: str) -> float:
    """How much higher the first method's final train accuracy is, mean over seeds."""
    values = [of(rows, method).set_index("seed")["final_train_accuracy"] for method in (first, second)]
    return float((values[0] - values[1]).mean())


def head_start(table: pd.DataFrame, value: str, level: float | None = None) -> tuple[float, int]:
    """How many epochs earlier PathCond's mean curve gets to a level.

    Args:
        table: of one network and learning rate.
        value: metric of the curves.
        level: of an accuracy; None for where the baseline ends.

    Returns:
        Epochs between the first times that the baseline and PathCond are there (NaN if one never is), and the epochs
        of a run.

    Raises:
        NotMeasured: a method was left out, or the baseline diverged.
    """
    curves = {}
    for method in ("baseline", "pathcond"):
        rows = some(table, panel="curve", method=method).sort_values("epoch").set_index("epoch")
        curves[method] = rows[f"{value}_mean"] * (-1 if value.endswith("loss") else 1)
    level = curves["baseline"].iloc[-1] if level is None else level
    if math.isnan(level):
        raise NotMeasured("the baseline diverged")
    first = {method: curve.index[curve >= level].min() for method, curve in curves.items()}
    return float(first["baseline"] - first["pathcond"]), int(curves["baseline"].index.max())
