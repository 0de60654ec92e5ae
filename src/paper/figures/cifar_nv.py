"""Training and test curves of CIFAR-NV."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "CIFAR-NV on CIFAR-10, over the epochs: loss and accuracy on the training images, accuracy on the test images. "
    "Smoothed by an exponential moving average with factor 0.2. Means over seeds; bands are one standard deviation, "
    "cut off at 30% of a mean loss."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `cifar_nv`.

    Args:
        table: panels curve and cell (see `paper.curves`), smoothed.

    Returns:
        Three panels, a page wide.
    """
    figure, axes = style.panels(1, 3, style.PAGE, 2.5)
    table = curves.at_paper_lr(table)
    curves.learning(axes, table)
    for place, title in zip(axes, ("Train loss", "Train accuracy", "Test accuracy"), strict=True):
        place.set_title(f"{title}, lr {table['lr'].iloc[0]:g}")
    curves.legend(figure, table, markers=False)
    return figure
