"""Train runs: python -m paper.training SPEC... (JSON text, or a JSON file of one spec or a list; `make specs`).

On a GPU, runs of one architecture train in one batch. A process uses one GPU; processes that are given the same specs
share them. Runs that exist are reused. After a stop, the same command resumes. In a Slurm job it stops by itself before
the job ends. Exit status: 0 all done, 2 invalid input, 75 time limit reached (run it again), 130 stopped with Ctrl-C
(run it again).
"""

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from paper import cli, jobs
from paper.runs import Spec

OUT_OF_TIME = 75
MARGIN = 30.0  # seconds before the end of a Slurm job, kept for the last epoch, its checkpoint and Snakemake


def seconds(text: str) -> float:
    """Parse a number of seconds on the command line."""
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text}")
    return value


def main() -> None:
    """Read the command line, train what is missing."""
    program = "python -m paper.training"
    parser = argparse.ArgumentParser(prog=program, description=__doc__, formatter_class=cli.Paragraphs)
    jobs.add_options(parser)
    parser.add_argument("--checkpoints", type=Path, default=Path("results/checkpoints"), help="their folder")
    parser.add_argument("--time-limit", type=seconds, metavar="SECONDS", help="checkpoint and stop after this long")
    parser.add_argument("--save-every", type=seconds, default=30.0, metavar="SECONDS", help="between checkpoints")
    parser.add_argument("--workers", type=cli.positive, default=1, metavar="N",
                        help="start this command N times: for several GPUs, or small networks")  # fmt: skip
    parser.add_argument("--shared-gpu", action="store_true", help="record that other processes use the same GPU")
    parser.add_argument("--eager", action="store_true", help="neither CUDA graphs nor compilation, to find errors")
    given = parser.parse_args()
    if given.workers > 1:
        command = [sys.executable, "-m", "paper.training", *sys.argv[1:], "--workers", "1", "--shared-gpu"]
        started = [subprocess.Popen(command) for _ in range(given.workers)]  # noqa: S603 - the words of this command
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda got, _: [process.send_signal(got) for process in started])
        sys.exit(max(process.wait() for process in started))
    specs = jobs.named(given, "train")
    if due := jobs.due(given, specs):
        _train(due, given)
    jobs.write_index(given, specs)


def _train(specs: list[Spec], given: argparse.Namespace) -> None:
    # Imported here: torch takes seconds, and a job whose runs all exist does not need it.
    from paper.training.runner import Options, TimeUp, train

    shared = not jobs.claim_gpu() or given.shared_gpu
    device = cli.choose_device(given.device, given.threads)
    if given.batch is not None and given.device == "auto" and device.type == "cpu":
        from paper.plan import refusal

        raise cli.PaperError(refusal(specs))
    end = _end(given.time_limit)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):  # a scheduler's warning that time is nearly up
        signal.signal(number, lambda got, _: asked.append(got))
    options = Options(
        results=given.results,
        data=given.data,
        checkpoints=given.checkpoints,
        device=device,
        every=given.save_every,
        shared=shared,
        eager=given.eager,
        again=given.again,
        stop=lambda: bool(asked) or time.time() >= end,
    )
    try:
        train(specs, options)
    except KeyboardInterrupt:
        cli.say("\nstopped; the same command resumes from the last checkpoints")
        sys.exit(cli.INTERRUPTED)
    except TimeUp:
        cli.say("time is up; the same command resumes from the checkpoints")
        sys.exit(OUT_OF_TIME)


def _end(limit: float | None) -> float:
    """When to stop, in seconds since the epoch: after the limit, or before Slurm ends the job."""
    job = job_end()
    after = math.inf if limit is None else time.time() + limit
    return after if job is None else min(after, job - MARGIN)


def job_end() -> float | None:
    """The time limit of this Slurm job in seconds since the epoch; None outside a job, or if Slurm reports none."""
    job, squeue = os.environ.get("SLURM_JOB_ID"), shutil.which("squeue")
    if not job or squeue is None:
        return None
    command = [squeue, "--noheader", f"--jobs={job}", "--format=%e"]
    given = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)  # noqa: S603 - no shell
        return datetime.fromisoformat(done.stdout.strip()).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError):  # no answer, or no limit
        return None


if __name__ == "__main__":
    cli.run(main)
