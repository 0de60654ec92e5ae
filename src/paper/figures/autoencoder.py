"""Final loss of autoencoders and the rescaling they ask for, by compression."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "MNIST autoencoders by compression factor. Top: loss on the training images after the last epoch. Bottom: largest "
    "log-rescaling at the start, of which the paper plots the double. Mean and deviation over seeds."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `autoencoder`.

    Args:
        table: panels run and cell of autoencoders (see `paper.curves`).

    Returns:
        Two panels above each other, a column wide.
    """
    figure, (top, bottom) = style.panels(2, 1, style.COLUMN, 3.9, sharex=True, height_ratios=(1.4, 1))
    table = curves.at_paper_lr(table)
    curves.compression(top, bottom, table)
    top.set_title(f"Final train loss, lr {table['lr'].iloc[0]:g}")
    bottom.set_title("Largest log-rescaling at the start")
    curves.note_twice(bottom)
    curves.legend(figure, table)
    return figure
