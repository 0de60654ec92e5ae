"""A figure as the program draws it, for the tests of figures."""

import io

from matplotlib import pyplot

from paper.figures import style


def drawn(plot, table):
    """The figure, drawn to the end with its line below; the table is as before, and matplotlib holds nothing of it."""
    before = table.copy()
    with style.look(8.0):
        figure = plot(table)
        style.stamp(figure, "scale: tiny")
        figure.savefig(io.BytesIO(), format="png")
    assert table.equals(before)
    assert pyplot.get_fignums() == []
    return figure
