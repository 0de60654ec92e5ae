"""Train cells from their specs: python -m paper.train SPEC... (JSON text, or a file of one or a list; `make specs`).

Cells that share a shape train together on a GPU. The same command goes on where it was stopped. In a Slurm job it
stops by itself before the job's time is up. Exit status: 0 all done, 2 a mistake in what was given, 75 the time limit
came first (run it again), 130 stopped with Ctrl-C (likewise).
"""

import argparse
import math
import signal
import sys
import time
from pathlib import Path

from paper import cli, hardware, store
from paper.specs import read_specs
from paper.train.hold import holding
from paper.train.loop import Options, TimeUp, train
from paper.train.slurm import job_end

OUT_OF_TIME = 75
MARGIN = 30.0  # seconds that the last epoch, its checkpoint and Snakemake around it have before Slurm ends the job


def seconds(text: str) -> float:
    """A time on the command line."""
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text}")
    return value


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
    cli.add_threads(parser)
    parser.add_argument("--time-limit", type=seconds, metavar="SECONDS", help="checkpoint and stop after this long")
    parser.add_argument("--save-every", type=seconds, default=30.0, metavar="SECONDS", help="between checkpoints")
    parser.add_argument("--match", default="", help="only cells whose name holds this text")
    arguments = parser.parse_args()
    end = _end(arguments.time_limit)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):  # a scheduler's warning that time is nearly up
        signal.signal(number, lambda got, _: asked.append(got))
    options = Options(
        results=arguments.results,
        data=arguments.data,
        checkpoints=arguments.checkpoints,
        device=hardware.choose(arguments.device, arguments.threads),
        every=arguments.save_every,
        stop=lambda: bool(asked) or time.time() >= end,
    )
    cells = read_specs(arguments.specs, "train", arguments.match)
    store.check_folder(arguments.results)
    try:
        with holding(options.checkpoints, cells, options.stop) as held:
            if not held:
                raise TimeUp
            train(cells, options)
    except KeyboardInterrupt:
        cli.say("\nstopped: the last checkpoints hold what was done; the same command goes on from there")
        sys.exit(cli.INTERRUPTED)
    except TimeUp:
        cli.say("time is up: everything is in checkpoints; the same command goes on from there")
        sys.exit(OUT_OF_TIME)


def _end(limit: float | None) -> float:
    """When to stop, in seconds since 1970: after the limit, or before Slurm ends the job."""
    job = job_end()
    after = math.inf if limit is None else time.time() + limit
    return after if job is None else min(after, job - MARGIN)


if __name__ == "__main__":
    cli.run(main)
