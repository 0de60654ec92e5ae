"""Claims, what the runs show about them, and the verdict; with the statistics that decide it.

One rule decides every claim about runs. Its statistic is a mean over seeds with a 95% interval; where methods are
compared, it is a mean of differences or ratios paired by seed. The claim's levels (:data:`LEVELS`, all of them ours)
give the range of values for yes and the range for partly. The answer is yes, partly or no if the whole interval lies in
its range, and "undecided" otherwise. A claim about several cases joins their answers (:func:`over_cases`).

A run that misses its target is censored: it counts with the epochs it had, which bounds a ratio from one side. The mean
of such ratios is a bound too, and its interval has one end, the cautious one: ">= 1.22 [>= 1.04]" says that the mean of
the bounds is 1.22, and that with the spread over seeds the ratio is still at least 1.04. That end decides; on the other
side the interval is open. Where bounds point both ways, the ratio itself is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any, TypeVar

from paper.lazy import np, pd, scipy


class Answer(StrEnum):
    """What the runs show about a claim; :data:`WORDS` has the verdict in words."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"


YES, PARTLY, NO, UNDECIDED, NOT_COMPARABLE = Answer
PAPER, OURS, ERRATUM = "paper", "ours", "erratum"
WORDS = {
    PAPER: {YES: "reproduced", PARTLY: "partly", NO: "not reproduced"},
    OURS: {YES: "holds", PARTLY: "holds partly", NO: "does not hold"},
    ERRATUM: {YES: "confirmed", PARTLY: "confirmed partly", NO: "not confirmed"},
}
NOT_RUN = "not judged at this preset"
COLUMNS = ("claim", "paper", "ours", "estimate", "verdict", "experiment")

T = TypeVar("T")
LR = 1e-3  # of the paper's main figures
AT_LEAST, AT_MOST = ">= ", "<= "
LEAST = 3  # pairs of a rank correlation over networks


# ---- levels


@dataclass(frozen=True)
class Levels:
    """Smallest and largest value of a claim's statistic for yes, and for partly (None if there is no such range)."""

    yes: tuple[float, float]
    partly: tuple[float, float] | None = None

    def words(self, kind: str) -> str:
        """The levels in words, such as "at least 1.35: reproduced; at least 1.1: partly"."""
        parts = [f"{_range(self.yes)}: {WORDS[kind][YES]}"]
        if self.partly is not None:
            parts.append(f"{_range(self.partly)}: {WORDS[kind][PARTLY]}")
        return "; ".join(parts)


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    if math.isinf(high):
        return f"above {low:g}" if low in (0.0, 1.0) else f"at least {low:g}"
    if math.isinf(low):
        return f"below {high:g}" if high in (0.0, 1.0) else f"at most {high:g}"
    return f"{low:g} to {high:g}"


def at_least(yes: float, partly: float | None = None) -> Levels:
    """Levels without an upper end."""
    return Levels((yes, math.inf), None if partly is None else (partly, math.inf))


def at_most(yes: float, partly: float | None = None) -> Levels:
    """Levels without a lower end."""
    return Levels((-math.inf, yes), None if partly is None else (-math.inf, partly))


# Every threshold that decides a claim. The paper states none: all of them are ours.
LEVELS = {
    # Ratios of epochs or of losses, baseline over PathCond unless the claim says otherwise.
    "mlp_speedup": at_least(1.35, 1.1),  # the paper's 1.5, less 10%
    "mlp_speedup_earliest": Levels((1.35, 1.65), (1.1, math.inf)),  # the paper's 1.5, more or less 10%
    "mlp_deeper": at_least(1.0),
    "mlp_parameters": at_least(0.95, 0.83),
    "mlp_enorm": at_most(1.05),
    "mlp_lrs_never_hurts": at_least(0.97),
    "mlp_lrs_never": at_least(0.97),
    "mlp_lrs_large": at_most(1.1),
    "mlp_gelu_speedup": at_least(1.05),
    "autoencoder_loss": at_least(1.001),
    "autoencoder_lrs_loss": at_least(1.001),
    "optimisers_speed": at_least(1.05),
    "controls_exact": at_most(1.05),
    "controls_optimum": Levels((0.95, 1.05)),
    "controls_layer_lrs": Levels((0.95, 1.05)),
    "controls_no_batchnorm": at_least(1.05),
    "controls_no_batchnorm_layer_lrs": Levels((0.95, 1.05)),
    "controls_silu": at_least(1.05),
    "tuned_epochs": at_least(1.0),
    "tuned_enorm": at_least(1.0),
    "tuned_autoencoders": at_least(1.0),
    # Ratios of condition numbers, before over after: what is smaller by less than a tenth is not smaller.
    "conditioning_path": at_least(1.1),
    "conditioning_ntk": at_least(1.1),
    "conditioning_ntk_batch": at_least(1.1),
    "conditioning_step": at_least(1.0),
    # Differences of accuracy in points, of epochs, of losses.
    "mlp_strongest_at_3": at_least(0.0),
    "mlp_generalisation": at_least(-0.5),
    "cifar_earlier": Levels((10.0, 30.0), (0.0, math.inf)),
    "cifar_best_test": Levels((-1.5, 1.5)),
    "cifar_best_test_gain": at_least(1.0),
    "cifar_all_precision": Levels((-1.5, 1.5)),
    "cifar_generalisation": at_least(-0.5, -1.5),
    "cifar_enorm": Levels((-0.5, 0.5), (-1.5, 1.5)),
    "cifar_lrs_small": at_least(0.0),
    "tuned_accuracy": at_least(-0.5),
    "tuned_cifar_nv": at_least(0.5),
    "tuned_range": at_least(0.1),  # decades of learning rates
    "practice_no_harm": at_least(-0.5),
    "practice_full": at_least(-0.5),
    "practice_gain": at_least(0.5, 0.0),
    "practice_range": at_least(0.5),  # doublings of the learning rate
    "practice_teleport": at_least(0.5, 0.0),
    "quantisation_int8": at_most(0.5),
    "quantisation_paths": at_least(0.5),
    "quantisation_norms": at_least(0.5),
    "quantisation_ranges": at_least(0.5),
    "quantisation_best": at_least(0.0),
    "optimisers_accuracy": at_least(0.5),
    "optimisers_again": at_least(0.5),
    "autoencoder_compression": at_least(0.0),
    "autoencoder_rescaling": at_least(0.0),
    "autoencoder_lrs_rescaling": at_least(0.0),
    # Rank correlations.
    "mlp_deep_rescaling": at_most(-0.7, 0.0),
    "mlp_lrs_shrinks": at_most(-0.7, 0.0),
    "regimes_irregular_widths": at_most(-0.8),
    "conditioning_predicts": at_least(0.7, 0.0),
    "conditioning_scales": at_least(0.7, 0.0),
    "causes_scales": at_least(0.7, 0.0),
    "causes_updates": at_least(0.7, 0.0),
    "causes_uneven": at_most(-0.7, 0.0),
    "causes_ntk": at_least(0.7, 0.0),
    # Shares.
    "controls_rows": at_least(0.8, 0.5),
    "cifar_lrs_shrinks": at_most(0.05),
    "regimes_small_variance": at_least(1.0),
    "timing_one_epoch": at_most(1.1),
    "timing_linear": at_least(0.9, 0.7),
    "bcd_mlp_five": Levels((0.85, 0.95), (0.8, 1.0)),
    "bcd_conv_ten": Levels((0.15, 0.35)),
    "bcd_conv_ten_remaining": Levels((0.15, 0.35)),
    "bcd_printed_scale": at_least(1.0),
    "bcd_conv_needed": Levels((20.0, 35.0)),
    "bcd_mlp_update": at_most(0.01, 0.03),
    "bcd_conv_update": Levels((0.03, 0.3)),
    "bcd_converged_in_ten": at_most(0.1),
}
TOLERATED = 0.1  # share of cases that may answer no where a claim says "everywhere": at most so many is partly


# ---- claims


@dataclass(frozen=True)
class Finding:
    """What the runs show about a claim."""

    ours: str  # our value in words, as printed
    answer: Answer
    estimate: Estimate | None = None  # the number that decides, if there is one
    unit: str = ""  # what that number is, with its unit
    cases: Mapping[Any, Estimate | None] = field(default_factory=dict)  # the numbers of several cases, by their name


Judge = Callable[["pd.DataFrame"], Finding]


class NotMeasured(Exception):
    """The table lacks what a claim is about, because the settings leave it out."""


@dataclass(frozen=True)
class Claim:
    """A statement that is decided by runs."""

    id: str  # unique
    text: str  # in our words
    paper: str  # the paper's value
    rule: str  # the statistic that is judged, in words
    judge: Judge
    kind: str = PAPER  # OURS for a hypothesis of ours, ERRATUM for an error in a printed formula
    cases: str = ""  # name of the cases that it is about, such as "depth"; empty if it is one statement

    @classmethod
    def ours(cls, id: str, text: str, rule: str, judge: Judge, paper: str = "not studied", cases: str = "") -> Claim:
        """A hypothesis of ours; `paper` is what the paper says about it."""
        return cls(id, text, paper, rule, judge, OURS, cases)

    @property
    def full_rule(self) -> str:
        """The statistic, its levels, and how cases are joined."""
        parts = [self.rule]
        if self.id in LEVELS:
            parts.append(LEVELS[self.id].words(self.kind))
        if self.cases:
            yes, partly = WORDS[self.kind][YES], WORDS[self.kind][PARTLY]
            parts.append(f"{yes} if so for every {self.cases}, {partly} if for some")
        return "; ".join(parts)


def judged(
    claim: Claim,
    experiment: str,
    table: pd.DataFrame,
    is_paper: bool,
    artifact: str,
    missing: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A claim with our value, the missing runs that would change it, and the verdict, if the settings are the paper's.

    Args:
        claim: what is judged.
        experiment: name of its experiment.
        table: table of that experiment, at the path `artifact`.
        is_paper: whether its settings are the paper's.
        artifact: path of the table.
        missing: network, method and lr of the runs that the table lacks.
    """
    finding, measured = _found(claim, table)
    verdict = WORDS[claim.kind].get(finding.answer, finding.answer.value) if is_paper and measured else NOT_RUN
    without = [run for run in missing if _found(claim, _with(table, run))[0].ours != finding.ours]
    estimate = finding.estimate
    return {
        "id": claim.id,
        "experiment": experiment,
        "kind": claim.kind,
        "claim": claim.text,
        "paper": claim.paper,
        "ours": f"without {in_words(without)}: {finding.ours}" if without else finding.ours,
        "value": None if estimate is None else _finite(estimate.value),
        "interval": None if estimate is None else [_finite(end) for end in estimate.interval],
        "estimate": "" if estimate is None else f"{estimate.words} {finding.unit}".rstrip(),
        "cases": {_name(case): found.words for case, found in finding.cases.items() if found is not None},
        "rule": claim.full_rule,
        "verdict": verdict,
        "artifact": artifact,
    }


def _found(claim: Claim, table: pd.DataFrame) -> tuple[Finding, bool]:
    """What a table shows about a claim, and whether it was measured."""
    try:
        return claim.judge(table), True
    except NotMeasured as error:
        return Finding(f"not measured ({error})", UNDECIDED), False


def _with(table: pd.DataFrame, run: Mapping[str, Any]) -> pd.DataFrame:
    """The table with runs of another method, or else at another rate, in place of missing ones.

    A claim that reads the missing runs then finds something else; the values themselves are never printed.
    """
    rows = table[table["network"] == run["network"]]
    rows = rows[rows["lr"] == run["lr"]] if (rows["lr"] == run["lr"]).any() else rows
    first = rows.drop_duplicates(["method", "lr"]).head(1)
    stand_in = rows.merge(first[["method", "lr"]]).assign(method=run["method"], lr=run["lr"])
    return pd.concat([table, stand_in], ignore_index=True)


def in_words(missing: Sequence[Mapping[str, Any]]) -> str:
    """Missing runs in words, such as "enorm at lr 0.0001"."""
    return ", ".join(f"{run['method']} at lr {run['lr']:g}" for run in missing)


def _name(case: Any) -> str:
    return f"{case:g}" if isinstance(case, float | int) else str(case)


def markdown(claims: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Claims as a Markdown table."""
    heads = {"estimate": "estimate (95% interval)", "paper": "in the paper"}
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
        order = (*WORDS[kind].values(), UNDECIDED, NOT_COMPARABLE, NOT_RUN)
        counts = ", ".join(f"{verdict} {found.count(verdict)}" for verdict in order if verdict in found)
        if found:
            parts.append(f"{name} ({len(found)}): {counts}")
    return "; ".join(parts) + "."


# ---- deciding


def decide(estimate: Estimate, levels: Levels | str) -> Answer:
    """Yes or partly if the whole interval lies there, no if none of it does, else undecided.

    `levels` may be the id of a claim, which stands for its entry in :data:`LEVELS`.
    """
    levels = LEVELS[levels] if isinstance(levels, str) else levels
    low, high = estimate.interval
    partly = levels.partly or levels.yes
    if levels.yes[0] <= low and high <= levels.yes[1]:
        return YES
    if partly[0] <= low and high <= partly[1]:
        return PARTLY
    return NO if high < partly[0] or low > partly[1] else UNDECIDED


def over_cases(answers: Iterable[Answer]) -> Answer:
    """One answer for several cases: theirs if all agree; partly if some are yes or partly; else undecided."""
    found = list(answers)
    if not found:
        raise NotMeasured("nothing to compare")
    if len(set(found)) == 1:
        return found[0]
    return PARTLY if {YES, PARTLY} & set(found) else UNDECIDED


def worst(answers: Iterable[Answer]) -> Answer:
    """One answer for conditions that must all hold: no if one does not, undecided if one is, else yes."""
    found = list(answers)
    return NO if NO in found else UNDECIDED if UNDECIDED in found else YES


def never(answers: Iterable[Answer], tolerated: float = 0.0) -> Answer:
    """One answer for a claim without exceptions: partly if at most a share `tolerated` of the cases answers no."""
    found = list(answers)
    if not found:
        raise NotMeasured("nothing to compare")
    exceptions = found.count(NO) / len(found)
    if exceptions > tolerated:
        return NO
    if exceptions:
        return PARTLY
    return UNDECIDED if UNDECIDED in found else YES


def of_all(true: Iterable[bool]) -> Answer:
    """For cases without randomness: yes if all are true, partly if some are, no if none is."""
    return over_cases(YES if case else NO for case in true)


def agreed(claim: str, found: Mapping[Any, Estimate | None]) -> Answer:
    """One answer for the cases of a claim, each decided by its estimate; open ones are left out."""
    return over_cases(decide(estimate, claim) for estimate in known(found).values())


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
    digits: int = 2  # printed after the point

    @classmethod
    def of(cls, values: Iterable[float], bound: str = "", digits: int = 2) -> Estimate:
        """From one value per seed, by Student's t; a bound leaves the interval open on its other side."""
        found = [float(value) for value in values]
        mean = fmean(found)
        finite = len(found) > 1 and all(map(math.isfinite, found))
        low, high = interval(mean, stdev(found) if finite else math.nan, len(found) if finite else 1)
        if not math.isfinite(mean):
            low = high = mean  # all seeds of one side diverged, and none of the other
        return cls(mean, -math.inf if bound == AT_MOST else low, math.inf if bound == AT_LEAST else high, bound, digits)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high

    @property
    def words(self) -> str:
        """Value and interval, such as "1.78 [1.74, 1.83]", or ">= 1.22 [>= 1.04]" of a bound; one seed has none."""
        ends = [f"{self.bound}{end:.{self.digits}f}" for end in self.interval if math.isfinite(end)]
        complete = len(ends) == (1 if self.bound else 2)
        return f"{self} [{', '.join(ends)}]" if complete else str(self)

    def __str__(self) -> str:
        return f"{self.bound}{self.value:.{self.digits}f}"


Estimates = dict[float, Estimate | None]  # None where a ratio is open


def interval(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """95% interval of a mean over `count` seeds, by Student's t; one seed bounds nothing."""
    if count < 2:
        return -math.inf, math.inf
    half = float(scipy.special.stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    return mean - half, mean + half


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


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


def epochs_ratio(slow: pd.DataFrame, fast: pd.DataFrame) -> Estimate | None:
    """Epochs to the target of some runs over those of others, paired by seed.

    It is None if there is no pair, if a seed meets the target in neither, or if bounds point both ways.
    """
    found = epochs_ratios_by_seed(slow, fast)
    return None if found is None else Estimate.of(*found)


def epochs_ratios_by_seed(slow: pd.DataFrame, fast: pd.DataFrame) -> tuple[pd.Series, str] | None:
    """The ratios behind :func:`epochs_ratio` by seed, and whether they are bounds."""
    columns = ["seed", "reached", "epochs"]
    pairs = slow[columns].merge(fast[columns], on="seed", suffixes=("", "_fast")).set_index("seed")
    missed, missed_fast = pairs["reached"].isna(), pairs["reached_fast"].isna()
    if pairs.empty or (missed.any() and missed_fast.any()):
        return None
    # The start itself may meet a low target; it then counts as one epoch, so that ratios stay finite.
    above = pairs["reached"].fillna(pairs["epochs"]).clip(lower=1.0)
    below = pairs["reached_fast"].fillna(pairs["epochs_fast"]).clip(lower=1.0)
    return above / below, AT_LEAST if missed.any() else AT_MOST if missed_fast.any() else ""


def loss_ratio(high: pd.DataFrame, low: pd.DataFrame) -> Estimate | None:
    """Final train loss of some runs over that of others, paired by seed; a run that diverged has an infinite one.

    It is None if there is no pair, or if both sides of one diverged.
    """
    columns = ["seed", "final_train_loss"]
    pairs = high[columns].merge(low[columns], on="seed", suffixes=("", "_low")).fillna(math.inf)
    values = pairs["final_train_loss"] / pairs["final_train_loss_low"]
    return None if pairs.empty or values.isna().any() else Estimate.of(values, digits=3)


def ratios(rows: pd.DataFrame, column: str, fast: str = "pathcond", slow: str = "baseline") -> Estimates:
    """Ratios of epochs of two methods by the values of a column."""
    return {value: epochs_ratio(of(part, slow), of(part, fast)) for value, part in by(rows, column)}


def loss_ratios(rows: pd.DataFrame, column: str, low: str = "pathcond", high: str = "baseline") -> Estimates:
    """Ratios of final losses of two methods by the values of a column."""
    return {value: loss_ratio(of(part, high), of(part, low)) for value, part in by(rows, column)}


def known(found: Mapping[T, Estimate | None], least: int = 1) -> dict[T, Estimate]:
    """The estimates that are not open; NotMeasured if there are fewer than `least`."""
    kept = {key: value for key, value in found.items() if value is not None}
    if len(kept) < least:
        raise NotMeasured(f"{len(kept)} of {len(found)} values known, {least} needed: targets missed or runs left out")
    return kept


def listed(found: Mapping[float, Estimate | None], name: str, intervals: bool = False) -> str:
    """Estimates in words, such as "hidden layers 2: >= 1.54, 3: 1.72, 4: open"."""
    texts = ("open" if value is None else value.words if intervals else str(value) for value in found.values())
    return f"{name} " + ", ".join(f"{key:g}: {text}" for key, text in zip(found, texts, strict=True))


def rank(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN if either is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(scipy.stats.spearmanr(first, second).statistic)


def correlation(values: Sequence[float]) -> Estimate:
    """Mean over seeds of rank correlations, with an interval that ends at -1 and 1."""
    found = Estimate.of(values)
    return Estimate(found.value, max(-1.0, found.low), min(1.0, found.high))


def rank_estimate(first: Sequence[float], second: Sequence[float], what: str = "") -> Estimate:
    """Spearman's rank correlation with a bootstrap interval (percentiles) over the pairs.

    `what` names the pairs if they are few, so that at least `LEAST` are needed.
    """
    if what and len(first) < LEAST:
        raise NotMeasured(f"{what}: {len(first)}; {LEAST} needed for a rank correlation")
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


def steps(values: pd.DataFrame) -> list[Estimate]:
    """How much values grow from each column to the next, by seed (rows); NotMeasured if there is one column."""
    if values.shape[1] < 2:
        raise NotMeasured("one value shows no trend")
    columns = [values[name] for name in sorted(values)]
    pairs = zip(columns, columns[1:], strict=False)
    return [Estimate.of((after - before).dropna(), digits=3) for before, after in pairs]


def accuracy_gain(rows: pd.DataFrame, first: str, second: str, value: str = "best_test_accuracy") -> Estimate:
    """Points by which the first method's accuracy is higher, paired by seed."""
    return Estimate.of(100 * paired(rows, value, first, second))


def head_starts(table: pd.DataFrame, value: str = "test_accuracy", level: float | None = None) -> pd.DataFrame:
    """How many epochs earlier each of PathCond's seeds gets to a level of accuracy than the baseline's.

    The table has the curves of seeds of one network and learning rate. Without a level, it is the accuracy at which the
    baseline's curve of that seed ends. Columns: early (epochs between the first times that both reach the level; NaN if
    the baseline never does; an upper bound if PathCond never does, which then counts as one epoch after the last),
    reached (whether PathCond reaches it), and epochs of the run. NotMeasured if a method was left out or diverged.
    """
    rows = some(table, panel="seed")
    curves = {m: some(rows, method=m).pivot(index="epoch", columns="seed", values=value) for m in METHODS}
    found = []
    for seed in sorted(set(curves["baseline"]) & set(curves["pathcond"])):
        base, ours = (curves[method][seed].dropna().sort_index() for method in METHODS)
        if base.empty or ours.empty:
            raise NotMeasured("a run diverged")
        target = base.iloc[-1] if level is None else level
        last = int(base.index.max())
        first, own = (curve.index[curve >= target].min() for curve in (base, ours))
        early = first - (last + 1 if math.isnan(own) else own)
        found.append({"seed": seed, "early": float(early), "reached": not math.isnan(own), "epochs": last})
    if not found:
        raise NotMeasured("no seed of both methods")
    return pd.DataFrame(found).set_index("seed")


METHODS = ("baseline", "pathcond")
