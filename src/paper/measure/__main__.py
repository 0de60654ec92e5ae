"""Make measurements from their specs: python -m paper.measure SPEC... (JSON text, or a file of one or a list)."""

import argparse
import importlib
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from paper import cli, hardware, store
from paper.plan import Spec, key
from paper.specs import read_specs


def main() -> None:
    """Read the command line, make each measurement that is not there yet."""
    parser = argparse.ArgumentParser(prog="python -m paper.measure", description=__doc__)
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="JSON text, or a JSON file (see `make specs`)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the scales' folders")
    parser.add_argument("--data", type=Path, default=Path("results/data"), help="folder of the data sets")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    cli.add_threads(parser)
    parser.add_argument("--match", default="", help="only runs whose name holds this text")
    arguments = parser.parse_args()
    device = hardware.choose(arguments.device, arguments.threads)
    store.check_folder(arguments.results)
    for spec in read_specs(arguments.specs, "measure", arguments.match):
        path = arguments.results / spec["scale"] / f"{key(spec)}.csv"
        if store.is_whole(path):
            cli.say(f"{key(spec)}: already there")
        else:
            make(spec, path, device, arguments.data)


def make(spec: Spec, path: Path, device: torch.device, data: Path) -> None:
    """Make one measurement and write its table and record."""
    start = time.perf_counter()
    module = importlib.import_module(f"paper.measure.{spec['item']}")
    extra: dict[str, Any] = {}
    if "dataset" in spec["settings"]:
        extra["data"] = data / f"{spec['settings']['dataset']}.pt"
    table: pd.DataFrame = module.measure(spec["settings"], device, **extra)
    seconds = time.perf_counter() - start
    record = {
        **hardware.record(device),
        "commit": cli.commit(),
        "precision": getattr(module, "PRECISION", "float64"),
        "seconds": round(seconds, 3),
        "status": "done",
    }
    store.write_result(path, table, spec, record)
    cli.say(f"{key(spec)}: {len(table)} rows in {seconds:.1f} s on {record['hardware']}")


if __name__ == "__main__":
    cli.run(main)
