"""`python -m paper.data NAME...`: prepares data sets from the command line."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.data.cache import prepare
from paper.data.identity import DATASETS, find
from paper.data.progress import Terminal
from paper.errors import PaperError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paper.data", description="Fetch data sets, check them by digest, write DIR/NAME.pt and .json."
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of {', '.join(DATASETS)}")
    parser.add_argument("--output", type=Path, default=Path("results/data"), metavar="DIR", help="default: %(default)s")
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="a folder in torchvision's layout that is tried first"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: words of the command line; by default this process's own.

    Returns:
        The exit status: 0, 2 after an error, which is said, or 130 if interrupted.
    """
    options, say = _parser().parse_args(arguments), Terminal()
    try:
        for name in options.names:
            find(name)
        for name in options.names:
            record = prepare(name, options.output / f"{name}.pt", options.directory, say)
            say(f"{name}: in {options.output / name}.pt, from {record['source']}")
    except PaperError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped")
        return 130
    return 0


if __name__ == "__main__":
    # So that a killed run still removes its downloads.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
