"""Final loss of autoencoders and the rescaling they ask for, by compression, one column a learning rate."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "MNIST autoencoders by compression factor: loss on the training images after the last epoch, one panel a learning "
    "rate, each with its own logarithmic axis. Last panel: largest |log λ| at the start, the same for every rate; the "
    "paper plots its double. Means over seeds; bars are one standard deviation."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `autoencoder_lrs`.

    Args:
        table: panels run and cell of autoencoders at several learning rates (see `paper.curves`).

    Returns:
        One panel a learning rate and one for the start, a page wide.
    """
    lrs = sorted(set(table["lr"]), reverse=True)
    figure, (*trained, start) = style.panels(1, len(lrs) + 1, style.PAGE, 2.6)
    curves.final_losses(trained, [table[table["lr"] == lr] for lr in lrs])
    for place, lr in zip(trained, lrs, strict=True):
        place.set_title(f"lr {lr:g}")
    curves.rescaling(start, table[table["lr"] == lrs[0]])  # the same at every rate
    start.set_title("rescaling at the start")
    curves.legend(figure, table)
    return figure
