"""Table 1 drawn: our counts beside the paper's."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.figures import style
from paper.table_1 import TABLE_1

PAPER = (
    "Parameters, hidden units and paths of six networks on images of 32x32 pixels, with a mark at each number that "
    "the paper prints alike. Free units are the scales that can be chosen freely: channels tied by skip connections "
    "share one. Paths are counted with pools left as they are, as the paper has them, and with each input of a pool."
)
NAMES = {
    "mlp": "MLP 3×500",
    "cifar_nv": "CIFAR-NV",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
}
# Heading, place of the column's edge from 0 to 1, alignment.
COLUMNS = (
    ("network", 0.0, "left"),
    ("parameters", 0.25, "right"),
    ("hidden\nunits", 0.365, "right"),
    ("free\nunits", 0.475, "right"),
    ("paths,\npools as they are", 0.66, "right"),
    ("paths,\nin the paper", 0.82, "right"),
    ("paths,\nall", 1.0, "right"),
)


def plot(table: pd.DataFrame) -> Figure:
    """Draw the item `architectures`: the table, with a mark at each number that the paper prints alike.

    Args:
        table: network, parameters, units_table, units_free, paths_paper, paths_all.

    Returns:
        One panel, a page wide.
    """
    rows = len(table) + 2.2
    figure, (axes,) = style.panels(1, 1, style.PAGE, 0.22 * rows + 0.2)
    axes.set(xlim=(0, 1), ylim=(rows, 0))
    axes.set_axis_off()
    for heading, x, side in COLUMNS:
        axes.text(x, 1.35, heading, ha=side, va="bottom", fontweight="bold", linespacing=1.1)
    for y, weight in ((0.05, 1.0), (1.55, 0.6), (len(table) + 1.75, 1.0)):
        axes.axhline(y, color=style.BLACK, linewidth=weight)
    for number, row in enumerate(table.to_dict("records")):
        _row(axes, number + 2.15, row)
    axes.text(1.0, rows, "✓ as the paper prints it", ha="right", va="bottom", fontsize="x-small", color=style.GREEN)
    style.note(figure, "free units: scales that can be chosen freely; channels tied by skip connections share one")
    return figure


def power(number: str) -> str:
    """Text such as 3.84e+12 with its power of ten typeset."""
    digits, exponent = number.split("e")
    return rf"${digits} \times 10^{{{int(exponent)}}}$"


def _row(axes: Axes, y: float, row: dict[str, object]) -> None:
    parameters, units, paths = TABLE_1[str(row["network"])]
    ours = str(row["paths_paper"])
    cells = (
        (NAMES[str(row["network"])], None),
        (f"{row['parameters']:,}", row["parameters"] == parameters),
        (f"{row['units_table']:,}", row["units_table"] == units),
        (f"{row['units_free']:,}", None),
        (power(f"{float(ours):.5e}"), f"{float(ours):.2e}" == paths),
        (power(paths), None),
        (power(f"{float(str(row['paths_all'])):.5e}"), None),
    )
    for (text, agrees), (_, x, side) in zip(cells, COLUMNS, strict=True):
        axes.text(x, y, text, ha=side, va="center")
        if agrees is not None:
            mark, colour = ("✓", style.GREEN) if agrees else ("✗", style.RED)
            axes.text(x + 0.006, y, mark, ha="left", va="center", color=colour)
