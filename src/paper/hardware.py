"""The hardware of a measurement, in words and for the provenance; never the name of a host, a path or a user."""

import os
import platform
from importlib import metadata
from typing import Any

import torch

from paper.errors import PaperError


def choose(name: str, threads: int | None = None) -> torch.device:
    """The device a name stands for; `auto` is a GPU if there is one.

    A CPU uses `threads`, else OMP_NUM_THREADS (which Snakemake sets), else one thread. It does not use all cores of the
    machine, because another number of threads rounds sums differently.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise PaperError("device: expected a CUDA device, torch sees none. Use --device cpu (config: device: cpu).")
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    said = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(threads or (int(said) if said.isdecimal() and int(said) else 1))
    return torch.device("cpu")


def describe(device: torch.device) -> str:
    """The device in words, such as "NVIDIA H200" or "CPU x86_64, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU {platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"


def record(device: torch.device) -> dict[str, Any]:
    """Hardware, threads and versions, for the provenance of a result."""
    return {
        "hardware": describe(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "pathcond": _version("pathcond"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "from the source tree"
