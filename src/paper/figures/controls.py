"""Epochs to the target and final loss against the learning rate, one curve a method: what the gain is made of."""

import pandas as pd
from matplotlib.figure import Figure

from paper.figures import curves, style

PAPER = (
    "Epochs until 99% of the training images are right, for two MLPs against the learning rate, one curve a method: "
    "PathCond, its two sides alone, the form that keeps the function of BatchNorm networks, and the optimum in place "
    "of ten sweeps. Then the final loss of the autoencoder against the learning rate. Means over seeds; bars are one "
    "standard deviation."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `controls`.

    Args:
        table: panels run and cell of MLPs and autoencoders at several learning rates (see `paper.curves`).

    Returns:
        One panel a network, two side by side, a page wide.
    """
    networks = table.drop_duplicates("network")[["network", "hidden_layers", "compression"]].to_dict("records")
    rows = -(-len(networks) // 2)
    figure, axes = style.panels(rows, 2, style.PAGE, 0.4 + 2.4 * rows)
    for place, network in zip(axes, networks, strict=False):
        one = table[table["network"] == network["network"]]
        curves.rates_axis(place, one)
        if pd.notna(network["hidden_layers"]):
            curves.reach(place, one, "lr")
            curves.epochs_axis(place, one, log=True)
            place.set_title(f"MLP, {network['hidden_layers']:.0f} hidden layers")
        else:
            curves.settled(place, one, "lr", "final_train_loss")
            place.set(title=f"Autoencoder, compression {network['compression']:g}", ylabel="final train loss")
    curves.legend(figure, table, axes[-1] if len(axes) > len(networks) else None)
    return figure
