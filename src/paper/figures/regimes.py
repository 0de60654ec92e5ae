"""Largest log-rescaling against the regularity of the widths, one curve a variance."""

from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from paper.figures import style

PAPER = (
    "Largest log-rescaling, |log λ|, that PathCond asks for at initialisation, against how even the widths of the "
    "hidden layers are (Dirichlet concentration), for several variances of the weights. Medians over networks; bands "
    "are the quartiles."
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `regimes`.

    Args:
        table: variance, alpha, median, low, high (quartiles), n.

    Returns:
        One panel, a column wide.
    """
    figure, (axes,) = style.panels(1, 1, style.COLUMN, 2.5)
    for (variance, rows), (colour, marker) in zip(table.groupby("variance"), cycle(style.SERIES), strict=False):
        rows = rows.sort_values("alpha")
        alpha, median, low, high = (rows[name].tolist() for name in ("alpha", "median", "low", "high"))
        label = f"variance {variance:g}"
        style.band(axes, alpha, median, low, high, colour, label, marker)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel(r"Dirichlet $\alpha$ (uneven to even layer widths)")
    axes.set_ylabel(r"largest $|\log\,\lambda|$")
    axes.set_title("Rescaling needed at initialisation")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.legend(loc="lower left", borderaxespad=0.2)
    return figure
