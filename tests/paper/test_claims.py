"""Claims: every verdict each can give, none at small scales, none without data; texts of our own."""

import importlib
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from paper import store
from paper.claims import __main__ as program
from paper.claims import rules
from paper.claims.rules import NOT_REPRODUCED, NOT_RUN, PARTLY, REPRODUCED, NotMeasured, judged
from paper.plan import ITEMS
from tests.paper import claim_cases, claim_cases_theory, claim_cases_trained
from tests.paper.claim_cases import bcd, needed, regimes, smooth, timing, toy

CASES = {**claim_cases.CASES, **claim_cases_theory.CASES, **claim_cases_trained.CASES}
ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared/paper.tex"
MODULES = {item: importlib.import_module(f"paper.claims.{item}") for item in ITEMS if find_spec(f"paper.claims.{item}")}
CLAIMS = {claim.id: (item, claim) for item, module in MODULES.items() for claim in module.CLAIMS}
# Claims that hold or do not.
WITHOUT_PARTLY = {"relu_exact", "gelu_error_any_init", "constant_diagonal"}
EACH = [
    pytest.param(claim, table, verdict, id=f"{claim}-{number}")
    for claim, cases in CASES.items()
    for number, (verdict, table) in enumerate(cases)
]


def judge(claim, table, scale="paper"):
    item, found = CLAIMS[claim]
    return judged(found, item, table, scale, "table.csv")


@pytest.mark.parametrize(("claim", "table", "verdict"), EACH)
def test_verdict(claim, table, verdict):
    found = judge(claim, table)
    assert found["verdict"] == verdict
    assert found["ours"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("scale", ["preview", "tiny", "Paper"])
@pytest.mark.parametrize("claim", CASES)
def test_small_scales_report_the_value_without_a_verdict(claim, scale):
    for _, table in CASES[claim]:
        found = judge(claim, table, scale)
        assert found["verdict"] == NOT_RUN
        assert found | {"verdict": 0, "scale": 0} == judge(claim, table) | {"verdict": 0, "scale": 0}


@pytest.mark.parametrize("claim", CASES)
def test_nothing_is_concluded_from_nothing(claim):
    for _, table in CASES[claim]:
        found = judge(claim, table.iloc[:0])
        assert found["verdict"] == NOT_RUN
        assert found["ours"].startswith("not measured (")
        assert (found["value"], found["interval"]) == (None, None)


def test_every_claim_is_tried_with_every_verdict_it_can_give():
    assert set(CASES) == set(CLAIMS)
    for claim, cases in CASES.items():
        all_of_them = {REPRODUCED, NOT_REPRODUCED} | ({PARTLY} if claim not in WITHOUT_PARTLY else set())
        assert {verdict for verdict, _ in cases} == all_of_them, claim


def test_the_paper_s_claims_and_ours_are_counted_apart():
    found = [judge("toy_faster", CASES["toy_faster"][0][1]), judge("toy_any_start", CASES["toy_any_start"][0][1])]
    assert [claim["source"] for claim in found] == ["paper", "ours"]
    assert [claim["claim"].endswith(" (ours)") for claim in found] == [False, True]
    assert rules.counted(found) == "1 claims of the paper: 1 reproduced; 1 claims of ours: 1 reproduced."
    assert (
        rules.counted([{**found[0], "verdict": PARTLY}, found[0]]) == "2 claims of the paper: 1 reproduced, 1 partly."
    )


def test_a_range_is_told_from_an_interval_over_seeds():
    found = [judge("timing_range", CASES["timing_range"][0][1]), judge("bcd_mlp_five", CASES["bcd_mlp_five"][0][1])]
    ranged, spread = (line.split(" | ")[3] for line in program.markdown(found).splitlines()[2:])
    assert re.fullmatch(r"range \S+ to \S+", ranged)
    assert re.fullmatch(r"\S+ to \S+", spread)


def test_ids_are_unique_and_texts_are_there():
    every = [claim for module in MODULES.values() for claim in module.CLAIMS]
    assert len({claim.id for claim in every}) == len({claim.text for claim in every}) == len(every)
    for claim in every:
        assert re.fullmatch("[a-z][a-z0-9_]*", claim.id)
        assert all((claim.text, claim.paper, claim.rule)), claim.id


@pytest.mark.parametrize(
    ("claim", "table"),
    [
        ("toy_any_start", toy("reached_1e4", [(5, 4)])),
        ("bcd_mlp_five", bcd("normalised", 10, mlp=0.1)),
        ("bcd_conv_ten", bcd("normalised", 10, cifar_nv=0.7)),
        ("bcd_conv_needed", needed(cifar_nv=30)),
        ("regimes_irregular_widths", regimes({0.1: [3], 0.01: [4]})),
        ("regimes_small_variance", regimes({0.1: [3, 4, 5]})),
        ("gelu_error", smooth({("gelu", "default"): [0.1]})),
        ("gelu_error_any_init", smooth({("gelu", "default"): [0.1, 0.2]})),
        ("gelu_near_identity", smooth({("gelu", "default"): [0.1, 0.2]})),
        ("timing_one_epoch", timing({"mlp": 0.1}, pooling="exact")),
        ("timing_linear", CASES["timing_linear"][0][1].iloc[:4]),
    ],
)
def test_what_the_settings_leave_out_is_not_judged(claim, table):
    found = judge(claim, table)
    assert found["verdict"] == NOT_RUN
    assert found["ours"].startswith("not measured (")


@pytest.mark.parametrize(
    ("claim", "case", "ours", "value", "interval"),
    [
        ("toy_faster", 0, "2 of 2 starts; steps to loss 0.01: 50 -> 49, never -> 9", 2.0, None),
        ("toy_any_start", 1, "not from the start with large u; steps to loss 0.0001: 4 -> 5", None, None),
        ("criteria_any_norm", 2, "sqrt(x^2 + 4 y^2): minimisers 0.7 apart in log lambda", 0.7, None),
        ("regimes_small_variance", 1, "at 1 of 2 values of alpha", 0.5, None),
        ("gelu_error", 0, "0.49 at 1 to 0.0049 at 3 hidden layers", 0.0049, [0.0049, 0.49]),
        ("batchnorm_training", 1, "relative change, hidden layers 1: 0, 2: 1e-10", 1.01e-10, [0.0, 1.01e-10]),
        ("gelu_clamp", 0, "NaN; largest |u| without the bound (mean of seeds) 1, or 1 with GELU kept in "
         "diag(G)", 1.0, [1.0, 1.0]),
        ("gelu_clamp", 2, "no NaN; largest |u| without the bound (mean of seeds) 4.9, or 5.1 with GELU kept in "
         "diag(G)", 5.1, [4.9, 5.1]),
        ("table1_parameters", 1, "4 of 6 rows equal; mlp 2,042,511, vgg16 138,357,545", 4.0, None),
        ("bcd_mlp_five", 0, "85.1% of the decrease", 0.851, [0.851 - 0.024826, 0.851 + 0.024826]),
        ("bcd_conv_ten", 0, "cifar_nv 39% (61% remaining), resnet18_c_held 16% (84% remaining)", 0.39,
         [0.16, 0.39]),
        ("bcd_conv_needed", 2, "sweeps to 95% of the decrease: cifar_nv 36, resnet18_c_held more", None, None),
        ("timing_one_epoch", 1, "conv 1%, mlp 111% of an epoch on CPU", 1.11, [0.01, 1.11]),
        ("timing_solver_share", 1, "0 99%, 1 95%", 0.949, [0.949, 0.99]),
        ("timing_linear", 0, "1e+03 ms a million parameters on top of 1e+03 ms; R^2 1.00", 1.0, None),
        ("theory_with_biases", 1, "1 of 2 values within 4 standard errors (worst 4.1)", 4.1, None),
        ("theory_general", 0, "holds in every layer", 0.0, None),
        ("theory_unit_gain", 0, "so is the formula; 3 of 3 values within 4 standard errors (worst 3.9)", 3.9, None),
        ("theory_full_rank", 2, "rank 11 of 12 with 3 units; rank 52 of 64 with 12 units", None, None),
        ("constant_diagonal", 0, "largest |u| 9e-10 in networks of equal widths and weights of one size; 0.3 or more "
         "where widths differ", 0.9e-9, None),
        ("regimes_printed_root", 1, "not positive in float64 at variance 0.01: 5%, 0.1: 0% of the networks", 0.05,
         [0.0, 0.05]),
        ("bcd_printed_scale", 2, "mlp 1.01, cifar_nv 3, resnet18_c_held 5, where 1 is no rescaling and 0 the "
         "solution", 1.01, None),
    ],
)  # fmt: skip
def test_what_we_found_is_said_in_words_and_numbers(claim, case, ours, value, interval):
    found = judge(claim, CASES[claim][case][1])
    assert (found["item"], found["artifact"], found["scale"]) == (CLAIMS[claim][0], "table.csv", "paper")
    assert found["ours"] == ours
    assert found["value"] == (None if value is None else pytest.approx(value))
    assert found["interval"] == (None if interval is None else pytest.approx(interval, rel=1e-3))


def test_a_formula_that_is_off_names_its_layers():
    found = judge("theory_general", CASES["theory_general"][2][1])
    assert found["ours"].startswith("off in layers 1, 2 of 0 to 2; random networks: up to 77 standard errors from it")


def test_rules_by_hand():
    assert rules.interval(2.0, 3.0, 1) == (2.0, 2.0)
    assert rules.interval(0.0, 1.0, 2) == pytest.approx((-12.71 / 2**0.5, 12.71 / 2**0.5))
    assert rules.interval(1.0, 1.0, 4) == pytest.approx((1 - 3.18 / 2, 1 + 3.18 / 2))
    assert rules.interval(0.0, 1.0, 20)[1] == pytest.approx(2.09 / 20**0.5)
    assert rules.interval(0.0, 1.0, 100)[1] == pytest.approx(0.196)
    assert [rules.within(x, (1, 2), (0, 3)) for x in (1, 2, 0, 3, -1, 4)] == (
        [REPRODUCED] * 2 + [PARTLY] * 2 + [NOT_REPRODUCED] * 2
    )
    assert rules.within(float("nan"), (1, 2), (0, 3)) == NOT_REPRODUCED
    table = pd.DataFrame({"a": [1, 1, 2], "b": [1, 2, 2]})
    assert rules.one(table, a=1, b=2).name == 1
    with pytest.raises(ValueError, match="expected one row with .* got 2"):
        rules.one(table, a=1)
    with pytest.raises(NotMeasured, match="no rows with b 3"):
        rules.some(table, a=1, b=3)
    with pytest.raises(NotMeasured, match="nothing to compare"):
        rules.of_all([])


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["paper.claims", *map(str, arguments)])
    program.main()


def test_program_judges_and_joins(tmp_path, monkeypatch):
    for item, claim in (("toy", "toy_faster"), ("smooth", "gelu_clamp")):
        store.write_table(tmp_path / f"{item}.csv", CASES[claim][1][1])
    for item in ("toy", "smooth"):
        table, output = tmp_path / f"{item}.csv", tmp_path / "claims" / f"{item}.json"
        run(monkeypatch, "judge", item, table, "--scale", "paper", "--output", output)
    toy_claims = json.loads((tmp_path / "claims/toy.json").read_text())
    assert [claim["id"] for claim in toy_claims] == [claim.id for claim in MODULES["toy"].CLAIMS]
    assert toy_claims[0]["verdict"] == PARTLY
    assert toy_claims[0]["artifact"] == (tmp_path / "toy.csv").as_posix()
    parts = [tmp_path / "claims/toy.json", tmp_path / "claims/smooth.json"]
    run(monkeypatch, "join", *parts, "--output", tmp_path / "all.json", "--table", tmp_path / "all.md")
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything == toy_claims + json.loads(parts[1].read_text())
    assert (tmp_path / "all.md").read_text() == program.markdown(everything)


def test_markdown_escapes_pipes():
    found = [judge(claim, cases[0][1]) for claim, cases in CASES.items()]
    assert any("|" in claim["ours"] for claim in found)
    head, line, *rows = program.markdown(found).splitlines()
    assert len(rows) == len(found)
    for row in (head, line, *rows):
        assert len(re.findall(r"(?<!\\)\|", row)) == 7, row
    for row, claim in zip(rows, found, strict=True):
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert cells[:3] == [claim["claim"], claim["paper"], claim["ours"]]
        assert cells[4:] == [claim["verdict"], f"`{claim['item']}`"]
        assert ("to" in cells[3]) == (claim["interval"] is not None and None not in claim["interval"])


def runs_of_eight(text):
    all_words = re.findall("[a-z0-9]+", text.lower())
    return {tuple(all_words[i : i + 8]) for i in range(len(all_words) - 7)}


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_texts_are_our_own():
    printed = runs_of_eight(PAPER.read_text())
    assert len(printed) > 5000
    drawn = [item for item in ITEMS if find_spec(f"paper.figures.{item}")]
    captions = {item: importlib.import_module(f"paper.figures.{item}").PAPER for item in drawn}
    assert captions
    claims = {claim_id: f"{claim.text} . {claim.paper} . {claim.rule}" for claim_id, (_, claim) in CLAIMS.items()}
    for name, text in {**captions, **claims}.items():
        assert not runs_of_eight(text) & printed, name
