"""Claims: how an interval decides, how cases are joined, each estimator by hand, all claims as recorded."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paper import verdicts
from paper.experiments import EXPERIMENTS
from paper.verdicts import NOT_RUN, Claim, Estimate, NotMeasured, above, at_least, at_most, below, judged
from tests.paper.experiments.tables import ROOT

NEVER = math.nan
YES, MIXED, SOME, NO, UNDECIDED, _ = verdicts.Answer
AT_LEAST, AT_MOST, END = verdicts.AT_LEAST, verdicts.AT_MOST, verdicts.END
# They read the curves of single seeds, which the short tables leave out.
BY_EPOCH = {"cifar_train_faster", "cifar_earlier", "cifar_lrs_shrinks", "cifar_lrs_small"}


# ---- deciding


def test_an_interval_decides():
    ends = [(1.35, 1.5), (1.3, 1.5), (0.9, 1.34), (-math.inf, math.inf), (1.4, math.inf), (-math.inf, 1.2)]
    answers = [YES, UNDECIDED, NO, UNDECIDED, YES, NO]
    assert [verdicts.decide(Estimate(1.4, *pair), at_least(1.35)) for pair in ends] == answers
    pairs = ((1, 2), (0, 0.9), (2.1, 3), (1.5, 2.5))
    assert [verdicts.decide(Estimate(1.0, *pair), (1.0, 2.0)) for pair in pairs] == [YES, NO, NO, UNDECIDED]
    ranges = at_most(0.0), below(0.0), at_least(0.0), above(0.0)
    assert [verdicts.decide(Estimate.exact(0.0), yes) for yes in ranges] == [YES, NO, YES, NO]


def test_what_is_lacking_would_decide():
    few = Estimate(1.0, *verdicts.interval(1.0, 1.0, 3), seeds=3)
    seeds = int(verdicts.lacking(few, above(0.0)).split()[0])
    ends = [verdicts.interval(1.0, 1.0, count)[0] for count in (seeds - 1, seeds)]
    assert ends[0] <= 0 < ends[1]
    bound = Estimate.of([0.5, 0.7, 0.9], AT_MOST)
    assert "longer training" in verdicts.lacking(bound, above(0.0))
    assert "edge" in verdicts.lacking(verdicts.noted(bound, verdicts.EDGE), above(0.0))


def test_cases_are_joined():
    assert [verdicts.joined([answer] * 2) for answer in (YES, NO, UNDECIDED)] == [YES, NO, UNDECIDED]
    for answers, joined in (([YES, UNDECIDED], SOME), ([YES, NO, UNDECIDED], MIXED), ([NO, UNDECIDED], NO)):
        assert verdicts.joined(answers) == joined


def claim(found, yes=None, **more):
    return Claim("id", "text", "paper", "quantity", lambda table: found, yes or at_least(1.0), **more)


def test_a_claim_is_judged_and_put_into_words():
    found = judged(claim(Estimate(1.78, 1.74, 1.83), unit="times"), "e", pd.DataFrame(), True, "t.csv")
    assert (found["verdict"], found["ours"]) == ("reproduced", "1.78 [1.74, 1.83] times")
    assert (found["value"], found["interval"]) == (1.78, [1.74, 1.83])
    assert found["rule"] == "quantity; at least 1: reproduced"
    cases = {2.0: Estimate(1.5, 1.2, math.inf, AT_LEAST), 3.0: None, "x": Estimate(0.5, 0.4, 0.6, note="lr 1")}
    found = judged(claim(cases, unit="times", cases="depth"), "e", pd.DataFrame(), True, "t.csv")
    assert found["verdict"] == "mixed"
    assert found["ours"] == "times, by depth: 2: >= 1.50 [>= 1.20]; x: 0.50 [0.40, 0.60] (lr 1)"
    assert found["answers"] == {"2": "yes", "x": "no"}
    assert Estimate.of([1.5], AT_LEAST).words == ">= 1.50"  # one seed shows no spread
    assert Estimate.of([1.5, 2.0], AT_MOST).words == "<= 1.75 [<= 4.93]"
    assert found["numbers"] == {"2": [1.5, 1.2, None], "x": [0.5, 0.4, 0.6]}
    assert found["rule"] == "quantity; at least 1 for every depth: reproduced"
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    small = judged(claim(cases), "e", pd.DataFrame(), False, "t.csv")
    assert small["verdict"] == NOT_RUN
    nothing = judged(claim({2.0: None}), "e", pd.DataFrame(), True, "t.csv")
    assert (nothing["verdict"], nothing["ours"]) == (NOT_RUN, "not measured (nothing to compare)")
    other = judged(claim(Estimate.exact(2.0), not_comparable="other solver"), "e", pd.DataFrame(), True, "t.csv")
    assert (other["verdict"], other["rule"]) == ("not comparable", "quantity; not judged: other solver")


# ---- estimators


def runs(method, reached, ends=None, **columns):
    """Runs of one network, by seed."""
    ends = reached if ends is None else ends
    seeds = range(len(reached))
    rows = {"method": method, "seed": seeds, "reached": reached, "reached_end": ends, "epochs": 90.0, "panel": "run"}
    return pd.DataFrame({**rows, **columns})


HALF = float(stats.t.ppf(0.975, 1)) * 0.25  # of two values half apart


@pytest.mark.parametrize(("slow", "fast", "value", "low", "high", "bound"), [
    ([60.0, 80.0], [40.0, 40.0], 1.75, 1.75 - HALF, 1.75 + HALF, ""),
    ([60.0], [40.0], 1.5, -math.inf, math.inf, ""),
    ([NEVER, 80.0], [40.0, 40.0], 2.125, 2.125 - HALF / 2, math.inf, AT_LEAST),
    ([45.0, 90.0], [NEVER, 90.0], 0.75, -math.inf, 0.75 + HALF, AT_MOST),
    ([60.0, 80.0, 90.0], [40.0], 1.5, -math.inf, math.inf, ""),  # seeds without a partner do not count
    ([0.0], [0.0], 1.0, -math.inf, math.inf, ""),  # the start itself
])  # fmt: skip
def test_ratio_of_epochs(slow, fast, value, low, high, bound):
    found = verdicts.epochs_ratio(pd.concat([runs("baseline", slow), runs("pathcond", fast)]))
    assert (found.bound, found.note) == (bound, "")
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))


def test_where_both_miss_the_target_they_are_compared_at_the_baseline_s_end():
    slow = runs("baseline", [NEVER, 80.0], [60.0, 80.0])
    found = verdicts.epochs_ratio(pd.concat([slow, runs("pathcond", [NEVER, 40.0], [40.0, 40.0])]))
    assert (found.value, found.note, found.bound) == (1.75, END, "")
    found = verdicts.epochs_ratio(pd.concat([slow, runs("pathcond", [NEVER, 40.0], [NEVER, 40.0])]))
    assert (found.bound, found.note) == (AT_MOST, END)
    assert found.value == pytest.approx((60 / 90 + 2) / 2)
    assert verdicts.epochs_ratio(slow) is None


@pytest.mark.parametrize(
    ("high", "low", "value"),
    [(2.0, 1.0, 2.0), (NEVER, 1.0, math.inf), (math.inf, 1.0, math.inf), (1.0, NEVER, 0.0), (NEVER, math.inf, None)],
)
def test_ratio_of_losses(high, low, value):
    rows = [runs(m, [1.0], final_train_loss=v) for m, v in (("baseline", high), ("pathcond", low))]
    found = verdicts.loss_ratio(pd.concat(rows))
    assert (found and found.value) == value


def test_intervals_are_student_s():
    assert verdicts.interval(2.0, 3.0, 1) == (-math.inf, math.inf)
    for count in (2, 3, 10, 100):
        values = [1.0 + k for k in range(count)]
        found = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (Estimate.of(values).low, Estimate.of(values).high) == pytest.approx((found.low, found.high))
    logs = np.log([1.0, 2.0, 4.0])
    found = Estimate.geometric(logs)
    assert found.value == pytest.approx(2.0)
    assert math.log(found.high) - math.log(2.0) == pytest.approx(math.log(2.0) - math.log(found.low))


def test_ranks_and_steps():
    assert verdicts.rank([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert math.isnan(verdicts.rank([1.0, 2.0], [1.0, 1.0]))
    assert (verdicts.correlation([1.0, 0.5, math.nan]).value, verdicts.correlation([1.0, 0.5]).high) == (0.75, 1.0)
    with pytest.raises(NotMeasured, match="constant values"):
        verdicts.correlation([math.nan])
    x = [float(k) for k in range(20)]
    found = verdicts.rank_estimate(x, [k + 6.0 * (k % 3) for k in x])
    assert found.value == pytest.approx(stats.spearmanr(x, [k + 6.0 * (k % 3) for k in x]).statistic)
    assert -1 <= found.low < found.value < found.high <= 1
    steps = verdicts.steps(pd.DataFrame({1.0: [1.0, 2.0], 3.0: [4.0, 5.0], 2.0: [2.0, 3.0]}))
    assert {name: step.value for name, step in steps.items()} == {"1 to 2": 1.0, "2 to 3": 2.0}


def curves(**by_method):
    rows = [
        {"panel": "seed", "method": method, "seed": seed, "epoch": epoch, "train_loss": 1 - value, "accuracy": value}
        for method, seeds in by_method.items()
        for seed, values in enumerate(seeds)
        for epoch, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_head_starts():
    table = curves(baseline=[[0, 0.2, 0.4, 0.6], [0, 0.1, 0.2, 0.3]], pathcond=[[0, 0.6, 0.7, 0.8], [0, 0.2, 0.4, 0.4]])
    found = verdicts.head_start(table, "accuracy")  # 3 - 1 and 3 - 2
    assert (found.value, found.bound, found.note) == (1.5, "", "2 seeds")
    assert verdicts.head_start(table, "train_loss").value == 1.5
    one = verdicts.head_start(table, "accuracy", 0.4)  # the second baseline never gets there
    assert (one.value, one.note) == (1.0, "1 seed")
    late = curves(baseline=[[0, 0.5, 0.5, 0.5]], pathcond=[[0, 0.1, 0.2, 0.3]])
    assert (verdicts.head_start(late, "accuracy").words) == "<= -3.0 (1 seed)"
    with pytest.raises(NotMeasured, match="never gets there"):
        verdicts.head_start(late, "accuracy", 0.9)


# ---- all claims


def recorded():
    return {claim["id"]: claim for claim in json.loads((ROOT / "docs/claims.json").read_text("utf-8"))}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_claims_against_the_recorded_ones(name):
    """From the tables beside the figures, which have six digits."""
    table, known = pd.read_csv(ROOT / f"docs/figures/{name}.csv"), recorded()
    for claim in EXPERIMENTS[name].claims:
        empty = judged(claim, name, table.iloc[:0], True, "t.csv")
        assert (empty["verdict"], empty["value"]) == (NOT_RUN, None), claim.id
        if claim.id in BY_EPOCH:
            continue
        found, expected = judged(claim, name, table, True, "t.csv"), known[claim.id]
        assert (found["verdict"], found["answers"]) == (expected["verdict"], expected["answers"]), claim.id
        if expected["value"] is not None:
            assert found["value"] == pytest.approx(expected["value"], rel=5e-3, abs=1e-4), claim.id
        assert found["numbers"].keys() == expected["numbers"].keys()
        for case, (value, *_) in expected["numbers"].items():
            assert found["numbers"][case][0] == pytest.approx(value, rel=5e-3, abs=1e-4), (claim.id, case)
