"""Claims, the numbers that decide them, their verdicts, and the verdicts in words.

An experiment states its claims. A claim names the quantity that decides it, a function that estimates this quantity
from the experiment's table, and the range of values for which the claim is right. The function returns one estimate
with its 95% interval, or one for each case, such as a depth. This module alone decides: a case is right if its whole
interval lies in the range, wrong if none of it does, and undecided otherwise; cases are joined by :func:`joined`. It
alone puts the result into words.

A run that misses its target is censored: it counts with the epochs it had, which bounds a ratio from one side. The mean
of such ratios is a bound too, and its interval has one end, the cautious one: ">= 1.22 [>= 1.04]" says that the mean of
the bounds is 1.22, and that with the spread over seeds the ratio is still at least 1.04. That end decides; on the other
side the interval is open. Where targets are missed on both sides, the methods are compared at the accuracy with which
the first of them ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any

from paper.lazy import np, pd, scipy


class Answer(StrEnum):
    """What the runs show about a claim; :data:`WORDS` has the verdict in words."""

    YES = "yes"
    MIXED = "mixed"
    SOME = "undecided in some cases"
    NO = "no"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"


YES, MIXED, SOME, NO, UNDECIDED, NOT_COMPARABLE = Answer
PAPER, OURS, ERRATUM = "paper", "ours", "erratum"
WORDS = {
    PAPER: {YES: "reproduced", NO: "not reproduced"},
    OURS: {YES: "holds", NO: "does not hold"},
    ERRATUM: {YES: "confirmed", NO: "not confirmed"},
}
NOT_RUN = "not judged at this preset"
COLUMNS = ("claim", "paper", "ours", "verdict", "experiment")
MANY = 12  # cases that are listed one by one; more are counted
MOST = 500  # seeds that are named as what would decide a claim

LR = 1e-3  # of the paper's main figures
BASELINE, PATHCOND = "baseline", "pathcond"
AT_LEAST, AT_MOST = ">= ", "<= "
END, EDGE = "at the baseline's final accuracy", "at the edge of the grid"


def verdict_words(answer: Answer, kind: str) -> str:
    """The verdict on a claim of a kind, such as "reproduced"."""
    return WORDS[kind].get(answer, answer.value)


# ---- claims

Range = tuple[float, float]


def at_least(low: float) -> Range:
    """A range without an upper end."""
    return low, math.inf


def at_most(high: float) -> Range:
    """A range without a lower end."""
    return -math.inf, high


def above(low: float) -> Range:
    """A range without an upper end, and without `low` itself."""
    return math.nextafter(low, math.inf), math.inf


def below(high: float) -> Range:
    """A range without a lower end, and without `high` itself."""
    return -math.inf, math.nextafter(high, -math.inf)


class NotMeasured(Exception):
    """The table lacks what a claim is about, because the settings leave it out."""


Found = Any  # an Estimate, or a Mapping from the names of cases to an Estimate or None


@dataclass(frozen=True)
class Claim:
    """A statement that is decided by runs.

    Attributes:
        id: unique name.
        text: the claim in our words.
        paper: the paper's value, or what it says.
        quantity: what decides the claim, in words.
        estimate: the quantity of a table, as an :class:`Estimate` or as one for each case; None: not known.
        yes: smallest and largest value for which the claim is right. The paper states none: all of them are ours.
        kind: PAPER; OURS for a hypothesis of ours; ERRATUM for an error in a printed formula.
        unit: unit of the quantity.
        cases: what a case is, such as "depth"; empty if the claim is one statement.
        not_comparable: why the claim is not judged, if our implementation differs in what it is about.
    """

    id: str
    text: str
    paper: str
    quantity: str
    estimate: Callable[[pd.DataFrame], Found]
    yes: Range
    kind: str = PAPER
    unit: str = ""
    cases: str = ""
    not_comparable: str = ""

    @classmethod
    def ours(
        cls,
        id: str,
        text: str,
        quantity: str,
        estimate: Callable[[pd.DataFrame], Found],
        yes: Range,
        paper: str = "not studied",
        unit: str = "",
        cases: str = "",
    ) -> Claim:
        """A hypothesis of ours; `paper` is what the paper says about it."""
        return cls(id, text, paper, quantity, estimate, yes, OURS, unit, cases)

    @property
    def rule(self) -> str:
        """The quantity, the range for which the claim is right, and how cases are joined."""
        if self.not_comparable:
            return f"{self.quantity}; not judged: {self.not_comparable}"
        every = f" for every {self.cases}" if self.cases else ""
        return f"{self.quantity}; {_range(self.yes)}{every}: {verdict_words(YES, self.kind)}"


def _range(ends: Range) -> str:
    low, high = ends
    if math.isinf(high):
        return f"at least {low:g}" if low == round(low, 15) else f"above {round(low, 15):g}"
    if math.isinf(low):
        return f"at most {high:g}" if high == round(high, 15) else f"below {round(high, 15) + 0.0:g}"
    return f"{low:g} to {high:g}"


# ---- deciding


def decide(estimate: Estimate, yes: Range) -> Answer:
    """Yes if the whole interval lies in the range, no if none of it does, else undecided."""
    if yes[0] <= estimate.low and estimate.high <= yes[1]:
        return YES
    return NO if estimate.high < yes[0] or estimate.low > yes[1] else UNDECIDED


def lacking(found: Estimate, yes: Range) -> str:
    """What would decide an undecided case, if its mean and its spread over seeds stay as they are."""
    less, more = found.value - found.low, found.high - found.value  # of a bound one is infinite, and stays so
    if found.seeds > 1 and math.isfinite(min(less, more)):
        for count in range(found.seeds + 1, MOST + 1):
            part = interval(0.0, 1.0, count)[1] / interval(0.0, 1.0, found.seeds)[1]
            then = replace(found, low=found.value - part * less, high=found.value + part * more)
            if decide(then, yes) is not UNDECIDED:
                return f"{count} seeds in place of {found.seeds}"
    if EDGE in found.note:
        return "learning rates beyond the edge of the grid"
    return "longer training, in which all runs meet the target" if found.bound else f"more than {MOST} seeds"


def joined(answers: Iterable[Answer]) -> Answer:
    """One answer for several cases.

    It is theirs if all agree. Otherwise: right and wrong cases are mixed; right cases beside undecided ones are
    undecided in some cases; wrong cases beside undecided ones are wrong.
    """
    found = set(answers)
    if not found:
        raise NotMeasured("nothing to compare")
    if len(found) == 1:
        return found.pop()
    return SOME if NO not in found else MIXED if YES in found else NO


def judged(claim: Claim, experiment: str, table: pd.DataFrame, is_paper: bool, artifact: str) -> dict[str, Any]:
    """A claim with our numbers, and with the verdict if the settings are the paper's.

    Args:
        claim: what is judged.
        experiment: name of its experiment.
        table: table of that experiment, at the path `artifact`.
        is_paper: whether its settings are the paper's.
        artifact: path of the table.
    """
    one: Estimate | None = None
    cases: dict[str, Estimate] = {}
    answers: dict[str, Answer] = {}
    answer, lacks = NOT_COMPARABLE, ""
    try:
        found = claim.estimate(table)
        if isinstance(found, Estimate):
            one, answer = found, decide(found, claim.yes)
            ours = found.with_unit(claim.unit)
            lacks = lacking(found, claim.yes)
        else:
            cases = {_name(case): estimate for case, estimate in found.items() if estimate is not None}
            answers = {case: decide(estimate, claim.yes) for case, estimate in cases.items()}
            answer = joined(answers.values())
            ours = _listed(claim, cases, answers)
            unclear = [case for case, given in answers.items() if given is UNDECIDED]
            lacks = "; ".join(f"{case}: {lacking(cases[case], claim.yes)}" for case in unclear)
        verdict = verdict_words(NOT_COMPARABLE if claim.not_comparable else answer, claim.kind)
    except NotMeasured as error:
        ours, verdict = f"not measured ({error})", NOT_RUN
    return {
        "id": claim.id,
        "experiment": experiment,
        "kind": claim.kind,
        "claim": claim.text,
        "paper": claim.paper,
        "ours": ours,
        "estimate": "" if one is None else one.with_unit(claim.unit),
        "value": None if one is None else _finite(one.value),
        "interval": None if one is None else [_finite(one.low), _finite(one.high)],
        "unit": claim.unit,
        "cases": {case: estimate.words for case, estimate in cases.items()},
        "numbers": {case: [_finite(v) for v in (e.value, e.low, e.high)] for case, e in cases.items()},
        "answers": {case: answer.value for case, answer in answers.items()},
        "lacking": lacks if answer in (UNDECIDED, SOME, MIXED) and not claim.not_comparable else "",
        "rule": claim.rule,
        "verdict": verdict if is_paper else NOT_RUN,
        "artifact": artifact,
    }


# ---- words


def _listed(claim: Claim, cases: Mapping[str, Estimate], answers: Mapping[str, Answer]) -> str:
    """The numbers of all cases, or of many the counts of their answers and both extremes."""
    unit = f"{claim.unit}, by {claim.cases}: " if claim.unit else ""
    if len(cases) <= MANY:
        return unit + "; ".join(f"{case}: {estimate.words}" for case, estimate in cases.items())
    given = list(answers.values())
    parts = ((YES, "right"), (NO, "wrong"), (UNDECIDED, "undecided"))
    counts = ", ".join(f"{word} in {given.count(answer)}" for answer, word in parts)
    ordered = sorted(cases, key=lambda case: cases[case].value)
    ends = "; ".join(f"{word} {c}: {cases[c].words}" for word, c in (("least", ordered[0]), ("most", ordered[-1])))
    return f"{counts} of {len(given)} cases; {unit}{ends}"


def _name(case: Any) -> str:
    return f"{case:g}" if isinstance(case, float | int) else str(case)


def markdown(claims: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Claims as a Markdown table."""
    heads = {"ours": "ours (95% interval)", "paper": "in the paper"}
    lines = ["| " + " | ".join(heads.get(column, column) for column in columns) + " |", "| --- " * len(columns) + "|"]
    for claim in claims:
        texts = {**claim, "experiment": f"`{claim['experiment']}`"}
        lines.append("| " + " | ".join(texts[column].replace("|", "\\|") for column in columns) + " |")
    return "\n".join(lines) + "\n"


def counted(claims: Sequence[Mapping[str, Any]]) -> str:
    """Number of claims by verdict, separately for the paper's claims, our hypotheses and errata."""
    parts = []
    for kind, name in ((PAPER, "Claims of the paper"), (OURS, "hypotheses of ours"), (ERRATUM, "errata")):
        found = [claim["verdict"] for claim in claims if claim["kind"] == kind]
        order = (*(verdict_words(answer, kind) for answer in Answer), NOT_RUN)
        counts = ", ".join(f"{verdict} {found.count(verdict)}" for verdict in order if verdict in found)
        if found:
            parts.append(f"{name} ({len(found)}): {counts}")
    return "; ".join(parts) + "."


# ---- estimates


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% interval, of which a bound has one end: the lower one of >=, the upper one of <=.

    Every seed's bound is on the safe side of its true value, so the interval of their mean errs on the safe side too.
    """

    value: float  # of a bound, the mean of the bounds
    low: float
    high: float
    bound: str = ""  # AT_LEAST or AT_MOST where targets were missed
    digits: int | None = 2  # printed after the point; None: two significant digits
    note: str = ""  # a remark that is printed with it
    seeds: int = 0  # behind the interval; 0 if it is not over seeds

    @classmethod
    def of(cls, values: Iterable[float], bound: str = "", digits: int | None = 2, note: str = "") -> Estimate:
        """From one value per seed, by Student's t; a bound leaves the interval open on its other side."""
        found = [float(value) for value in values]
        mean = fmean(found)
        finite = len(found) > 1 and all(map(math.isfinite, found))
        low, high = interval(mean, stdev(found) if finite else math.nan, len(found) if finite else 1)
        if not math.isfinite(mean):
            low = high = mean  # all seeds of one side diverged, and none of the other
        low, high = -math.inf if bound == AT_MOST else low, math.inf if bound == AT_LEAST else high
        return cls(mean, low, high, bound, digits, note, len(found))

    def less(self, other: Estimate) -> Estimate:
        """The difference to an independent mean over seeds, by Welch's t."""
        parts = []
        for one in (self, other):
            error = (one.high - one.low) / 2 / interval(0.0, math.sqrt(one.seeds), one.seeds)[1]
            parts.append((error**2, one.seeds - 1))
        variance = sum(error for error, _ in parts)
        degrees = variance**2 / sum(error**2 / count for error, count in parts)
        half, value = float(scipy.special.stdtrit(degrees, 0.975)) * math.sqrt(variance), self.value - other.value
        return replace(self, value=value, low=value - half, high=value + half)

    @classmethod
    def exact(cls, value: float, digits: int | None = 2, bound: str = "") -> Estimate:
        """A number without chance, such as a count."""
        low, high = -math.inf if bound == AT_MOST else value, math.inf if bound == AT_LEAST else value
        return cls(float(value), low, high, bound, digits)

    @classmethod
    def geometric(cls, logs: Iterable[float]) -> Estimate:
        """Geometric mean with its interval, from one logarithm per seed."""
        found = cls.of(logs)
        return cls(math.exp(found.value), math.exp(found.low), math.exp(found.high))

    @property
    def words(self) -> str:
        """Value, interval and remark, such as "1.78 [1.74, 1.83]", or ">= 1.22 [>= 1.04]" of a bound."""
        return self.with_unit("")

    def with_unit(self, unit: str) -> str:
        """The same with a unit; one seed, and a number without chance, have no interval."""
        ends = [f"{self.bound}{self._text(end)}" for end in (self.low, self.high) if math.isfinite(end)]
        complete = len(ends) == (1 if self.bound else 2) and {self.low, self.high} - {self.value, math.inf, -math.inf}
        parts = [str(self), f"[{', '.join(ends)}]" * bool(complete), unit, f"({self.note})" * bool(self.note)]
        return " ".join(part for part in parts if part)

    def _text(self, value: float) -> str:
        return f"{value:.2g}" if self.digits is None else f"{value:.{self.digits}f}"

    def __str__(self) -> str:
        return f"{self.bound}{self._text(self.value)}"


Estimates = dict[Any, Estimate | None]  # None where there is nothing to compare


def interval(mean: float, deviation: float, count: int) -> Range:
    """95% interval of a mean over `count` seeds, by Student's t; one seed bounds nothing."""
    if count < 2:
        return -math.inf, math.inf
    half = float(scipy.special.stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    return mean - half, mean + half


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# ---- rows of a table


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


def runs(table: pd.DataFrame, kind: str | None = None, **where: object) -> pd.DataFrame:
    """The runs with these values, one row per seed; NotMeasured if there are none.

    `kind` is "hidden_layers" for MLPs alone, "compression" for autoencoders alone.
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
    for value, part in rows.groupby(column):
        yield float(value), part  # type: ignore[arg-type]


def paired(rows: pd.DataFrame, value: str, first: str, second: str) -> pd.Series:
    """A value of the first method less that of the second, by seed; NotMeasured if no seed has both."""
    wide = [of(rows, method).set_index("seed")[value] for method in (first, second)]
    difference = (wide[0] - wide[1]).dropna()
    if difference.empty:
        raise NotMeasured(f"no seed with {value} of {first} and {second}")
    return difference


def bounds_by_seed(slow: pd.DataFrame, fast: pd.DataFrame) -> tuple[pd.Series, str, str] | None:
    """Epochs of some runs over those of others by seed, whether they are bounds, and a remark; None without a pair.

    The epochs are those to the target. If both sides miss it with some seed, they are those to the accuracy with which
    the baseline of that seed ended (column `reached_end`).
    """
    pairs = slow.merge(fast, on="seed", suffixes=("", "_fast")).set_index("seed")
    if pairs.empty:
        return None
    column, note = "reached", ""
    if pairs["reached"].isna().any() and pairs["reached_fast"].isna().any():
        column, note = "reached_end", END
    missed, missed_fast = pairs[column].isna(), pairs[f"{column}_fast"].isna()
    if missed.any() and missed_fast.any():
        return None  # also the baseline's end is missed on both sides: runs that diverged
    # The start itself may meet a low target; it then counts as one epoch, so that ratios stay finite.
    above = pairs[column].fillna(pairs["epochs"]).clip(lower=1.0)
    below = pairs[f"{column}_fast"].fillna(pairs["epochs_fast"]).clip(lower=1.0)
    return above / below, AT_LEAST if missed.any() else AT_MOST if missed_fast.any() else "", note


def epochs_ratio(rows: pd.DataFrame, fast: str = PATHCOND, slow: str = BASELINE) -> Estimate | None:
    """Epochs of one method over those of another, at one network and rate, paired by seed; None without a pair."""
    found = bounds_by_seed(of(rows, slow), of(rows, fast))
    return None if found is None else Estimate.of(found[0], found[1], note=found[2])


def epochs_ratios(rows: pd.DataFrame, column: str, fast: str = PATHCOND, slow: str = BASELINE) -> Estimates:
    """Ratios of epochs of two methods by the values of a column."""
    return {value: epochs_ratio(part, fast, slow) for value, part in by(rows, column)}


def loss_ratio(rows: pd.DataFrame, low: str = PATHCOND, high: str = BASELINE) -> Estimate | None:
    """Final train loss of one method over that of another, paired by seed; a run that diverged has an infinite one.

    It is None if there is no pair, or if both sides of one diverged.
    """
    columns = ["seed", "final_train_loss"]
    pairs = of(rows, high)[columns].merge(of(rows, low)[columns], on="seed", suffixes=("", "_low")).fillna(math.inf)
    values = pairs["final_train_loss"] / pairs["final_train_loss_low"]
    return None if pairs.empty or values.isna().any() else Estimate.of(values, digits=3)


def accuracy_gain(
    rows: pd.DataFrame, first: str = PATHCOND, second: str = BASELINE, value: str = "best_test_accuracy"
) -> Estimate:
    """Points by which the first method's accuracy is higher, paired by seed."""
    return Estimate.of(100 * paired(rows, value, first, second))


def noted(estimate: Estimate, note: str) -> Estimate:
    """An estimate with another remark."""
    return replace(estimate, note=note)


# ---- rank correlations and trends


def rank(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN if either is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(scipy.stats.spearmanr(first, second).statistic)


def correlation(values: Sequence[float]) -> Estimate:
    """Mean over seeds of rank correlations, with an interval that ends at -1 and 1; NotMeasured without any."""
    kept = [value for value in values if not math.isnan(value)]
    if not kept:
        raise NotMeasured("constant values have no rank correlation")
    found = Estimate.of(kept)
    return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))


def rank_estimate(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Spearman's rank correlation with a bootstrap interval (percentiles) over the pairs."""
    value = rank(first, second)
    if math.isnan(value):
        raise NotMeasured("constant values have no rank correlation")
    pairs = np.asarray([first, second], dtype=float)
    draws = np.random.default_rng(0).integers(0, pairs.shape[1], size=(999, pairs.shape[1]))
    ranks = scipy.stats.rankdata(pairs[:, draws], axis=-1)
    ranks -= ranks.mean(axis=-1, keepdims=True)
    scale = np.sqrt((ranks**2).sum(axis=-1).prod(axis=0))
    found = np.where(scale > 0, (ranks[0] * ranks[1]).sum(axis=-1) / np.where(scale > 0, scale, 1.0), value)
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value, min(float(low), value), max(float(high), value))


def steps(values: pd.DataFrame) -> Estimates:
    """How much values grow from each column to the next, by seed (rows); NotMeasured if there is one column."""
    names = sorted(values)
    if len(names) < 2:
        raise NotMeasured("one value shows no trend")
    pairs = zip(names, names[1:], strict=False)
    return {f"{a:g} to {b:g}": Estimate.of((values[b] - values[a]).dropna(), digits=3) for a, b in pairs}


def head_start(table: pd.DataFrame, value: str, level: float | None = None) -> Estimate:
    """How many epochs earlier PathCond's curves get to a level than the baseline's, paired by seed.

    The table has the curves of seeds of one network and learning rate. Without a level, it is the value at which the
    baseline's curve of that seed ends. A seed with which the baseline never gets there does not count; where PathCond
    never does, it counts as one epoch after the last, and the mean is an upper bound. NotMeasured if nothing is left.
    """
    rows = some(table, panel="seed")
    curves = {m: some(rows, method=m).pivot(index="epoch", columns="seed", values=value) for m in (BASELINE, PATHCOND)}
    sign = -1.0 if value.endswith("loss") else 1.0
    found, bound = [], ""
    for seed in sorted(set(curves[BASELINE]) & set(curves[PATHCOND])):
        base, ours = (sign * curves[method][seed].dropna().sort_index() for method in (BASELINE, PATHCOND))
        if base.empty or ours.empty:
            raise NotMeasured("a run diverged, or this was not recorded")
        target = base.iloc[-1] if level is None else sign * level
        first, own = (curve.index[curve >= target].min() for curve in (base, ours))
        if math.isnan(first):
            continue
        if math.isnan(own):
            own, bound = int(base.index.max()) + 1, AT_MOST
        found.append(float(first - own))
    if not found:
        raise NotMeasured("the baseline never gets there")
    return Estimate.of(found, bound, digits=1, note=f"{len(found)} seed{'s' * (len(found) > 1)}")
