"""Ours: CIFAR-NV as in the authors' code: on all training images and from their start weights.

The paper's text keeps 10,000 of the images for validation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment, Runs
from paper.experiments.cifar_nv import PAPER_BEST, CurveGrid, all_classes, best_accuracies, earlier
from paper.lazy import pd
from paper.settings import Block, grids_of_blocks, model_validator
from paper.verdicts import LEVELS, LR, Claim, Estimate, Finding, NotMeasured, decide, of, runs, some

PANELS = {
    "train_loss": "Train loss, eval mode",
    "running_train_loss": "Train loss, train mode",
    "test_accuracy": "Test accuracy",
}
VARIANTS = {"authors": "authors'\nstarts", "other_starts": "other\nstarts", "tf32": "other starts,\nTF32"}
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
    _best(axes[3], table)
    more = plotting.seed_handles(curves)
    if axes[2].get_ylim()[1] > min(PAPER_BEST.values()) / 2:  # else, in miniature, they would only squeeze the curves
        for place in axes[2:]:
            for method, best in PAPER_BEST.items():
                place.axhline(best, color=plotting.METHODS[method].colour, linewidth=0.7, linestyle="--", zorder=1)
        more.append(plotting.handle(color=plotting.GREY, linewidth=0.7, linestyle="--", label="the paper's best"))
    plotting.letters(axes)
    plotting.legend(figure, table, markers=False, more=more)
    return figure


def _best(axes: plotting.Axes, table: pd.DataFrame) -> None:
    """The best test accuracy of every seed, and their mean as a line, by variant and method."""
    rows = runs(table)
    names = [name for name in VARIANTS if name in set(rows["variant"])]
    for number, name in enumerate(plotting.methods(rows)):
        method = plotting.METHODS[name]
        for place, variant in enumerate(names):
            values = 100 * of(rows[rows["variant"] == variant], name)["best_test_accuracy"]
            at = place + 0.16 * (2 * number - 1)
            axes.plot([at] * len(values), values, linestyle="", marker=method.marker, color=method.colour, alpha=0.7)
            axes.plot([at - 0.12, at + 0.12], [values.mean()] * 2, color=method.colour, linewidth=1.2)
    axes.set_xticks(range(len(names)), [VARIANTS[name] for name in names])
    axes.set(xlim=(-0.6, len(names) - 0.4), ylabel="best test accuracy (%)", title="Best test accuracy")


# Claims


def _among(variant: str, judge: Callable[[pd.DataFrame], Finding]) -> Callable[[pd.DataFrame], Finding]:
    return lambda table: judge(some(table, variant=variant))


def _precision(table: pd.DataFrame) -> Finding:
    """The claim on TF32, over the pairs of a seed and a method that both precisions have."""
    rows = runs(table, lr=LR)
    pairs = {}
    for name, label in (("pathcond", "PathCond"), ("baseline", "baseline")):
        fine, coarse = (of(some(rows, variant=variant), name).set_index("seed") for variant in ("tf32", "other_starts"))
        for seed in sorted(set(fine.index) & set(coarse.index)):
            pairs[f"{label}, seed {seed:.0f}"] = [100 * part.at[seed, "best_test_accuracy"] for part in (fine, coarse)]
    if len(pairs) < 2:
        raise NotMeasured("one pair has no spread")
    off = Estimate.of([fine - coarse for fine, coarse in pairs.values()])
    text = "; ".join(f"{pair}: {fine:.1f}% and {coarse:.1f}%" for pair, (fine, coarse) in pairs.items())
    return Finding(text, decide(off, LEVELS["cifar_all_precision"]), off, "points more in TF32")


_CLAIMS = (
    Claim.ours(
        "cifar_all_best",
        "From the authors' starts and on all training images, CIFAR-NV's best test accuracy is that of the paper with "
        "PathCond and without",
        "statistic and levels of `cifar_best_test`",
        _among("authors", best_accuracies),
        paper="80% against 77%",
    ),
    Claim.ours(
        "cifar_all_earlier",
        "From the authors' starts and on all training images, PathCond gets near its best test accuracy on CIFAR-NV "
        "about 20 epochs before the baseline, as the paper says",
        "statistic and levels of `cifar_earlier`",
        _among("authors", earlier),
        paper="about 20",
    ),
    Claim.ours(
        "cifar_all_learnt",
        "From each of the authors' starts CIFAR-NV learns all ten classes at lr 1e-3",
        "statistic and levels of `cifar_all_classes`",
        _among("authors", all_classes),
        paper="not discussed",
    ),
    Claim.ours(
        "cifar_all_starts",
        "On all training images, CIFAR-NV's best test accuracies are those of the paper from other starts too, if all "
        "classes are learnt",
        "statistic and levels of `cifar_best_test`, over seeds of ours that learn all classes",
        _among("other_starts", best_accuracies),
        paper="80% against 77%",
    ),
    Claim.ours(
        "cifar_all_precision",
        "Products in TF32 in place of bfloat16 do not change CIFAR-NV's best test accuracy",
        "best test accuracy in TF32 minus that in bfloat16, in points, over pairs with the same method and start",
        _precision,
        paper="not discussed",
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
        "factor {authors[smoothing]:g}. Thin lines are seeds, thick lines their means. Highest test accuracy of all "
        "epochs, a marker per seed and a line at their mean: from the authors' starts, from other starts, and from one "
        "of these with products in TF32 in place of bfloat16 (d). Dashed: the paper's best test accuracies with "
        "PathCond and without."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=table,
)
