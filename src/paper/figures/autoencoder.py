"""Final loss of autoencoders and the rescaling they ask for, by compression."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "MNIST autoencoders by compression factor. Top: loss on the training images after the last epoch. Bottom: largest "
    "|log λ| at the start; the paper plots its double. Means over seeds; bars are one standard deviation."
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
    curves.final_losses([top], [table])
    curves.rescaling(bottom, table)
    top.set(title=f"Final train loss, lr {table['lr'].iloc[0]:g}", xlabel="")
    bottom.set_title("Largest log-rescaling at the start")
    curves.legend(figure, table)
    return figure
