"""What the programs share: the error a user can act on, options, messages, the device, and facts for the provenance.

The provenance never has the name of a host, a path or a user. Torch is imported where it is needed: it takes seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from paper.lazy import torch

USER_ERROR = 2
INTERRUPTED = 130
CODE = Path(__file__).parent
CHECKOUT = CODE.parents[1]


class PaperError(Exception):
    """Bad input: says what was expected, what came, where, and the way out."""


def run(main: Callable[[], None]) -> None:
    """Run a program. Bad input gives a message without a traceback and exit status 2; Ctrl-C gives exit status 130."""
    try:
        main()
    except (PaperError, ValueError) as error:
        library = sys.modules.get("pathcond")  # not imported here: it takes seconds
        if not isinstance(error, (PaperError, library.PathCondError) if library else PaperError):
            raise
        say(f"error: {error}")
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        say("\nstopped; the same command resumes")
        sys.exit(INTERRUPTED)


class Paragraphs(argparse.HelpFormatter):
    """Help whose description keeps its paragraphs, each wrapped to the width of the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(Paragraphs, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


def positive(text: str) -> int:
    """Parse a number above 0 on the command line."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return int(text)


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a program that reads the configuration."""
    parser.add_argument("--folder", type=Path, default=CHECKOUT, help="checkout with config.yaml (default: this one)")
    parser.add_argument("--preset", help="name of the preset (default: the one in config.yaml)")
    parser.add_argument("--over", default="{}", help="values that override those of the preset, as JSON")


def say(text: str) -> None:
    """Print a line to standard error, where a person or a log file reads it."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def shown(text: str) -> str:
    """Text for a log or for provenance, with the user's home folder written as ~."""
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text) if len(home) > 1 else text


def read_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object from a command line."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PaperError(f"{where}: expected a JSON object, got {text!r:.60} ({error}).") from error
    if not isinstance(value, dict):
        raise PaperError(f"{where}: expected a JSON object, got {text!r:.60}.")
    return value


def commit() -> str | None:
    """PATHCOND_COMMIT if it is set, else the commit of the checkout of this code, marked as dirty if files differ."""
    git, said = shutil.which("git"), os.environ.get("PATHCOND_COMMIT")
    if git is None or said:
        return said
    command = [git, "-C", str(CODE), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done: Any = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return done.stdout.strip() or None


def choose_device(name: str, threads: int | None = None) -> torch.device:
    """The device a name stands for; `auto` is a GPU if there is one.

    On a CPU, torch uses `threads`, else OMP_NUM_THREADS (which Snakemake sets), else one thread. So it does beside a
    GPU, as scales are solved on the CPU. It does not use all cores: another number of threads rounds sums differently.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise PaperError("device: expected a CUDA device, torch sees none. Use --device cpu (config: device: cpu).")
    said = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(threads or (int(said) if said.isdecimal() and int(said) else 1))
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def describe_device(device: torch.device) -> str:
    """The device in words, such as "NVIDIA H200" or "CPU x86_64, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU {platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"


def environment(device: torch.device, shared: bool = False) -> dict[str, Any]:
    """Hardware, threads and versions, for the provenance of a result; a GPU is shared if MPS is set up, or as said."""
    return {
        "hardware": describe_device(device),
        "shared_gpu": device.type == "cuda" and (shared or "CUDA_MPS_PIPE_DIRECTORY" in os.environ),
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
