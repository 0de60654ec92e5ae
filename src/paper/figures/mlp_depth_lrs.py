"""Epochs to the target of MLPs by depth, one panel a learning rate."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "Epochs until 99% of the training images are right against the number of parameters, for MLPs of 2 to 8 hidden "
    "layers, one panel a learning rate. Means over seeds; bars are one standard deviation."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `mlp_depth_lrs`.

    Args:
        table: panels run and cell of MLPs at several learning rates (see `paper.curves`).

    Returns:
        One panel a learning rate, a page wide.
    """
    lrs = sorted(set(table["lr"]))
    columns = min(3, len(lrs))
    rows = -(-len(lrs) // columns)
    figure, axes = style.panels(rows, columns, style.PAGE, 0.6 + 1.9 * rows, sharey=True)
    for number, (place, lr) in enumerate(zip(axes, lrs, strict=False)):
        one = table[table["lr"] == lr]
        curves.reach(place, one, "parameters")
        curves.parameters_axis(place, one)
        curves.epochs_axis(place, table, log=True)
        place.set_title(f"lr {lr:g}")
        if number % columns:
            place.set_ylabel("")
    for empty in axes[len(lrs) + 1 :]:
        empty.set_axis_off()
    curves.legend(figure, table, axes[len(lrs)] if len(axes) > len(lrs) else None)
    return figure
