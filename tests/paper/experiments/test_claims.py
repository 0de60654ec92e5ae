"""Claims: every verdict each can give, none at small presets, none without data; their statistics; files."""

import json
import math
import re
import sys

import pandas as pd
import pytest
from scipy import stats

from paper import results, verdicts
from paper.experiments import EXPERIMENTS
from paper.experiments import __main__ as program
from paper.verdicts import (
    AT_LEAST,
    AT_MOST,
    ERRATUM,
    LEVELS,
    NO,
    NOT_COMPARABLE,
    NOT_RUN,
    PARTLY,
    UNDECIDED,
    WORDS,
    YES,
    Estimate,
    Levels,
    NotMeasured,
    at_least,
    judged,
)
from tests.paper.experiments import claim_cases as case
from tests.paper.experiments import trained_tables
from tests.paper.experiments.claim_cases import CASES as PAPERS
from tests.paper.experiments.claim_cases import NEVER
from tests.paper.experiments.practice_cases import CASES as PRACTISED
from tests.paper.experiments.quantisation_cases import CASES as QUANTISED

CASES = {**PAPERS, **PRACTISED, **QUANTISED}
CLAIMS = {claim.id: (name, claim) for name, found in EXPERIMENTS.items() for claim in found.claims}
# Claims that hold or do not, besides those whose levels have nothing between yes and no.
WITHOUT_PARTLY = {"relu_exact", "gelu_error_any_init", "constant_diagonal", "mlp_lrs_never", "regimes_printed_root"}
WITHOUT_PARTLY |= {claim for claim in CLAIMS if claim.startswith("theory_") and CLAIMS[claim][1].kind == ERRATUM}
WITHOUT_PARTLY |= {"table1_paths_exact"}
EXACT = {"mlp_speedup_earliest"}  # one number, without an interval


def judge(claim, table, preset="paper"):
    name, found = CLAIMS[claim]
    return judged(found, name, table, preset == "paper", "table.csv")


@pytest.mark.parametrize("claim", CASES)
def test_verdict(claim):
    for answer, table in CASES[claim]:
        found = judge(claim, table)
        assert found["verdict"] == WORDS[CLAIMS[claim][1].kind].get(answer, answer.value), answer
        assert found["ours"]
        assert json.loads(json.dumps(found, allow_nan=False)) == found
    small = judge(claim, table, "preview")
    assert small["verdict"] == NOT_RUN
    assert small | {"verdict": 0, "scale": 0} == found | {"verdict": 0, "scale": 0}
    nothing = judge(claim, table.iloc[:0])
    assert (nothing["verdict"], nothing["value"], nothing["interval"]) == (NOT_RUN, None, None)
    assert nothing["ours"].startswith("not measured (")


def test_every_claim_is_tried_with_every_verdict_it_can_give():
    assert set(LEVELS) - set(CLAIMS) == {"cifar_best_test_gain"}
    assert set(CASES) == set(CLAIMS)
    assert len(CLAIMS) == sum(len(found.claims) for found in EXPERIMENTS.values()), "ids are unique"
    for name, cases in CASES.items():
        claim, tried = CLAIMS[name][1], {answer for answer, _ in cases}
        assert name not in LEVELS or LEVELS[name].words(claim.kind) in claim.full_rule
        if tried == {NOT_COMPARABLE}:
            continue
        expected = {YES, NO}
        levels = LEVELS.get(name)
        if name not in WITHOUT_PARTLY and (claim.cases or levels is None or levels.partly):
            expected.add(PARTLY)
        if levels is not None and name not in EXACT:
            expected.add(UNDECIDED)
        assert tried >= expected, name


def test_kinds_of_claims_are_counted_apart():
    names = ("toy_faster", "toy_any_start", "criteria_any_norm", "timing_range")
    found = [judge(name, CASES[name][0][1]) for name in names]
    assert verdicts.counted(found) == (
        "Claims of the paper (2): reproduced 1, not comparable 1; hypotheses of ours (1): holds 1; "
        "errata (1): not confirmed 1."
    )


NO_SPEED = case.mlps(("baseline", 3, [NEVER, 50.0]), ("pathcond", 3, [NEVER, 40.0]))
OTHER_RATE = {3: {"baseline": {1e-2: 9.0}, "pathcond": {1e-2: 8.0}, "rows": {1e-2: 8.0}}}


LACKING = [
    ("toy_any_start", case.toy("reached_1e4", [(5, 4)])),
    ("bcd_conv_ten", case.bcd("normalised", 10, cifar_nv=0.7)),
    ("bcd_conv_needed", case.needed(cifar_nv=30)),
    ("regimes_irregular_widths", case.regimes({0.1: [3], 0.01: [4]})),
    ("mlp_speedup_earliest", case.speed({2: 1.5})),
    ("mlp_generalisation", case.mlps(("baseline", 3, 50.0))),
    ("gelu_error", case.smooth({("gelu", "default"): [0.1]})),
    ("gelu_near_identity", case.smooth({("gelu", "default"): [0.1, 0.2]})),
    ("timing_linear", CASES["timing_linear"][0][1].iloc[:4]),
    ("mlp_speedup", case.speed({3: 1.5}, lr=1e-2)),
    ("mlp_speedup", NO_SPEED),
    ("mlp_strongest_at_3", case.speed({2: 1.5, 4: 1.2})),
    ("mlp_deeper", case.speed({2: 1.2, 3: 1.5})),
    ("mlp_parameters", case.speed({2: 1.5, 3: 1.5})),
    ("mlp_parameters", case.mlps(("baseline", 8, NEVER), ("pathcond", 5, NEVER))),
    ("mlp_lrs_shrinks", case.speeds({3: {1e-3: 1.5}, 4: {1e-2: 1.5}})),
    ("mlp_deep_rescaling", case.rescaled({2: 1.0, 3: 2.0})),
    ("cifar_earlier", case.conv(lr=1e-2)),
    ("cifar_all_classes", case.conv(learnt=(0.98, 0.9))),
    ("cifar_lrs_shrinks", case.conv_lrs({1e-3: 5})),
    ("autoencoder_loss", case.coder({"baseline": {1: NEVER}, "pathcond": {1: NEVER}})),
    ("autoencoder_compression", case.loss({4: 1.2})),
    ("autoencoder_lrs_rescaling", case.scales({2: 0.1}, {2: 0.2})),
    ("controls_rows", case.parts(pathcond=80.0, rows=70.0)),
    ("controls_rows", case.parts(baseline=NEVER, rows=NEVER)),
    ("controls_rows", case.tuned(OTHER_RATE)),
]


def test_what_is_missing_is_not_judged():
    for claim, table in LACKING:
        found = judge(claim, table)
        assert (found["verdict"], found["ours"].startswith("not measured (")) == (NOT_RUN, True), claim


HALF = float(stats.t.ppf(0.975, 1)) * 0.25  # of two values half apart


@pytest.mark.parametrize(
    ("slow", "fast", "value", "low", "high", "bound"),
    [
        ([60.0, 80.0], [40.0, 40.0], 1.75, 1.75 - HALF, 1.75 + HALF, ""),
        ([60.0], [40.0], 1.5, -math.inf, math.inf, ""),
        ([NEVER, 80.0], [40.0, 40.0], 2.25, 2.25 - HALF, math.inf, AT_LEAST),
        ([50.0, 80.0], [NEVER, 80.0], 0.75, -math.inf, 0.75 + HALF, AT_MOST),
        ([60.0, 80.0, 90.0], [40.0], 1.5, -math.inf, math.inf, ""),  # seeds without a partner do not count
        ([0.0], [0.0], 1.0, -math.inf, math.inf, ""),
        ([NEVER, 80.0], [NEVER, 40.0], None, 0, 0, ""),
        ([NEVER, 80.0], [40.0, NEVER], None, 0, 0, ""),
    ],
)
def test_ratio_of_epochs(slow, fast, value, low, high, bound):
    found = verdicts.epochs_ratio(*(case.mlp("m", 3, values) for values in (slow, fast)))
    if value is None:
        assert found is None
        return
    assert found.bound == bound
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))


@pytest.mark.parametrize(
    ("values", "bound", "words"),
    [
        ([1.5, 2.0], "", "1.75 [-1.43, 4.93]"),
        ([1.5, 2.0], AT_LEAST, ">= 1.75 [>= -1.43]"),
        ([1.5, 2.0], AT_MOST, "<= 1.75 [<= 4.93]"),
        ([1.5, 1.5], AT_LEAST, ">= 1.50 [>= 1.50]"),
        ([1.5], AT_LEAST, ">= 1.50"),  # one seed shows no spread
        ([1.5], "", "1.50"),
    ],
)
def test_a_bound_is_printed_with_the_end_of_its_interval(values, bound, words):
    assert Estimate.of(values, bound).words == words


def test_findings_print_bounds_and_their_ends():
    silu = case.special(case.parts(baseline=NEVER, pathcond=[80.0, 90.0]), "_silu")
    assert judge("controls_silu", silu)["ours"] == "3 hidden layers, lr 0.001: >= 1.18 [>= 0.30]"
    rows = judge("controls_rows", case.parts(baseline=NEVER, rows=[36.0, 52.0], columns=80.0))
    assert rows["ours"] == "3 hidden layers: rows >= 0.90 [>= -0.37], columns >= 0.33 [>= 0.33]"
    exceeded = case.parts(rows=[NEVER, 60.0])
    assert judge("controls_rows", exceeded)["ours"] == "3 hidden layers: rows <= 0.00 [<= 6.35], columns open"


def test_a_mean_over_depths_is_a_bound_if_a_ratio_is():
    missed = [("baseline", 3, NEVER, 0.1), ("pathcond", 3, 50.0, 0.1)]
    slower = [("baseline", 4, 60.0, 0.1), ("pathcond", 4, 60.0, 0.1)]
    never = [("baseline", 5, 30.0, 0.1), ("pathcond", 5, NEVER, 0.1)]
    found = judge("mlp_lrs_never", case.mlps(*missed, *slower))["ours"]
    assert found.endswith("mean ratio at lr 0.1: >= 1.50 (2 of 2 depths); least ratio 1.00")
    found = judge("mlp_lrs_never", case.mlps(*slower, *never))["ours"]
    assert found.endswith("mean ratio at lr 0.1: <= 0.65 (2 of 2 depths); least ratio <= 0.30")
    found = judge("mlp_lrs_never", case.mlps(*missed, *never))["ours"]
    assert found.endswith("mean ratio at lr 0.1: open (2 of 2 depths); least ratio <= 0.30")


@pytest.mark.parametrize(
    ("high", "low", "value"),
    [(2.0, 1.0, 2.0), (NEVER, 1.0, math.inf), (math.inf, 1.0, math.inf), (1.0, NEVER, 0.0), (NEVER, math.inf, None)],
)
def test_ratio_of_losses(high, low, value):
    found = verdicts.loss_ratio(case.coder({"m": {1: high}}), case.coder({"m": {1: low}}))
    assert (found and found.value) == value


def test_intervals_are_student_s():
    assert verdicts.interval(2.0, 3.0, 1) == (-math.inf, math.inf)
    for count in (2, 3, 10, 100):
        values = [1.0 + k for k in range(count)]
        found = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert Estimate.of(values).interval == pytest.approx((found.low, found.high))


def test_an_interval_decides():
    levels = at_least(1.35, 1.1)
    ends = [(1.35, 1.5), (1.3, 1.5), (1.1, 1.2), (1.0, 1.2), (0.9, 1.09), (1.0, 2.0), (-math.inf, math.inf)]
    answers = [YES, PARTLY, PARTLY, UNDECIDED, NO, UNDECIDED, UNDECIDED]
    assert [verdicts.decide(Estimate(1.0, *pair), levels) for pair in ends] == answers
    between = Levels((1.0, 2.0))
    assert [verdicts.decide(Estimate(1.0, *pair), between) for pair in ((1, 2), (0, 0.9), (2.1, 3), (1.5, 2.5))] == [
        YES, NO, NO, UNDECIDED,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "joined", "never"),
    [
        ([YES, YES], YES, YES),
        ([YES, UNDECIDED], PARTLY, UNDECIDED),
        ([YES, NO], PARTLY, NO),
        ([PARTLY, NO], PARTLY, NO),
        ([NO, UNDECIDED], UNDECIDED, NO),
        ([UNDECIDED, UNDECIDED], UNDECIDED, UNDECIDED),
        ([NO, NO], NO, NO),
    ],
)
def test_cases_are_joined(answers, joined, never):
    assert verdicts.over_cases(answers) == joined
    assert verdicts.never(answers) == never
    assert verdicts.never([*answers, *[YES] * 40], tolerated=0.1) in (YES, PARTLY, UNDECIDED)


def test_statistics_by_hand():
    table = pd.DataFrame({"a": [1, 1, 2], "b": [1, 2, 2]})
    assert verdicts.one(table, a=1, b=2).name == 1
    with pytest.raises(ValueError, match="expected one row with .* got 2"):
        verdicts.one(table, a=1)
    with pytest.raises(NotMeasured, match="no rows with b 3"):
        verdicts.some(table, a=1, b=3)
    with pytest.raises(NotMeasured, match="nothing to compare"):
        verdicts.over_cases([])
    assert verdicts.rank([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert math.isnan(verdicts.rank([1.0, 2.0], [1.0, 1.0]))
    x = [float(k) for k in range(20)]
    found = verdicts.rank_estimate(x, [k + 6.0 * (k % 3) for k in x])
    assert found.value == pytest.approx(stats.spearmanr(x, [k + 6.0 * (k % 3) for k in x]).statistic)
    assert -1 <= found.low < found.value < found.high <= 1
    steps = verdicts.steps(pd.DataFrame({1.0: [1.0, 2.0], 3.0: [4.0, 5.0], 2.0: [2.0, 3.0]}))
    assert [step.value for step in steps] == [1.0, 2.0]
    with pytest.raises(NotMeasured, match="1 of 2 values known, 2 needed"):
        verdicts.known({1.0: None, 2.0: Estimate(1.0, 1.0, 1.0)}, least=2)


def test_program_judges_and_joins(tmp_path, monkeypatch):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["paper.experiments", *map(str, words)])
        program.main()

    parts = []
    for name, claim in (("toy", "toy_faster"), ("smooth", "gelu_clamp")):
        results.write_table(tmp_path / f"{name}.csv", CASES[claim][1][1])
        parts.append(tmp_path / "claims" / f"{name}.json")
        run("claims", name, tmp_path / f"{name}.csv", "--judged", "--output", parts[-1])
    toy = json.loads(parts[0].read_text())
    assert [claim["id"] for claim in toy] == [claim.id for claim in EXPERIMENTS["toy"].claims]
    assert (toy[0]["verdict"], toy[0]["artifact"]) == ("partly", (tmp_path / "toy.csv").as_posix())
    run("join", *parts, "--output", tmp_path / "all.json", "--table", tmp_path / "all.md")
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything == toy + json.loads(parts[1].read_text())
    assert (tmp_path / "all.md").read_text() == verdicts.markdown(everything)


def test_starts_from_which_both_methods_learn_all_classes():
    table = case.conv(baseline=[76.0, 70.0], pathcond=[79.0, 60.0])
    table.loc[(table["method"] == "baseline") & (table["seed"] == 0), "best_train_accuracy"] = 1.0
    found = judge("cifar_all_classes", table)
    assert found["ours"].endswith(
        "learnt from 2 seeds with PathCond, 1 with the baseline and 1 with both, "
        "where the best test accuracies are 79.0% against 76.0%"
    )
    assert set(found["cases"]) == {"pathcond", "baseline"}
    assert "with both" not in judge("cifar_all_classes", table[table["method"] == "pathcond"])["ours"]


def test_only_claims_that_read_a_missing_run_name_it():
    missing = [{"network": trained_tables.CIFAR_NV[0], "method": "enorm", "lr": 1e-4}]
    runs = [trained_tables.cell(trained_tables.CIFAR_NV, method, lr)
            for method in trained_tables.METHODS for lr in (1e-3, 1e-4) if (method, lr) != ("enorm", 1e-4)]  # fmt: skip
    table = trained_tables.table(runs, by_seed=True)
    claims = EXPERIMENTS["cifar_nv_lrs"].claims + EXPERIMENTS["cifar_nv"].claims
    assert not [c.id for c in claims if "enorm" in judged(c, "x", table, True, "x.csv", missing)["ours"]]

    def enorm(rows):
        gain = verdicts.accuracy_gain(verdicts.runs(rows, lr=1e-4), "enorm", "baseline")
        return verdicts.Finding(gain.words, NO, gain)

    about = verdicts.Claim("about_enorm", "text", "paper", "rule", enorm)
    assert judged(about, "x", table, True, "x.csv", missing)["ours"].startswith("without enorm at lr 0.0001: not meas")


def test_markdown():
    found = [judge(claim, cases[0][1]) for claim, cases in CASES.items()]
    assert any("|" in claim["ours"] for claim in found)
    head, line, *rows = verdicts.markdown(found).splitlines()
    assert len(rows) == len(found)
    for row in (head, line, *rows):
        assert len(re.findall(r"(?<!\\)\|", row)) == 7, row
    for row, claim in zip(rows, found, strict=True):
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert cells[:3] == [claim["claim"], claim["paper"], claim["ours"]]
        assert cells[4:] == [claim["verdict"], f"`{claim['experiment']}`"]
        assert cells[3] == claim["estimate"]
