"""Epochs to the target of MLPs by depth, and the curves of one of them."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves

PAPER = (
    "Left: epochs of SGD until 99% of the training images are right, for MLPs of 2 to 8 hidden layers on CIFAR-10, "
    "against their number of parameters. Middle and right: accuracy and loss on the training images for three hidden "
    "layers. Means over seeds; bars and bands are one standard deviation."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `mlp_depth`.

    Args:
        table: panels curve, run and cell of MLPs (see `paper.curves`).

    Returns:
        Three panels, a page wide.
    """
    return curves.by_depth(table)
