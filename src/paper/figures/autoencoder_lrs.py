"""Final loss of autoencoders and the rescaling they ask for, by compression, one column a learning rate."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "MNIST autoencoders by compression factor, one column a learning rate. Top: loss on the training images after the "
    "last epoch. Bottom: largest log-rescaling at the start, the same for every rate; the paper plots its double."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `autoencoder_lrs`.

    Args:
        table: panels run and cell of autoencoders at several learning rates (see `paper.curves`).

    Returns:
        Two panels a learning rate, a page wide.
    """
    lrs = sorted(set(table["lr"]), reverse=True)
    figure, axes = style.panels(2, len(lrs), style.PAGE, 3.7, sharex=True, height_ratios=(1.4, 1))
    for number, lr in enumerate(lrs):
        top, bottom = axes[number], axes[len(lrs) + number]
        curves.compression(top, bottom, table[table["lr"] == lr])
        top.set_title(f"lr {lr:g}")
        if number:
            top.set_ylabel("")
            bottom.set_ylabel("")
    curves.note_twice(axes[len(lrs)])
    curves.legend(figure, table)
    return figure
