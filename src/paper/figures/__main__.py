"""Draw an item: python -m paper.figures ITEM TABLE --output STEM writes STEM.pdf and STEM.png."""

import argparse
import importlib
from pathlib import Path

from paper import cli, store
from paper.figures import style
from paper.plan import ITEMS


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
    with style.look(arguments.font_size):
        figure = importlib.import_module(f"paper.figures.{arguments.item}").plot(table)
        style.stamp(figure, arguments.stamp)
        for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
            with store.replacing(arguments.output.with_suffix(f".{suffix}")) as temporary:
                figure.savefig(temporary, dpi=arguments.dpi, metadata=metadata)


if __name__ == "__main__":
    cli.run(main)
