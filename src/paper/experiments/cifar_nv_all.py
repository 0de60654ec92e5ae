"""Ours: CIFAR-NV as in the authors' code: on all training images and from their start weights.

The paper's text keeps 10,000 of the images for validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import CurveGrid
from paper.lazy import pd
from paper.settings import Block, grids_of_blocks, model_validator
from paper.verdicts import BASELINE, LR, PATHCOND, Claim, Estimate, Estimates, NotMeasured, above, at_least

PANELS = {
    "train_loss": "Train loss, eval mode",
    "running_train_loss": "Train loss, train mode",
    "test_accuracy": "Test accuracy",
}
VARIANTS = {"authors": "authors'\nstarts", "other_starts": "other\nstarts", "tf32": "other starts,\nTF32"}
PAPER_BEST = {"pathcond": 80.0, "baseline": 77.0}  # test accuracy in percent
NEAR_ACCURACY, NEAR_LOSS = 0.95, 0.1  # train accuracy, and train loss in train mode, near the end of training
DISTINCT = ("seeding", "precision")  # settings that tell the blocks apart


class Settings(Block):
    """Training grids: from the authors' start weights, from other ones, and with TF32 in place of bfloat16."""

    authors: CurveGrid
    other_starts: CurveGrid | None = None
    tf32: CurveGrid | None = None

    @model_validator(mode="after")
    def _blocks_differ(self) -> Settings:
        seen: dict[tuple, str] = {}
        for name in type(self).model_fields:
            if (block := getattr(self, name)) is not None:
                same = seen.setdefault(tuple(getattr(block, key) for key in DISTINCT), name)
                if same != name:
                    raise ValueError(f"{name}: expected another seeding or precision than {same}, got the same")
        return self


def table(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained experiment, with the curves of every seed; `variant` is the block of the settings."""
    parts = []
    for name, block in settings.items():
        if block is not None:
            asked = [block.get(key) for key in DISTINCT]
            own = [run for run in runs if [run[1]["spec"].get(key) for key in DISTINCT] == asked]
            parts.append(trained(own, block, by_seed=True).assign(variant=name))
    return pd.concat(parts, ignore_index=True)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """Train loss in both modes, test accuracy, and the best test accuracy of each variant: four panels, a page wide."""
    figure, axes = plotting.panels(2, 2, plotting.PAGE, 4.6)
    curves = table[table["variant"] == "authors"]
    for place, (value, title) in zip(axes, PANELS.items(), strict=False):
        plotting.by_seed(place, curves, value)
        place.set_title(title)
    losses = [place.get_ylim() for place in axes[:2]]
    for place in axes[:2]:
        place.set_ylim(min(low for low, _ in losses), max(high for _, high in losses))
    best = verdicts.runs(table)
    found = {name: best[best["variant"] == name] for name in VARIANTS}
    plotting.best_tests(axes[3], {VARIANTS[name]: rows for name, rows in found.items() if len(rows)})
    axes[3].set_title("Best test accuracy")
    more = plotting.seed_handles(curves)
    if axes[2].get_ylim()[1] > min(PAPER_BEST.values()) / 2:  # else, in miniature, they would only squeeze the curves
        for place in axes[2:]:
            for method, best in PAPER_BEST.items():
                place.axhline(best, color=plotting.METHODS[method].colour, linewidth=0.7, linestyle="--", zorder=1)
        more.append(plotting.handle(color=plotting.GREY, linewidth=0.7, linestyle="--", label="the paper's best"))
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=more)
    return figure


# Claims


def _leads(table: pd.DataFrame) -> Estimates:
    """How many epochs earlier PathCond gets near the end of training, from all starts that learn every class."""
    rows = table[table["variant"].isin(["authors", "other_starts"]) & (table["lr"] == LR)]
    rows = rows.assign(seed=rows["variant"] + rows["seed"].astype(str))
    return {
        f"train loss {NEAR_LOSS:g}": verdicts.head_start(rows, "running_train_loss", NEAR_LOSS),
        f"{NEAR_ACCURACY:.0%} train accuracy": verdicts.head_start(rows, "train_accuracy", NEAR_ACCURACY),
    }


def _best_test(table: pd.DataFrame) -> Estimates:
    rows = verdicts.runs(table, variant="authors", lr=LR)
    best = 100 * verdicts.of(rows, PATHCOND).set_index("seed")["best_test_accuracy"]
    if best.empty:
        raise NotMeasured("no PathCond")
    gain = 100 * verdicts.paired(rows, "best_test_accuracy", PATHCOND, BASELINE)
    printed = PAPER_BEST[PATHCOND]
    return {
        f"PathCond, minus {printed:g}": Estimate.of(best - printed),
        "gain, minus 3": Estimate.of(gain - (printed - PAPER_BEST[BASELINE])),
    }


_LEAD = (
    f"first epoch at which a seed's smoothed train loss, measured in train mode, is {NEAR_LOSS:g}, and at which its "
    f"train accuracy is {NEAR_ACCURACY:.0%}, baseline minus PathCond; on all images, from the authors' starts and ours"
)
_CLAIMS = (
    Claim(
        "cifar_train_faster",
        "On CIFAR-NV, PathCond lowers the train loss and raises the train accuracy faster",
        "both faster",
        _LEAD,
        _leads,
        above(0.0),
        unit="epochs earlier",
        cases="level",
    ),
    Claim(
        "cifar_earlier",
        "On CIFAR-NV, PathCond gets near its best train loss and accuracy about 20 epochs before the baseline",
        "about 20",
        _LEAD,
        _leads,
        (10.0, 30.0),
        unit="epochs earlier",
        cases="level",
    ),
    Claim(
        "cifar_best_test",
        "CIFAR-NV's best test accuracy is 80% with PathCond, three points more than without",
        "80% against 77%",
        "best test accuracy of PathCond minus 80, and its gain over the baseline minus 3, in points; from the authors' "
        "starts, on all images; more than the paper's also counts",
        _best_test,
        at_least(-1.5),
        unit="points",
        cases="number",
    ),
)


EXPERIMENT = Experiment(
    name="cifar_nv_all",
    title="CIFAR-NV as in the authors' code",
    where="ours",
    caption=(
        "CIFAR-NV trained on {authors[images]:,} images over {authors[epochs]} epochs from the authors' start weights: "
        "loss on the training images measured in eval mode after each epoch (a) and as the mean over the steps of an "
        "epoch in train mode (b), accuracy on the test images (c). Smoothed by an exponential moving average with "
        "factor {authors[smoothing]:g}. Thin lines are seeds, thick lines their medians. Highest test accuracy of all "
        "epochs, a marker per seed and a line at their mean: from the authors' starts, from other starts, and from one "
        "of these with products in TF32 in place of bfloat16 (d). Dashed: the paper's best test accuracies with "
        "PathCond and without."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=table,
    distinct=DISTINCT,
)
