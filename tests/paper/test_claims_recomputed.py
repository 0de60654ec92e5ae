"""Claims computed once more from the raw tables of runs, with pandas alone: no code of `paper` takes part."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results/paper"
EPOCHS = 100
FIRST = (0, 1, 2)


@cache
def claims():
    return {claim["id"]: claim for claim in json.loads((ROOT / "docs/claims.json").read_text("utf-8"))}


@cache
def ended(network, lr, epochs=EPOCHS, task="classify", images=None):
    """One row per method and seed: epochs to 99% train accuracy, first and last metrics, best test accuracy."""
    rows = []
    for path in sorted((RUNS / f"train/{task}/{network}").glob(f"*-lr{lr}-*.json")):
        spec = json.loads(path.read_text())["spec"]
        if spec["epochs"] != epochs or (images and spec["images"] != images) or spec.get("precision"):
            continue
        curve = pd.read_csv(path.with_suffix(".csv")).sort_values("epoch")
        row = {"method": spec["method"], "seed": spec["seed"], "seeding": spec.get("seeding", "")}
        row |= {"scale": curve["max_log_scale"].iloc[0], "loss": curve["train_loss"].iloc[-1]}
        if "train_accuracy" in curve:
            met = curve.loc[curve["train_accuracy"] >= 0.99, "epoch"]
            row |= {"reached": met.min(), "best_train": curve["train_accuracy"].max()}
            row |= {"final_train": curve["train_accuracy"].iloc[-1], "final_test": curve["test_accuracy"].iloc[-1]}
            row |= {"best_test": curve["test_accuracy"].max(), "accuracies": curve["train_accuracy"].to_numpy()}
        rows.append(row)
    return pd.DataFrame(rows)


def pair(runs, first, second, column):
    values = [runs[runs["method"] == method].set_index("seed")[column] for method in (first, second)]
    return pd.concat(values, axis=1, join="inner", keys=["first", "second"])


def at_end(runs, first, second):
    """First epoch of both methods with the train accuracy at which the baseline of that seed ended."""
    base = runs[runs["method"] == "baseline"].set_index("seed")["final_train"]
    curves = pair(runs, first, second, "accuracies")
    return curves.apply(lambda row: row.map(lambda values: float(np.argmax(values >= base[row.name]))), axis=1)


def epochs_ratio(runs, slow="baseline", fast="pathcond"):
    both = pair(runs, slow, fast, "reached")
    missed = both.isna().any()
    if missed.all():
        both = at_end(runs, slow, fast)
        missed = both.isna().any()
    both = both.fillna(EPOCHS)
    return both["first"] / both["second"], missed["first"], missed["second"]


def close(case, values, id, bounds=(False, False)):
    """Mean and Student's interval of values against a case of a recorded claim."""
    claim = claims()[id]
    recorded = [claim["value"], *claim["interval"]] if case is None else claim["numbers"][case]
    values = np.asarray(values, dtype=float)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    low = None if bounds[1] else values.mean() - half
    high = None if bounds[0] else values.mean() + half
    assert recorded == pytest.approx([values.mean(), low, high], rel=1e-6, abs=1e-9), (id, case)


DEPTHS = range(2, 9)


@pytest.mark.parametrize("depth", DEPTHS)
def test_mlps_by_depth(depth):
    runs = ended(f"mlp_{depth}x500", "0.001")
    ratio, *missed = epochs_ratio(runs)
    assert len(ratio) == (30 if depth == 8 else 10)
    if depth == 3:
        close(None, ratio, "mlp_speedup", missed)
    if depth > 3:
        close(f"{depth}", ratio, "mlp_deeper", missed)
    if depth not in (2, 3):
        three, *_ = epochs_ratio(ended("mlp_3x500", "0.001"))
        close(f"{depth}", (three - ratio).dropna(), "mlp_strongest_at_3")
    if depth > 2:
        close(f"{depth}", epochs_ratio(runs, fast="enorm")[0], "mlp_enorm")
    gelu, *missed = epochs_ratio(ended(f"mlp_{depth}x500_gelu", "0.001"))
    close(f"{depth}", gelu, "mlp_gelu_speedup", missed)


def test_mlps_over_depths():
    runs = {depth: ended(f"mlp_{depth}x500", "0.001") for depth in DEPTHS}
    for column, case in (("best_test", "best epoch"), ("final_test", "last epoch")):
        pairs = {d: pair(r, "pathcond", "baseline", column) for d, r in runs.items()}
        gains = pd.DataFrame({d: found.diff(axis=1)["second"] for d, found in pairs.items()})
        close(case, -100 * gains.dropna().mean(axis=1), "mlp_generalization")
    scales = pd.DataFrame({d: r[r["method"] == "pathcond"].set_index("seed")["scale"] for d, r in runs.items()})
    ranks = scales.dropna().apply(lambda row: stats.spearmanr(row.index, row).statistic, axis=1)
    claim = claims()["mlp_deep_rescaling"]
    assert claim["value"] == pytest.approx(ranks.mean())
    large = runs[8][runs[8]["method"] == "baseline"].set_index("seed")["reached"]
    small = runs[5][runs[5]["method"] == "pathcond"].set_index("seed")["reached"]
    close(None, (large / small).dropna(), "mlp_parameters")


@pytest.mark.parametrize("depth", DEPTHS)
def test_mlps_by_rate(depth):
    for lr in ("0.0005", "0.001", "0.005", "0.01", "0.1"):
        ratio, *missed = epochs_ratio(ended(f"mlp_{depth}x500", lr))
        some = 30 if depth == 8 else 10 if lr == "0.001" or depth in (2, 3, 5) else 3
        assert len(ratio) == some, "every recorded seed"
        if lr == "0.1":
            close(f"{depth}", ratio, "mlp_lrs_large", missed)
        else:
            close(f"{depth} hidden layers, lr {lr}", ratio, "mlp_lrs_never_hurts", missed)


@pytest.mark.parametrize("depth", [3, 6])
def test_controls(depth):
    runs = ended(f"mlp_{depth}x500", "0.001")
    for id, slow, fast in (
        ("controls_exact", "baseline", "exact"),
        ("controls_optimum", "pathcond", "optimum"),
        ("controls_layer_lrs", "layer_lrs", "pathcond"),
    ):
        ratio, *missed = epochs_ratio(runs[runs["seed"].isin(FIRST)], slow, fast)
        close(f"{depth}", ratio, id, missed)
    saved = runs[runs["seed"].isin(FIRST)].pivot(index="seed", columns="method", values="reached")
    share = (saved["baseline"] - saved["rows"]) / (saved["baseline"] - saved["pathcond"])
    close(f"{depth}", share, "controls_rows")
    for lr in ("0.001", "0.01", "0.03", "0.1"):
        runs = ended(f"mlp_{depth}x500_no_bn", lr)
        ratio, *missed = epochs_ratio(runs)
        assert len(ratio) == 11
        close(f"{depth} hidden layers, lr {lr}", ratio, "controls_no_batchnorm", missed)
        if lr == "0.001":
            gain = pair(runs, "pathcond", "baseline", "final_train")
            close(f"{depth}", 100 * (gain["first"] - gain["second"]), "controls_no_batchnorm_accuracy")


def test_cifar_nv():
    runs = ended("cifar_nv", "0.001", 128, images=40000)
    gain = pair(runs, "pathcond", "baseline", "best_test")
    assert len(gain) == 10
    close(None, 100 * (gain["first"] - gain["second"]), "cifar_generalization")
    enorm = pair(runs, "enorm", "baseline", "best_test")
    close(None, 100 * (enorm["first"] - enorm["second"]), "cifar_enorm")
    assert claims()["cifar_all_classes"]["value"] == (runs.groupby("seed")["best_train"].max() > 0.901).mean()
    runs = ended("cifar_nv", "0.001", 128, images=50000)
    runs = runs[runs["seeding"] == "torch"]
    gain = pair(runs, "pathcond", "baseline", "best_test")
    close("PathCond, minus 80", 100 * gain["first"] - 80, "cifar_best_test")
    close("gain, minus 3", 100 * (gain["first"] - gain["second"]) - 3, "cifar_best_test")


def test_autoencoders():
    gaps, scales = {}, {}
    for factor in (1, 2, 4, 7):
        runs = ended(f"autoencoder_c{factor}", "0.001", 500, "reconstruct")
        both, enorm = pair(runs, "baseline", "pathcond", "loss"), pair(runs, "enorm", "pathcond", "loss")
        close(f"{factor}", both["first"] / both["second"], "autoencoder_loss")
        close(f"ENorm, {factor}", enorm["first"] / enorm["second"], "autoencoder_loss")
        gaps[factor] = both["first"] - both["second"]
        scales[factor] = runs[runs["method"] == "pathcond"].set_index("seed")["scale"]
    slopes = pd.DataFrame(gaps).apply(lambda row: np.polyfit(np.log2([1, 2, 4, 7]), row, 1)[0], axis=1)
    close(None, slopes, "autoencoder_compression")
    for low, high in ((1, 2), (2, 4), (4, 7)):
        close(f"{low} to {high}", scales[high] - scales[low], "autoencoder_rescaling")


def specs(network):
    for path in RUNS.glob(f"train/*/{network}/*.json"):
        yield json.loads(path.read_text())["spec"], pd.read_csv(path.with_suffix(".csv"))


def test_cifar_nv_at_its_best_rates():
    rows = [{**spec, "best": 100 * curve["test_accuracy"].max()} for spec, curve in specs("cifar_nv")]
    runs = pd.DataFrame(rows).query("images == 40000").sort_values("epochs")  # the longest are last
    runs = runs.groupby(["method", "lr", "seed"])["best"].last()
    means = runs.unstack("seed").dropna(axis=1).mean(axis=1)
    best = {method: means[method].idxmax() for method in ("baseline", "pathcond")}
    assert not {*best.values()} & {means["baseline"].index.min(), means["baseline"].index.max()}
    base, other = (runs[method, lr] for method, lr in best.items())
    close("CIFAR-NV", (other - base).dropna(), "tuned_cifar_nv")


COMMON = {
    "VGG-11-BN": "vgg11_bn", "VGG-16-BN": "vgg16_bn", "ResNet-18": "resnet18", "DenseNet": "densenet", "GPT": "gpt",
    "MobileNet": "mobilenetv1", "MobileNetV2": "mobilenetv2", "ViT-tiny": "vit_tiny", "five convolutions": "plain5_bn",
}  # fmt: skip


def test_common_networks():
    there = set()
    for label, network in COMMON.items():
        rows = [{**spec, **curve.iloc[-1]} for spec, curve in specs(network) if not spec.get("unequal")]
        for epochs, runs in pd.DataFrame(rows).groupby("epochs"):
            test = {}
            for method in ("baseline", "half"):
                mine = runs[runs["method"] == method]
                means = mine.pivot(index="seed", columns="lr", values="validation_accuracy").dropna().mean()
                test[method] = 100 * mine[mine["lr"] == means.idxmax()].set_index("seed")["test_accuracy"]
                assert means.idxmax() not in (means.index[0], means.index[-1])
            case = label if epochs == 2 else f"{label}, {epochs} epochs"
            close(case, (test["half"] - test["baseline"]).dropna(), "practice_no_harm")
            there.add(case)
    assert there == set(claims()["practice_no_harm"]["numbers"])
