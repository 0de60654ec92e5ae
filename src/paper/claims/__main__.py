"""Judge claims: python -m paper.claims judge ITEM TABLE --scale SCALE --output FILE, then join them."""

import argparse
import importlib
from pathlib import Path

from paper import cli, store
from paper.claims.rules import judged, markdown
from paper.errors import PaperError
from paper.plan import ITEMS, SCALES


def main() -> None:
    """Read the command line, write the claims of an item or all of them."""
    parser = argparse.ArgumentParser(prog="python -m paper.claims", description=__doc__)
    commands = parser.add_subparsers(required=True)
    judge = commands.add_parser("judge", help="the claims of one item")
    judge.add_argument("item", choices=ITEMS)
    judge.add_argument("table", type=Path)
    judge.add_argument("--scale", choices=SCALES, required=True)
    judge.add_argument("--without", default="", help="in words, what the table lacks")
    judge.add_argument("--output", type=Path, required=True)
    judge.set_defaults(run=_judge)
    join = commands.add_parser("join", help="all items' claims in one file")
    join.add_argument("claims", nargs="+", type=Path)
    join.add_argument("--output", type=Path, required=True)
    join.add_argument("--table", type=Path, required=True, help="the same for people, in Markdown")
    join.set_defaults(run=_join)
    arguments = parser.parse_args()
    arguments.run(arguments)


def _judge(arguments: argparse.Namespace) -> None:
    module = importlib.import_module(f"paper.claims.{arguments.item}")
    table = store.read_table(arguments.table)
    with store.of_item(arguments.table, table):
        given = arguments.item, table, arguments.scale, arguments.table.as_posix(), arguments.without
        found = [judged(claim, *given) for claim in module.CLAIMS]
    store.write_json(arguments.output, found)


def _join(arguments: argparse.Namespace) -> None:
    claims = []
    for path in arguments.claims:
        found = store.read_json(path)
        if not isinstance(found, list) or not all(isinstance(claim, dict) and "verdict" in claim for claim in found):
            raise PaperError(
                f"{path}: expected claims, as `python -m paper.claims judge` writes them, got {found!r:.60}."
            )
        claims += found
    store.write_json(arguments.output, claims)
    store.write_text(arguments.table, markdown(claims))


if __name__ == "__main__":
    cli.run(main)
