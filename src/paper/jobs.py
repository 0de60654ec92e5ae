"""What the programs that compute runs share: the runs that a command line names, which of them are due, and the GPU.

`--batch` names the runs of a job of the workflow; specs in files are for machines without Snakemake and pydantic.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from paper import cli, results, runs
from paper.runs import Spec

_held: list[FileLock] = []  # the lock of this process's GPU, until the process ends


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add specs or a batch, folders, device, threads and index."""
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="JSON text, or a JSON file (see `make specs`)")
    parser.add_argument("--batch", metavar="NAME", help="the runs of a job of the workflow, on one GPU")
    cli.add_config_options(parser)
    words = "compute again what was written before this time (seconds since 1970), and replace it when complete"
    parser.add_argument("--again", type=float, default=0.0, metavar="TIME", help=words)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the presets' folders")
    parser.add_argument("--data", type=Path, default=Path("results/data"), help="folder of the data sets")
    parser.add_argument("--index", type=Path, help="file that lists all results of the specs, with checksums")
    parser.add_argument("--match", default="", help="only runs whose key contains this text")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    words = "CPU threads (default: OMP_NUM_THREADS, else 1); results are reproducible for one number"
    parser.add_argument("--threads", type=cli.positive, metavar="N", help=words)


def named(given: argparse.Namespace, stage: str) -> list[Spec]:
    """The runs that a command line names."""
    results.check_folder(given.results)
    if given.batch is None:
        return runs.read_specs(given.specs, stage, given.match)
    from paper import plan  # needs pydantic

    return plan.batch_specs(given, stage)


def due(given: argparse.Namespace, specs: list[Spec]) -> list[Spec]:
    """Those of the runs that are to be computed."""
    found = results.due(given.results, specs, given.again)
    tables = [runs.result_path(given.results, spec) for spec in found]
    for folder in {path.parent for path in tables}:
        results.check_folder(folder)
    results.check_free([*tables, *(path.with_suffix(".json") for path in tables), *filter(None, [given.index])])
    if len(found) < len(specs):
        cli.say(f"{len(specs) - len(found)} of {len(specs)} runs exist and are reused")
    return found


def write_index(given: argparse.Namespace, specs: list[Spec]) -> None:
    """Write the checksums of all runs, after checking each of them."""
    if given.index:
        results.write_json(given.index, results.index_of(given.results, specs))


def claim_gpu() -> bool:
    """Let this process see one GPU alone: the first that no other of our processes on this machine has claimed.

    Snakemake starts as many jobs as there are GPUs (`--resources gpu=4`) and leaves the choice to them; Slurm gives a
    job its own. If all are taken, jobs share them evenly, and this returns False.
    """
    folder, visible = Path(tempfile.gettempdir()), [name for name in _gpus() if name]
    if len(visible) < 2:
        return True
    for name in visible:
        lock = FileLock(folder / f"pathcond-gpu-{os.getuid()}-{name}.lock")
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        _held.append(lock)
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        return True
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[os.getpid() % len(visible)]
    return False


def _gpus() -> list[str]:
    """Numbers of the GPUs that this process may use."""
    if (said := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return said.split(",")
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()  # noqa: S603
