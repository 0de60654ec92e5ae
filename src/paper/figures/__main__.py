"""Draw an item: python -m paper.figures ITEM TABLE --output STEM writes STEM.pdf and STEM.png."""

import argparse
import importlib
import io
from pathlib import Path

import pandas as pd

from paper import cli, store
from paper.errors import PaperError
from paper.figures import style
from paper.plan import ITEMS


def picture(item: str, table: pd.DataFrame, stamp: str, suffix: str, dpi: int, font_size: float) -> bytes:
    """An item drawn from its table, as the bytes of a PDF or PNG file that holds no date or version.

    Args:
        item: name of the item.
        table: its aggregated table.
        stamp: the line printed below.
        suffix: ``pdf`` or ``png``.
        dpi: of a PNG file.
        font_size: points.
    """
    metadata = {"CreationDate": None} if suffix == "pdf" else {"Software": None}
    with style.look(font_size):
        figure = importlib.import_module(f"paper.figures.{item}").plot(table)
        style.stamp(figure, stamp)
        # Through memory: the PNG writer hides the reason when a write fails, such as a full disk.
        drawn = io.BytesIO()
        figure.savefig(drawn, format=suffix, dpi=dpi, metadata=metadata)
    return drawn.getvalue()


def main() -> None:
    """Read the command line, write both files."""
    parser = argparse.ArgumentParser(prog="python -m paper.figures", description=__doc__)
    parser.add_argument("item", choices=ITEMS)
    parser.add_argument("table", type=Path)
    parser.add_argument("--output", type=Path, required=True, metavar="STEM")
    parser.add_argument("--stamp", default="", help="the line printed below")
    parser.add_argument("--dpi", type=int, default=200)
    parser.add_argument("--font-size", type=float, default=8.0)
    arguments = parser.parse_args()
    table = store.read_table(arguments.table)
    for name, value in (("dpi", arguments.dpi), ("font-size", arguments.font_size)):
        if not 0 < value < 10_000:
            raise PaperError(f"--{name}: expected a positive number below 10,000, got {value}.")
    with store.of_item(arguments.table, table):
        for suffix in ("pdf", "png"):
            drawn = picture(arguments.item, table, arguments.stamp, suffix, arguments.dpi, arguments.font_size)
            store.write_bytes(arguments.output.with_suffix(f".{suffix}"), drawn)


if __name__ == "__main__":
    cli.run(main)
