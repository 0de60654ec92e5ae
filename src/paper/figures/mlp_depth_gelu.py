"""Epochs to the target of MLPs with GELU by depth, and the curves of one of them."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves

PAPER = (
    "The same as for MLPs with ReLU, with GELU in its place: epochs until 99% of the training images are right "
    "against the number of parameters, then accuracy and loss for three hidden layers. |u| = 2 |log λ| is kept within "
    "5. Means over seeds; bars and bands are one standard deviation."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `mlp_depth_gelu`.

    Args:
        table: panels curve, run and cell of MLPs (see `paper.curves`).

    Returns:
        Three panels, a page wide.
    """
    return curves.by_depth(table)
