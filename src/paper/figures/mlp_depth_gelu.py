"""Epochs to the target of MLPs with GELU by depth, and the curves of one of them."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves

PAPER = (
    "As the figure of MLPs by depth, with GELU in place of ReLU: epochs to 99% train accuracy against parameters, "
    "then accuracy and loss for three hidden layers. Log-scales are kept within 5."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `mlp_depth_gelu`.

    Args:
        table: panels curve, run and cell of MLPs (see `paper.curves`).

    Returns:
        Three panels, a page wide.
    """
    return curves.by_depth(table)
