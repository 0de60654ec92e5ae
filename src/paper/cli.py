"""What the command-line programs share: errors without a traceback, and the record of a run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from paper.errors import PaperError

USER_ERROR = 2


def run(main: Callable[[], None]) -> None:
    """Run a program; an error the user can act on is one message and exit status 2, not a traceback."""
    try:
        main()
    except PaperError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USER_ERROR)


def say(text: str) -> None:
    """A line for the person or the log file that watches."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def commit() -> str | None:
    """The commit the code is at, marked if files differ from it; outside a repository what PATHCOND_COMMIT says."""
    git = shutil.which("git")
    said = os.environ.get("PATHCOND_COMMIT")
    if git is None:
        return said
    command = [git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done: Any = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return done.stdout.strip() or said
