"""Claims on trained networks: words and numbers, bounds where targets are missed, and tables as files give them."""

import importlib
import math

import pandas as pd
import pytest

from paper.claims import trained
from paper.claims.rules import NOT_REPRODUCED, NOT_RUN, PARTLY, REPRODUCED, NotMeasured, judged
from paper.claims.trained import Ratio
from paper.plan import ITEMS
from tests.paper.claim_cases_trained import (
    CASES,
    NEVER,
    coder,
    conv,
    conv_lrs,
    loss,
    mlp,
    mlps,
    parts,
    rescaled,
    scales,
    speed,
    speeds,
    tuned,
    tuned_coder,
)
from tests.paper.trained_tables import CIFAR_NV, autoencoder, cell, cells, table
from tests.paper.trained_tables import mlp as network

TRAINED = [item for item in ITEMS if ITEMS[item].trained]
CLAIMS = {
    claim.id: (item, claim) for item in TRAINED for claim in importlib.import_module(f"paper.claims.{item}").CLAIMS
}


def judge(claim, rows):
    item, found = CLAIMS[claim]
    return judged(found, item, rows, "paper", "table.csv")


def test_every_trained_item_has_claims():
    assert {item for item, _ in CLAIMS.values()} == set(TRAINED)
    assert set(CLAIMS) == set(CASES)


@pytest.mark.parametrize(
    ("claim", "rows"),
    [
        ("mlp_speedup", speed({3: 1.5}, lr=1e-2)),
        ("mlp_speedup", mlps(("baseline", 3, 50.0))),
        ("mlp_speedup", mlps(("baseline", 3, [NEVER, 50.0]), ("pathcond", 3, [NEVER, 40.0]))),
        ("mlp_speedup", mlps(("baseline", 3, [NEVER, 50.0]), ("pathcond", 3, [50.0, NEVER]))),
        ("mlp_strongest_at_3", speed({3: 1.5})),
        ("mlp_strongest_at_3", speed({2: 1.5, 4: 1.2})),
        ("mlp_deeper", speed({2: 1.2, 3: 1.5})),
        ("mlp_deeper", speed({2: 1.2, 4: 1.5})),
        ("mlp_parameters", speed({2: 1.5, 3: 1.5})),
        ("mlp_parameters", mlps(("baseline", 8, NEVER), ("pathcond", 5, NEVER))),
        ("mlp_parameters", mlps(("baseline", 5, 9.0), ("pathcond", 8, 9.0))),
        ("mlp_enorm", speed({3: 1.5})),
        ("mlp_lrs_shrinks", speeds({3: {1e-3: 1.5}, 4: {1e-2: 1.5}})),
        (
            "mlp_lrs_shrinks",
            mlps(
                *(("baseline", 3, NEVER, lr) for lr in (1e-3, 1e-2)), ("pathcond", 3, 90.0), ("pathcond", 3, 80.0, 1e-2)
            ),
        ),
        ("mlp_lrs_tuned", mlps(("baseline", 3, NEVER), ("pathcond", 3, 90.0))),
        ("mlp_deep_rescaling", rescaled({2: 1.0, 3: 2.0})),
        ("mlp_lrs_never_hurts", speed({3: 1.5}, lr=1e-1)),
        ("mlp_lrs_never_hurts", mlps(("baseline", 3, 9.0))),
        ("mlp_lrs_large", speed({3: 1.5}, lr=1e-2)),
        ("cifar_earlier", conv(lr=1e-2)),
        ("cifar_enorm", conv()),
        ("cifar_all_classes", conv(learnt=(0.98, 0.9))),
        ("cifar_all_classes", conv(lr=1e-2)),
        ("cifar_lrs_shrinks", conv_lrs({1e-3: 5})),
        ("cifar_lrs_small", conv_lrs({1e-2: 5})),
        ("autoencoder_loss", coder({"pathcond": {1: 1.0}})),
        ("autoencoder_loss", coder({"baseline": {1: NEVER}, "pathcond": {1: NEVER}})),
        ("autoencoder_compression", loss({4: 1.2})),
        ("autoencoder_rescaling", coder({"baseline": {1: 1.0, 2: 1.0}})),
        ("autoencoder_lrs_rescaling", scales({2: 0.1}, {2: 0.2})),
        ("controls_tuned", tuned({3: {"baseline": {1e-3: NEVER}, "pathcond": {1e-3: 9.0}}})),
        ("controls_tuned", coder({"baseline": {4: 1.0}, "pathcond": {4: 1.0}})),
        ("controls_rows", parts(columns=70.0)),
        ("controls_rows", parts(pathcond=80.0, rows=70.0)),
        ("controls_rows", parts(pathcond=NEVER, rows=70.0)),
        ("controls_rows", parts(baseline=NEVER, rows=NEVER)),
        ("controls_rows", tuned({3: {"baseline": {1e-2: 9.0}, "pathcond": {1e-2: 8.0}, "rows": {1e-2: 8.0}}})),
        ("controls_exact", parts(rows=70.0)),
        ("controls_optimum", parts(rows=70.0)),
        ("controls_autoencoder", parts(rows=70.0)),
        ("controls_autoencoder", tuned_coder({"baseline": {1e-3: [NEVER, 1.0]}, "pathcond": {1e-3: 1.0}})),
    ],
)
def test_what_is_missing_is_not_judged(claim, rows):
    found = judge(claim, rows)
    assert found["verdict"] == NOT_RUN
    assert found["ours"].startswith("not measured (")


@pytest.mark.parametrize(
    ("claim", "case", "ours", "value", "interval"),
    [
        ("mlp_speedup", 0, "1.36 times at 3 hidden layers (by hidden layers 2: 1.20, 3: 1.36)", 1.36, [1.36, 1.36]),
        ("mlp_speedup", 1, "1.71 times at 3 hidden layers, more than the paper's 1.5 (by hidden layers 2: 1.20, "
         "3: 1.71)", 1.71, [1.71, 1.71]),
        ("mlp_speedup", 2, ">= 1.43 times at 3 hidden layers (by hidden layers 2: open, 3: >= 1.43)", 1 / 0.7, None),
        ("mlp_strongest_at_3", 3, "hidden layers 2: >= 1.11, 3: 1.50, 4: 1.10", 1.5, [1.5, 1.5]),
        ("mlp_parameters", 2, "baseline with 3.30M over PathCond with 2.55M parameters: >= 1.12", 1.125, None),
        ("mlp_lrs_shrinks", 1, "at 1 of 2 depths; mean ratio at lr 0.001: 1.30 (2 of 2 depths), "
         "0.01: 1.15 (2 of 2 depths)", 0.5, None),
        ("mlp_lrs_never_hurts", 1, "no slower in 1 of 1 cells with lr up to 0.01; mean ratio at lr "
         "0.001: open (0 of 1 depths)", None, None),
        ("cifar_earlier", 0, "10 epochs earlier by train accuracy (10 epochs earlier by train loss; 7 at 60%; 8 at "
         "70%; 9 at 80%; 10 at 90%), of 128", 10, None),
        ("cifar_earlier", 6, "PathCond is not there within 128 epochs", None, None),
        ("cifar_best_test", 0, "78.6% against 75.6%", 3.0, [3.0, 3.0]),
        ("cifar_generalisation", 4, "best test accuracy -1.6 points (-1.6 to -1.6)", -1.6, [-1.6, -1.6]),
        ("cifar_enorm", 0, "77.1%, -0.4 points from the baseline", -0.4, [-0.4, -0.4]),
        ("cifar_all_classes", 0, "2 of 2 seeds", 1.0, None),
        ("cifar_all_classes", 2, "1 of 2 seeds; with seed 1 no method passes 90.0% of the training images; best test "
         "accuracy of the others 80.0% against 77.0%", 0.5, None),
        ("cifar_all_classes", 4, "1 of 3 seeds; with seeds 0, 2 no method passes 90.0% of the training images; best "
         "test accuracy of the others 81.0% against 78.0%", 1 / 3, None),
        ("mlp_deep_rescaling", 1, "largest |log lambda| at hidden layers 2: 3.00, 3: 1.00, 4: 2.00", -0.5, [1.0, 3.0]),
        ("mlp_lrs_tuned", 3, "hidden layers 3: 0.97 (0.97 to 0.97)", 29 / 30, [29 / 30, 29 / 30]),
        ("autoencoder_compression", 1, "final train loss, baseline over PathCond at compression 1: 1.000, 2: 1.200, 4: "
         "1.100, 7: 1.200; less PathCond's: 1: 0, 2: 0.4, 4: 0.2, 7: 0.4", 1.2, [1.2, 1.2]),
        ("cifar_lrs_shrinks", 0, "epochs saved at lr 0.0001: 6%, 0.001: 30%, 0.01: 5%", 0.05, [0.05, 0.3]),
        ("autoencoder_loss", 5, "final train loss, baseline over PathCond at compression 1: 2.000, 7: 0.000", 0.0,
         [0.0, 2.0]),
        ("autoencoder_rescaling", 0, "largest |log lambda| at compression 1: 0.10, 2: 0.20, 4: 0.21", 0.21,
         [0.1, 0.21]),
        ("autoencoder_lrs_rescaling", 1, "largest |log lambda| at lr 0.01: 0.10 to 0.10, 0.1: 0.10 to 0.20", 0.5, None),
        ("controls_tuned", 1, "3 hidden layers: 2.00 (2.00 to 2.00) (baseline 60 at lr 0.1, the end of those tried, "
         "PathCond 30 at lr 0.01; open at lr 0.001)", 2.0, [2.0, 2.0]),
        ("controls_rows", 0, "3 hidden layers: rows 80%, columns 2%", 0.8025, [0.8025, 0.8025]),
        ("controls_exact", 2, "baseline over exact: hidden layers 3: open", None, None),
        ("controls_optimum", 2, "ten sweeps over optimum: hidden layers 3: 1.00, 6: 1.33; largest |log lambda| of "
         "both: 2.0 and 3.0, 3.5 and 4.5", 4 / 3, [1.0, 4 / 3]),
        ("controls_autoencoder", 2, "1.040 (baseline 1.04 at lr 0.1, the end of those tried, PathCond 1 at lr 0.01, "
         "the end of those tried; open at lr 0.001)", 1.04, [1.04, 1.04]),
    ],
)  # fmt: skip
def test_what_we_found_is_said_in_words_and_numbers(claim, case, ours, value, interval):
    found = judge(claim, CASES[claim][case][1])
    assert found["ours"] == ours
    assert found["value"] == (None if value is None else pytest.approx(value))
    assert found["interval"] == (None if interval is None else pytest.approx(interval))


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
    found = trained.epochs_ratio(*(mlp("m", 3, values) if values else columns for values in (slow, fast)))
    assert found == ratio


@pytest.mark.parametrize(
    ("high", "low", "value"),
    [(2.0, 1.0, 2.0), (NEVER, 1.0, math.inf), (math.inf, 1.0, math.inf), (1.0, NEVER, 0.0), (NEVER, math.inf, None)],
)
def test_ratio_of_losses(high, low, value):
    found = trained.loss_ratio(coder({"m": {1: high}}), coder({"m": {1: low}}))
    assert (found and found.value) == value


def test_small_helpers():
    assert trained.rank({1.0: 3.0, 2.0: 2.0, 3.0: 1.0}) == pytest.approx(-1)
    assert math.isnan(trained.rank({1.0: 1.0, 2.0: 1.0}))
    assert [trained.growth(dict(enumerate(v))) for v in ([1, 2, 3], [1, 3, 2], [1, 2, 1])] == [
        REPRODUCED, PARTLY, NOT_REPRODUCED,
    ]  # fmt: skip
    with pytest.raises(NotMeasured, match="no trend"):
        trained.growth({1.0: 1.0})
    with pytest.raises(NotMeasured, match="1 of 2 ratios known, 2 needed"):
        trained.known({1.0: None, 2.0: Ratio(1.0)}, least=2)
    diverged = conv(20).assign(train_accuracy_mean=math.nan)
    with pytest.raises(NotMeasured, match="diverged"):
        trained.head_start(diverged, "train_accuracy")


RUNS = {
    "mlp_depth": cells(map(network, (2, 3, 5))),
    "mlp_depth_lrs": cells(map(network, (2, 3)), lrs=(1e-3, 1e-1)),
    "mlp_depth_gelu": cells(map(network, (2, 3))),
    "cifar_nv": cells([CIFAR_NV]),
    "cifar_nv_lrs": cells([CIFAR_NV], lrs=(1e-3, 1e-2)),
    "autoencoder": cells(map(autoencoder, (1, 2))),
    "autoencoder_lrs": [*cells(map(autoencoder, (1, 2)), lrs=(1e-3, 1e-1)), cell(autoencoder(4), diverged=[0])],
    "controls": [
        *cells(map(network, (3, 6)), ("baseline", "pathcond", "rows", "columns", "exact", "optimum"), (1e-3, 1e-1)),
        *cells([autoencoder(4)], ("baseline", "pathcond"), (1e-3, 1e-1)),
    ],
}


@pytest.mark.parametrize("item", TRAINED)
def test_tables_from_files_are_judged(item):
    rows = table(RUNS[item], smoothing=0.2 if item.startswith("cifar") else None)
    found = {claim: judge(claim, rows) for claim, (name, _) in CLAIMS.items() if name == item}
    not_run = {claim for claim, result in found.items() if result["verdict"] == NOT_RUN}
    assert not_run == ({"mlp_parameters"} if item == "mlp_depth" else set())


def test_twice_as_fast_is_found_so():
    ratio = judge("mlp_gelu_speedup", table(RUNS["mlp_depth_gelu"]))
    assert ratio["value"] == pytest.approx(2.0, rel=0.1)
    assert ratio["verdict"] == REPRODUCED
    assert judge("mlp_enorm", table(RUNS["mlp_depth"]))["value"] == 1.0
