"""Training and test curves of CIFAR-NV, one row a learning rate."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "The curves of CIFAR-NV, smoothed and with bands as above, one row a learning rate: loss and accuracy on the "
    "training images, accuracy on the test images; 128 epochs, and 500 at lr 0.0001."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `cifar_nv_lrs`.

    Args:
        table: panels curve and cell at several learning rates (see `paper.curves`), smoothed.

    Returns:
        Three panels a learning rate, a page wide.
    """
    lrs = sorted(set(table["lr"]), reverse=True)
    figure, axes = style.panels(len(lrs), 3, style.PAGE, 0.5 + 1.5 * len(lrs))
    for number, lr in enumerate(lrs):
        row = axes[3 * number : 3 * number + 3]
        curves.learning(row, table[table["lr"] == lr])
        row[1].set_title(f"lr {lr:g}")
        if number < len(lrs) - 1:
            for place in row:
                place.set_xlabel("")
    curves.legend(figure, table, markers=False)
    return figure
