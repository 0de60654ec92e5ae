"""Figure 2: epochs to the target of MLPs by depth, and the curves of one of them."""

from __future__ import annotations

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import pd
from paper.settings import ShownDepthGrid, grids
from paper.verdicts import AT_LEAST, AT_MOST, BASELINE, END, LR, PATHCOND, Claim, Estimate, Estimates, NotMeasured

DEPTH = 3  # hidden layers where the paper's gain is largest
SMALL, LARGE = 2.5e6, 3.25e6  # parameters of the networks the paper calls equal


def _ratios(table: pd.DataFrame, fast: str = PATHCOND) -> Estimates:
    return verdicts.epochs_ratios(verdicts.runs(table, lr=LR), "hidden_layers", fast)


def _largest(table: pd.DataFrame) -> Estimate:
    found = {depth: ratio for depth, ratio in _ratios(table).items() if ratio is not None and ratio.note != END}
    if not found:
        raise NotMeasured("no depth at which a target is met")
    depth, ratio = max(found.items(), key=lambda entry: entry[1].value)
    return verdicts.noted(ratio, f"{depth:g} hidden layers")


def _above_others(table: pd.DataFrame) -> Estimates:
    """Ratio of epochs at three hidden layers less that at every other depth, paired by seed."""
    pairs = {}
    for depth, part in verdicts.by(verdicts.runs(table, lr=LR), "hidden_layers"):
        pairs[depth] = verdicts.bounds_by_seed(verdicts.of(part, BASELINE), verdicts.of(part, PATHCOND))
    here = pairs.pop(DEPTH, None)
    if here is None or not pairs:
        raise NotMeasured(f"no ratio at {DEPTH} hidden layers and at another depth")
    return {depth: _difference(here, there) for depth, there in pairs.items()}


def _difference(here: tuple[pd.Series, str, str], there: tuple[pd.Series, str, str] | None) -> Estimate | None:
    if there is None or here[2] != there[2]:
        return None
    bounds = {here[1], {AT_LEAST: AT_MOST, AT_MOST: AT_LEAST, "": ""}[there[1]]} - {""}
    difference = (here[0] - there[0]).dropna()
    return None if len(bounds) > 1 or difference.empty else Estimate.of(difference, next(iter(bounds), ""))


def _trend_of_scales(table: pd.DataFrame) -> Estimate:
    rows = verdicts.of(verdicts.runs(table, lr=LR), PATHCOND)
    scales = rows.pivot(index="seed", columns="hidden_layers", values="max_log_scale").dropna()
    if scales.shape[1] < 3 or scales.empty:
        raise NotMeasured("fewer than three depths show no trend")
    return verdicts.correlation([verdicts.rank(list(scales), list(values)) for values in scales.to_numpy()])


def _parameters(table: pd.DataFrame) -> Estimate:
    rows = verdicts.runs(table, lr=LR)
    sizes = {asked: min(rows["parameters"], key=lambda size: abs(size - asked)) for asked in (SMALL, LARGE)}
    for asked, size in sizes.items():
        if abs(size - asked) > 0.05 * asked:
            raise NotMeasured(f"no network of about {asked / 1e6:g} million parameters")
    small, large = (rows[rows["parameters"] == size] for size in sizes.values())
    found = verdicts.bounds_by_seed(verdicts.of(large, BASELINE), verdicts.of(small, PATHCOND))
    if found is None or found[2]:
        raise NotMeasured("one of them misses the target")
    return Estimate.of(*found[:2])


def _test_accuracy(table: pd.DataFrame) -> dict[str, Estimate]:
    """Gains in test accuracy, means over the depths: of the best epoch, and of the last one."""
    found = {}
    for name, column in (("best epoch", "best_test_accuracy"), ("last epoch", "final_test_accuracy")):
        depths = verdicts.by(verdicts.runs(table, lr=LR), "hidden_layers")
        gains = {depth: 100 * verdicts.paired(part, column, PATHCOND, BASELINE) for depth, part in depths}
        found[name] = Estimate.of(pd.DataFrame(gains).dropna().mean(axis=1))
    return found


_RATIO = "ratio of epochs to 99% train accuracy, baseline over {}, paired by seed"
_CLAIMS = (
    Claim(
        "mlp_speedup",
        "PathCond brings MLPs on CIFAR-10 to 99% train accuracy in up to 1.5 times fewer epochs at lr 1e-3",
        "up to 1.5",
        _RATIO.format("PathCond") + ", at the depth where it is largest; more than the paper's gain also counts",
        _largest,
        verdicts.at_least(1.35),  # the paper's 1.5, less 10%
        unit="times",
    ),
    Claim(
        "mlp_strongest_at_3",
        "The gain is largest at three hidden layers",
        "at 3",
        "ratio of epochs at 3 hidden layers minus that at another depth, paired by seed",
        _above_others,
        verdicts.above(0.0),
        cases="other depth",
    ),
    Claim(
        "mlp_deeper",
        "Deeper MLPs gain too",
        "modest but consistent",
        _RATIO.format("PathCond"),
        lambda table: {depth: ratio for depth, ratio in _ratios(table).items() if depth > DEPTH},
        verdicts.above(1.0),
        unit="times",
        cases="depth",
    ),
    Claim(
        "mlp_deep_rescaling",
        "Deep networks gain less because their widths are nearly constant, so that there is less to rescale",
        "given as the explanation",
        "rank correlation of the largest |log lambda| with depth, mean over seeds",
        _trend_of_scales,
        verdicts.below(0.0),
        unit="rank correlation",
    ),
    Claim(
        "mlp_parameters",
        "An MLP of 2.5 million parameters with PathCond trains as fast as one of 3.25 million without",
        "equal",
        "ratio of epochs: the baseline of the network nearest to 3.25 million parameters over PathCond with the one "
        "nearest to 2.5 million",
        _parameters,
        verdicts.at_least(0.95),
        unit="times",
    ),
    Claim(
        "mlp_enorm",
        "ENorm does not speed up the training of MLPs",
        "no gain",
        _RATIO.format("ENorm"),
        lambda table: _ratios(table, "enorm"),
        verdicts.at_most(1.05),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "mlp_generalization",
        "The faster training of MLPs at lr 1e-3 does not cost test accuracy",
        "test accuracy, PathCond minus baseline, mean over the depths, of the best epoch and of the last one",
        _test_accuracy,
        verdicts.at_least(-0.5),
        paper="said of CIFAR-NV",
        unit="points",
        cases="epoch",
    ),
)


EXPERIMENT = Experiment(
    name="mlp_depth",
    title="Faster training of fully connected networks",
    where="Figure 2",
    caption=(
        "Epochs of SGD until {target:.0%} of the training images are classified correctly, against the number of "
        "parameters, for MLPs of {hidden_layers_min} to {hidden_layers_max} hidden layers on CIFAR-10 (a). Accuracy "
        "(b) and loss (c) on the training images with {shown} hidden layers. Means over {seeds_count} seeds; bars and "
        "bands are one standard deviation. Open markers above the end of training: runs that did not reach the target."
    ),
    settings=ShownDepthGrid,
    plot=plotting.by_depth,
    claims=_CLAIMS,
    grids=grids,
    table=trained,
)
