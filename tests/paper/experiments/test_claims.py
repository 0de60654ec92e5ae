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
from paper.verdicts import NOT_REPRODUCED, NOT_RUN, PARTLY, REPRODUCED, NotMeasured, Ratio, judged
from tests.paper.experiments import claim_cases as case
from tests.paper.experiments.claim_cases import CASES, NEVER
from tests.paper.experiments.tables import TRAINED
from tests.paper.experiments.trained_tables import table as trained_table

CLAIMS = {claim.id: (name, claim) for name, found in EXPERIMENTS.items() for claim in found.claims}
# Claims that hold or do not.
WITHOUT_PARTLY = {"relu_exact", "gelu_error_any_init", "constant_diagonal"}
EACH = [
    pytest.param(claim, table, verdict, id=f"{claim}-{number}")
    for claim, cases in CASES.items()
    for number, (verdict, table) in enumerate(cases)
]


def judge(claim, table, preset="paper"):
    name, found = CLAIMS[claim]
    return judged(found, name, table, preset == "paper", "table.csv")


@pytest.mark.parametrize(("claim", "table", "verdict"), EACH)
def test_verdict(claim, table, verdict):
    found = judge(claim, table)
    assert found["verdict"] == verdict
    assert found["ours"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    small = judge(claim, table, "preview")
    assert small["verdict"] == NOT_RUN
    assert small | {"verdict": 0, "scale": 0} == found | {"verdict": 0, "scale": 0}
    nothing = judge(claim, table.iloc[:0])
    assert nothing["verdict"] == NOT_RUN
    assert nothing["ours"].startswith("not measured (")
    assert (nothing["value"], nothing["interval"]) == (None, None)


def test_every_claim_is_tried_with_every_verdict_it_can_give():
    assert set(CASES) == set(CLAIMS)
    assert len(CLAIMS) == sum(len(found.claims) for found in EXPERIMENTS.values()), "ids are unique"
    for claim, cases in CASES.items():
        all_of_them = {REPRODUCED, NOT_REPRODUCED} | ({PARTLY} if claim not in WITHOUT_PARTLY else set())
        assert {verdict for verdict, _ in cases} == all_of_them, claim


def test_the_paper_s_claims_and_ours_are_counted_apart():
    found = [judge("toy_faster", CASES["toy_faster"][0][1]), judge("toy_any_start", CASES["toy_any_start"][0][1])]
    assert [claim["claim"].endswith(" (ours)") for claim in found] == [False, True]
    assert verdicts.counted(found) == "1 claims of the paper: 1 reproduced; 1 claims of ours: 1 reproduced."


NO_SPEED = case.mlps(("baseline", 3, [NEVER, 50.0]), ("pathcond", 3, [NEVER, 40.0]))
OTHER_RATE = {3: {"baseline": {1e-2: 9.0}, "pathcond": {1e-2: 8.0}, "rows": {1e-2: 8.0}}}


@pytest.mark.parametrize(
    ("claim", "table"),
    [
        ("toy_any_start", case.toy("reached_1e4", [(5, 4)])),
        ("bcd_mlp_five", case.bcd("normalised", 10, mlp=0.1)),
        ("bcd_conv_ten", case.bcd("normalised", 10, cifar_nv=0.7)),
        ("bcd_conv_needed", case.needed(cifar_nv=30)),
        ("regimes_irregular_widths", case.regimes({0.1: [3], 0.01: [4]})),
        ("regimes_small_variance", case.regimes({0.1: [3, 4, 5]})),
        ("gelu_error", case.smooth({("gelu", "default"): [0.1]})),
        ("gelu_error_any_init", case.smooth({("gelu", "default"): [0.1, 0.2]})),
        ("gelu_near_identity", case.smooth({("gelu", "default"): [0.1, 0.2]})),
        ("timing_one_epoch", case.timing({"mlp": 0.1}, pooling="exact")),
        ("timing_linear", CASES["timing_linear"][0][1].iloc[:4]),
        ("mlp_speedup", case.speed({3: 1.5}, lr=1e-2)),
        ("mlp_speedup", case.mlps(("baseline", 3, 50.0))),
        ("mlp_speedup", NO_SPEED),
        ("mlp_strongest_at_3", case.speed({3: 1.5})),
        ("mlp_strongest_at_3", case.speed({2: 1.5, 4: 1.2})),
        ("mlp_deeper", case.speed({2: 1.2, 3: 1.5})),
        ("mlp_parameters", case.speed({2: 1.5, 3: 1.5})),
        ("mlp_parameters", case.mlps(("baseline", 8, NEVER), ("pathcond", 5, NEVER))),
        ("mlp_enorm", case.speed({3: 1.5})),
        ("mlp_lrs_shrinks", case.speeds({3: {1e-3: 1.5}, 4: {1e-2: 1.5}})),
        ("mlp_lrs_tuned", case.mlps(("baseline", 3, NEVER), ("pathcond", 3, 90.0))),
        ("mlp_deep_rescaling", case.rescaled({2: 1.0, 3: 2.0})),
        ("mlp_lrs_never_hurts", case.speed({3: 1.5}, lr=1e-1)),
        ("mlp_lrs_large", case.speed({3: 1.5}, lr=1e-2)),
        ("cifar_earlier", case.conv(lr=1e-2)),
        ("cifar_enorm", case.conv()),
        ("cifar_all_classes", case.conv(learnt=(0.98, 0.9))),
        ("cifar_lrs_shrinks", case.conv_lrs({1e-3: 5})),
        ("cifar_lrs_small", case.conv_lrs({1e-2: 5})),
        ("autoencoder_loss", case.coder({"pathcond": {1: 1.0}})),
        ("autoencoder_loss", case.coder({"baseline": {1: NEVER}, "pathcond": {1: NEVER}})),
        ("autoencoder_compression", case.loss({4: 1.2})),
        ("autoencoder_rescaling", case.coder({"baseline": {1: 1.0, 2: 1.0}})),
        ("autoencoder_lrs_rescaling", case.scales({2: 0.1}, {2: 0.2})),
        ("controls_tuned", case.tuned({3: {"baseline": {1e-3: NEVER}, "pathcond": {1e-3: 9.0}}})),
        ("controls_rows", case.parts(columns=70.0)),
        ("controls_rows", case.parts(pathcond=80.0, rows=70.0)),
        ("controls_rows", case.parts(baseline=NEVER, rows=NEVER)),
        ("controls_rows", case.tuned(OTHER_RATE)),
        ("controls_exact", case.parts(rows=70.0)),
        ("controls_optimum", case.parts(rows=70.0)),
        ("controls_autoencoder", case.parts(rows=70.0)),
    ],
)
def test_what_is_missing_is_not_judged(claim, table):
    found = judge(claim, table)
    assert found["verdict"] == NOT_RUN
    assert found["ours"].startswith("not measured (")


@pytest.mark.parametrize(
    ("claim", "number", "ours", "value", "interval"),
    [
        ("toy_faster", 0, "2 of 2 starts; steps to loss 0.01: 50 -> 49, never -> 9", 2.0, None),
        ("criteria_any_norm", 2, "sqrt(x^2 + 4 y^2): minimisers 0.7 apart in log lambda", 0.7, None),
        ("regimes_small_variance", 1, "at 1 of 2 values of alpha", 0.5, None),
        ("gelu_error", 0, "0.49 at 1 to 0.0049 at 3 hidden layers", 0.0049, [0.0049, 0.49]),
        ("gelu_clamp", 2, "no NaN; largest |u| without the bound (mean of seeds) 4.9, or 5.1 with GELU kept in "
         "diag(G)", 5.1, [4.9, 5.1]),
        ("table1_parameters", 1, "4 of 6 rows equal; mlp 2,042,511, vgg16 138,357,545", 4.0, None),
        ("bcd_mlp_five", 0, "85.1% of the decrease", 0.851, [0.851 - 0.024826, 0.851 + 0.024826]),
        ("bcd_conv_needed", 2, "sweeps to 95% of the decrease: cifar_nv 36, resnet18_c_held more", None, None),
        ("timing_one_epoch", 1, "conv 1%, mlp 111% of an epoch on CPU", 1.11, [0.01, 1.11]),
        ("timing_linear", 0, "1e+03 ms a million parameters on top of 1e+03 ms; R^2 1.00", 1.0, None),
        ("theory_with_biases", 1, "1 of 2 values within 4 standard errors (worst 4.1)", 4.1, None),
        ("theory_full_rank", 2, "rank 11 of 12 with 3 units; rank 52 of 64 with 12 units", None, None),
        ("regimes_printed_root", 1, "not positive in float64 at variance 0.01: 5%, 0.1: 0% of the networks", 0.05,
         [0.0, 0.05]),
        ("mlp_speedup", 1, "1.71 times at 3 hidden layers, more than the paper's 1.5 (by hidden layers 2: 1.20, "
         "3: 1.71)", 1.71, [1.71, 1.71]),
        ("mlp_speedup", 2, ">= 1.43 times at 3 hidden layers (by hidden layers 2: open, 3: >= 1.43)", 1 / 0.7, None),
        ("mlp_parameters", 2, "baseline with 3.30M over PathCond with 2.55M parameters: >= 1.12", 1.125, None),
        ("mlp_lrs_shrinks", 1, "at 1 of 2 depths; mean ratio at lr 0.001: 1.30 (2 of 2 depths), "
         "0.01: 1.15 (2 of 2 depths)", 0.5, None),
        ("cifar_earlier", 0, "10 epochs earlier by train accuracy (10 epochs earlier by train loss; 7 at 60%; 8 at "
         "70%; 9 at 80%; 10 at 90%), of 128", 10, None),
        ("cifar_best_test", 0, "78.6% against 75.6%", 3.0, [3.0, 3.0]),
        ("cifar_all_classes", 2, "1 of 2 seeds; with seed 1 no method passes 90.0% of the training images; best test "
         "accuracy of the others 80.0% against 77.0%", 0.5, None),
        ("mlp_deep_rescaling", 1, "largest |log lambda| at hidden layers 2: 3.00, 3: 1.00, 4: 2.00", -0.5, [1.0, 3.0]),
        ("autoencoder_compression", 1, "final train loss, baseline over PathCond at compression 1: 1.000, 2: 1.200, 4: "
         "1.100, 7: 1.200; less PathCond's: 1: 0, 2: 0.4, 4: 0.2, 7: 0.4", 1.2, [1.2, 1.2]),
        ("controls_tuned", 1, "3 hidden layers: 2.00 (2.00 to 2.00) (baseline 60 at lr 0.1, the end of those tried, "
         "PathCond 30 at lr 0.01; open at lr 0.001)", 2.0, [2.0, 2.0]),
        ("controls_rows", 0, "3 hidden layers: rows 80%, columns 2%", 0.8025, [0.8025, 0.8025]),
        ("controls_optimum", 2, "ten sweeps over optimum: hidden layers 3: 1.00, 6: 1.33; largest |log lambda| of "
         "both: 2.0 and 3.0, 3.5 and 4.5", 4 / 3, [1.0, 4 / 3]),
    ],
)  # fmt: skip
def test_what_we_found_in_words_and_numbers(claim, number, ours, value, interval):
    found = judge(claim, CASES[claim][number][1])
    assert (found["experiment"], found["artifact"]) == (CLAIMS[claim][0], "table.csv")
    assert found["ours"] == ours
    assert found["value"] == (None if value is None else pytest.approx(value))
    assert found["interval"] == (None if interval is None else pytest.approx(interval, rel=1e-3))


@pytest.mark.parametrize(
    ("slow", "fast", "ratio"),
    [
        ([60.0, 80.0], [40.0, 40.0], Ratio(1.75, "", pytest.approx((1.75 - 12.71 * 0.25, 1.75 + 12.71 * 0.25)))),
        ([60.0], [40.0], Ratio(1.5, "", (1.5, 1.5))),
        ([NEVER, 80.0], [40.0, 40.0], Ratio(2.25, ">= ")),
        ([50.0, 80.0], [NEVER, 80.0], Ratio(0.75, "<= ")),
        ([NEVER, 80.0], [NEVER, 40.0], None),
        ([NEVER, 80.0], [40.0, NEVER], None),
        ([60.0, 80.0, 90.0], [40.0], Ratio(1.5, "", (1.5, 1.5))),  # seeds without a partner do not count
        ([0.0], [0.0], Ratio(1.0, "", (1.0, 1.0))),
        ([], [40.0], None),
    ],
)
def test_ratio_of_epochs(slow, fast, ratio):
    columns = pd.DataFrame(columns=["seed", "reached", "epochs"], dtype=float)
    found = verdicts.epochs_ratio(*(case.mlp("m", 3, values) if values else columns for values in (slow, fast)))
    assert found == ratio


@pytest.mark.parametrize(
    ("high", "low", "value"),
    [(2.0, 1.0, 2.0), (NEVER, 1.0, math.inf), (math.inf, 1.0, math.inf), (1.0, NEVER, 0.0), (NEVER, math.inf, None)],
)
def test_ratio_of_losses(high, low, value):
    found = verdicts.loss_ratio(case.coder({"m": {1: high}}), case.coder({"m": {1: low}}))
    assert (found and found.value) == value


def test_intervals_are_student_s():
    assert verdicts.interval(2.0, 3.0, 1) == (2.0, 2.0)
    for count in (2, 3, 4, 10, 20, 100):
        half = stats.t.ppf(0.975, count - 1) / count**0.5
        assert verdicts.interval(1.0, 1.0, count) == pytest.approx((1 - half, 1 + half), abs=0.006)
    assert verdicts.interval(0.0, 1.0, 4)[1] == 3.18 / 2, "two decimals, as published"


def test_rules_by_hand():
    assert [verdicts.within(x, (1, 2), (0, 3)) for x in (1, 2, 0, 3, -1, 4, math.nan)] == (
        [REPRODUCED] * 2 + [PARTLY] * 2 + [NOT_REPRODUCED] * 3
    )
    table = pd.DataFrame({"a": [1, 1, 2], "b": [1, 2, 2]})
    assert verdicts.one(table, a=1, b=2).name == 1
    with pytest.raises(ValueError, match="expected one row with .* got 2"):
        verdicts.one(table, a=1)
    with pytest.raises(NotMeasured, match="no rows with b 3"):
        verdicts.some(table, a=1, b=3)
    with pytest.raises(NotMeasured, match="nothing to compare"):
        verdicts.of_all([])
    assert verdicts.rank({1.0: 3.0, 2.0: 2.0, 3.0: 1.0}) == pytest.approx(-1)
    assert math.isnan(verdicts.rank({1.0: 1.0, 2.0: 1.0}))
    assert [verdicts.growth(dict(enumerate(v))) for v in ([1, 2, 3], [1, 3, 2], [1, 2, 1])] == [
        REPRODUCED, PARTLY, NOT_REPRODUCED,
    ]  # fmt: skip
    with pytest.raises(NotMeasured, match="1 of 2 ratios known, 2 needed"):
        verdicts.known({1.0: None, 2.0: Ratio(1.0)}, least=2)
    with pytest.raises(NotMeasured, match="diverged"):
        verdicts.head_start(case.conv(20).assign(train_accuracy_mean=math.nan), "train_accuracy")


def test_twice_as_fast_is_found_so():
    ratio = judge("mlp_gelu_speedup", trained_table(TRAINED["mlp_depth_gelu"]))
    assert ratio["value"] == pytest.approx(2.0, rel=0.1)
    assert ratio["verdict"] == REPRODUCED


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
    assert (toy[0]["verdict"], toy[0]["artifact"]) == (PARTLY, (tmp_path / "toy.csv").as_posix())
    run("join", *parts, "--output", tmp_path / "all.json", "--table", tmp_path / "all.md")
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything == toy + json.loads(parts[1].read_text())
    assert (tmp_path / "all.md").read_text() == verdicts.markdown(everything)


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
        ranged = claim["interval"] is not None and None not in claim["interval"]
        assert bool(re.fullmatch(r"(\S.* )?\S+ to \S+", cells[3])) == ranged
