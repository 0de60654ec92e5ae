"""What the command-line programs share: errors without a traceback, options, messages, and the code's commit."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paper.errors import PaperError

USER_ERROR = 2
INTERRUPTED = 130
CODE = Path(__file__).parent


def run(main: Callable[[], None]) -> None:
    """Run a program. Bad input gives a message without a traceback and exit status 2; Ctrl-C gives exit status 130."""
    try:
        main()
    except PaperError as error:
        say(f"error: {error}")
        sys.exit(USER_ERROR)
    except ValueError as error:
        library = sys.modules.get("pathcond")  # not imported here: it takes seconds
        if library is None or not isinstance(error, library.PathCondError):
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


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of threads on a CPU."""
    words = "threads on a CPU (default: OMP_NUM_THREADS, else 1); results are reproducible for one number"
    parser.add_argument("--threads", type=positive, metavar="N", help=words)


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
