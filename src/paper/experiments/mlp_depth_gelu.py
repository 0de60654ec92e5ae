"""Appendix: the MLPs of Figure 2 with GELU in place of ReLU."""

from __future__ import annotations

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.settings import ShownDepthGrid, grids
from paper.verdicts import LR, Claim, at_least, epochs_ratios, runs

_CLAIMS = (
    Claim(
        "mlp_gelu_speedup",
        "With GELU in place of ReLU, PathCond shortens training in the same way",
        "as with ReLU",
        "ratio of epochs to 99% train accuracy, baseline over PathCond, paired by seed",
        lambda table: epochs_ratios(runs(table, lr=LR), "hidden_layers"),
        at_least(1.05),
        unit="times",
        cases="depth",
    ),
)


EXPERIMENT = Experiment(
    name="mlp_depth_gelu",
    title="Fully connected networks with GELU",
    where="appendix O",
    caption=(
        "MLPs with GELU in place of ReLU. Epochs until {target:.0%} of the training images are classified correctly "
        "against the number of parameters (a); accuracy (b) and loss (c) with {shown} hidden layers. Every "
        "|u| = 2 |log λ| is kept within {clamp:g}. Means over {seeds_count} seeds; bars and bands are one standard "
        "deviation."
    ),
    settings=ShownDepthGrid,
    plot=plotting.by_depth,
    claims=_CLAIMS,
    grids=grids,
    table=trained,
)
