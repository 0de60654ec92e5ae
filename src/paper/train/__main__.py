"""Train cells from their specs: python -m paper.train SPEC... (JSON text, or a file of one or a list; `make specs`).

Cells that share a shape train together on a GPU. The same command goes on where it was stopped. Exit status: 0 all
done, 2 a mistake in what was given, 75 the time limit came first (run it again).
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from paper import cli, hardware
from paper.specs import read_specs
from paper.train.loop import Options, TimeUp, train

OUT_OF_TIME = 75


def main() -> None:
    """Read the command line, train."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="JSON text, or a JSON file")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the scales' folders")
    parser.add_argument("--data", type=Path, default=Path("results/data"), help="folder of the data sets")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder of the checkpoints")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="checkpoint and stop after this long")
    parser.add_argument("--save-every", type=float, default=30.0, metavar="SECONDS", help="between checkpoints")
    parser.add_argument("--match", default="", help="only cells whose name holds this text")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.time_limit if arguments.time_limit is not None else None
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):  # a scheduler's warning that time is nearly up
        signal.signal(number, lambda got, _: asked.append(got))
    options = Options(
        results=arguments.results,
        data=arguments.data,
        checkpoints=arguments.checkpoints,
        device=hardware.choose(arguments.device),
        every=arguments.save_every,
        stop=lambda: bool(asked) or (end is not None and time.monotonic() >= end),
    )
    try:
        train(list(read_specs(arguments.specs, "train", arguments.match)), options)
    except TimeUp:
        cli.say("time is up: everything is in checkpoints; the same command goes on from there")
        sys.exit(OUT_OF_TIME)


if __name__ == "__main__":
    cli.run(main)
