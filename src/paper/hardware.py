"""What a measurement ran on, in words and as a record; nothing that names a host, a path or a user."""

import platform
from importlib import metadata
from typing import Any

import torch

from paper.errors import PaperError


def choose(name: str) -> torch.device:
    """The device a name stands for; `auto` is a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise PaperError("device: expected a CUDA device, torch sees none. Use --device cpu (config: device: cpu).")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """The device in words, such as "NVIDIA H200" or "CPU x86_64, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU {platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"


def record(device: torch.device) -> dict[str, Any]:
    """Hardware, threads and versions, for the record beside a result."""
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
