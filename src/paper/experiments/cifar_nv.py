"""Figure 3: training and test curves of CIFAR-NV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import plotting
from paper.aggregate import LACKING, LEARNT, trained
from paper.experiments.base import Experiment, Runs
from paper.lazy import pd
from paper.settings import Block, Fraction, MethodNames, SeedList, TrainingGrid, grids, model_validator, plain
from paper.verdicts import (
    AT_MOST,
    LEVELS,
    LR,
    NO,
    OURS,
    PARTLY,
    YES,
    Claim,
    Estimate,
    Finding,
    NotMeasured,
    accuracy_gain,
    decide,
    head_starts,
    of,
    over_cases,
    runs,
    some,
)


class MoreSeeds(Block):
    """Seeds that some methods have besides those of all."""

    methods: MethodNames
    seeds: SeedList


class CurveGrid(TrainingGrid):
    """One network, whose curves are smoothed: `smoothing` is the weight of the newest value in the average.

    `more_seeds` are seeds that only some methods have, at every learning rate.
    """

    smoothing: Fraction
    more_seeds: MoreSeeds | None = None

    @model_validator(mode="after")
    def _more_seeds_are_more(self) -> CurveGrid:
        if self.more_seeds is not None:
            if unknown := [name for name in self.more_seeds.methods if name not in self.methods]:
                raise ValueError(f"more_seeds.methods: expected some of methods {self.methods}, got {unknown}")
            if again := [seed for seed in self.more_seeds.seeds if seed in self.seeds]:
                raise ValueError(f"more_seeds.seeds: expected none of seeds {self.seeds}, got {again}")
        return self

    @model_validator(mode="after")
    def _one_network(self) -> CurveGrid:
        model = plain(self.model)
        if ("width" in model and model["kind"] == "mlp") or (
            model["kind"] == "autoencoder" and "compression" not in model
        ):
            raise ValueError(f"model: expected one network, with its hidden widths or compression, got {model}")
        return self


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment, with the curves of every seed."""
    return trained(runs, settings, by_seed=True)


def of_shared_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the rows of seeds that some method lacks; means over seeds stay as they are."""
    rows = table[table["seed"].notna()]
    count = rows.groupby("seed")["method"].nunique()
    return table[~table["seed"].isin(count.index[count < rows["method"].nunique()])]


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Train loss, train accuracy and test accuracy: three panels, a page wide."""
    figure, axes = plotting.panels(1, 3, plotting.PAGE, 2.6)
    table = of_shared_seeds(plotting.at_paper_lr(table))
    plotting.learning(axes, table)
    for place, title in zip(axes, ("Train loss", "Train accuracy", "Test accuracy"), strict=True):
        place.set_title(f"{title}, lr {table['lr'].iloc[0]:g}")
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=plotting.seed_handles(table))
    return figure


ON_THE_WAY = (0.7, 0.9)  # levels of train accuracy
PAPER_BEST = {"pathcond": 80.0, "baseline": 77.0}  # test accuracy in percent


def best_test(rows: pd.DataFrame, method: str) -> pd.Series:
    """Best test accuracy over the epochs, in percent, by seed.

    Raises:
        NotMeasured: the method was left out.
    """
    values = of(rows, method).set_index("seed")["best_test_accuracy"]
    if values.empty:
        raise NotMeasured(f"no {method}")
    return 100 * values


def early(table: pd.DataFrame, value: str = "test_accuracy", level: float | None = None) -> Estimate:
    """How many epochs before the baseline PathCond reaches an accuracy, by default the baseline's last one."""
    found = head_starts(table, value, level).dropna()
    if found.empty:
        raise NotMeasured("the baseline never gets there")
    return Estimate.of(found["early"], "" if found["reached"].all() else AT_MOST, digits=0)


def earlier(table: pd.DataFrame) -> Finding:
    """The claim on epochs saved."""
    table = some(table, lr=LR)
    found = early(table)
    epochs = int(head_starts(table)["epochs"].max())
    text = f"{found} epochs earlier, of {epochs}, at the baseline's last test accuracy{_at_levels(table)}"
    return Finding(text, decide(found, LEVELS["cifar_earlier"]), found, "epochs")


def _at_levels(table: pd.DataFrame) -> str:
    """How many epochs earlier PathCond reaches lower train accuracies, over the seeds where both reach them."""
    texts = []
    for level in ON_THE_WAY:
        found = head_starts(table, "train_accuracy", level)
        found = found[found["reached"]].dropna()
        if len(found):
            texts.append(f"; {found['early'].mean():.0f} at {100 * level:.0f}% train accuracy ({len(found)} seeds)")
    return "".join(texts)


def best_accuracies(table: pd.DataFrame) -> Finding:
    """The claim on both best test accuracies."""
    rows = runs(table, lr=LR)
    ours, base = (Estimate.of(best_test(rows, method), digits=1) for method in ("pathcond", "baseline"))
    off = [Estimate.of(best_test(rows, method) - value) for method, value in PAPER_BEST.items()]
    gain = accuracy_gain(rows, "pathcond", "baseline")
    answer = over_cases(decide(found, LEVELS["cifar_best_test"]) for found in off)
    if answer != YES:
        higher = decide(gain, LEVELS["cifar_best_test_gain"])
        answer = PARTLY if higher == YES else higher
    return Finding(
        f"{ours}% against {base}%", answer, gain, "points more with PathCond", {"pathcond": ours, "baseline": base}
    )


def _not_degraded(table: pd.DataFrame) -> Finding:
    gain = accuracy_gain(runs(table, lr=LR), "pathcond", "baseline")
    return Finding(f"{gain.value:+.1f} points", decide(gain, LEVELS["cifar_generalisation"]), gain, "points")


def _enorm(table: pd.DataFrame) -> Finding:
    rows = runs(table, lr=LR)
    gain = accuracy_gain(rows, "enorm", "baseline")
    text = f"{best_test(rows, 'enorm').mean():.1f}%, {gain.value:+.1f} points from the baseline"
    return Finding(text, decide(gain, LEVELS["cifar_enorm"]), gain, "points")


def all_classes(table: pd.DataFrame) -> Finding:
    """The claim on classes that are never learnt."""
    rows = runs(table, lr=LR)
    most = rows.groupby("seed")["best_train_accuracy"].max()
    if not (most > LEARNT).any():
        raise NotMeasured(f"no run has learnt {100 * LEARNT:.0f}% of its training images")
    lacking = sorted(int(seed) for seed in most.index[~(most > LACKING)])
    share, text = 1 - len(lacking) / len(most), f"{len(most) - len(lacking)} of {len(most)} seeds"
    if lacking:
        seeds = ("seed " if len(lacking) == 1 else "seeds ") + ", ".join(str(seed) for seed in lacking)
        text += f"; with {seeds} no method passes {100 * most[lacking].max():.1f}% of the training images"
    ours, base = (
        set(of(rows[rows["best_train_accuracy"] > LACKING], method)["seed"]) for method in ("pathcond", "baseline")
    )
    cases = {}
    if {"pathcond", "baseline"} <= set(rows["method"]):
        text += f"; all ten are learnt from {len(ours)} seeds with PathCond, {len(base)} with the baseline"
        text += f" and {len(ours & base)} with both"
    if ours & base:
        both = rows[rows["seed"].isin(ours & base)]
        cases = {method: Estimate.of(best_test(both, method), digits=1) for method in ("pathcond", "baseline")}
        text += f", where the best test accuracies are {cases['pathcond']}% against {cases['baseline']}%"
    return Finding(text, YES if not lacking else PARTLY if share >= 0.5 else NO, cases=cases)


_CLAIMS = (
    Claim(
        "cifar_earlier",
        "On CIFAR-NV, PathCond gets near its best test accuracy about 20 epochs before the baseline",
        "about 20",
        "first epoch at which a seed's smoothed test accuracy reaches the baseline's final one, baseline minus "
        "PathCond",
        earlier,
    ),
    Claim(
        "cifar_best_test",
        "CIFAR-NV's best test accuracy is 80% with PathCond, 77% without",
        "80% against 77%",
        "best test accuracy of a run minus the paper's number, in points, for both methods; otherwise partly if "
        "PathCond is at least a point above the baseline",
        best_accuracies,
    ),
    Claim(
        "cifar_generalisation",
        "The faster training of CIFAR-NV does not cost test accuracy",
        "no loss",
        "best test accuracy over the epochs, PathCond minus baseline, in points",
        _not_degraded,
    ),
    Claim(
        "cifar_enorm",
        "On CIFAR-NV, ENorm's best test accuracy equals the baseline's",
        "no gain, 77% both",
        "best test accuracy over the epochs, ENorm minus baseline, in points",
        _enorm,
    ),
    Claim(
        "cifar_all_classes",
        "From every start CIFAR-NV learns all ten classes at lr 1e-3",
        "not discussed",
        "some method classifies more than 90.1% of the training images correctly, which takes all ten classes; all "
        "seeds: holds, at least half of them: holds partly",
        all_classes,
        OURS,
    ),
)


EXPERIMENT = Experiment(
    name="cifar_nv",
    title="Training and test curves of CIFAR-NV",
    where="Figure 3",
    caption=(
        "CIFAR-NV on CIFAR-10 over {epochs} epochs: loss (a) and accuracy (b) on the training images, accuracy on the "
        "test images (c), smoothed by an exponential moving average with factor {smoothing:g}. Thin lines are seeds, "
        "thick lines their means. A seed from which no method learns all ten classes is dotted and not in the mean."
    ),
    settings=CurveGrid,
    plot=plot,
    claims=_CLAIMS,
    grids=grids,
    table=table,
)
