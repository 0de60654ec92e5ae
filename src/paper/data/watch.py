"""Running a program that downloads into a folder: its progress is read off the folder's size, and it may not stall."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from paper.data.disk import CACHE_WAY_OUT, guarded
from paper.data.progress import Progress
from paper.errors import PaperError

POLL_SECONDS = 0.1
ALMOST_FULL = 2**20
LOG = "log.txt"


class UnavailableError(Exception):
    """A source could not deliver; the next one may."""


def watch(command: Sequence[str], folder: Path, patience: float, progress: Progress) -> None:
    """Runs a program in `folder` until it ends, or stops it once the folder has not changed for `patience` seconds.

    Args:
        command: the program and its arguments; no shell reads them.
        folder: a folder of its own, made if need be, where it works and logs.
        patience: seconds.
        progress: is told the folder's size.

    Raises:
        UnavailableError: if the program fails or stalls; says why in a line.
        PaperError: if the disk is full.
    """
    log = folder / LOG
    process = _start(command, folder, log)
    try:
        status = _wait(process, folder, patience, progress)
    finally:
        _stop(process)
    if status == 0:
        return
    text = log.read_text(errors="replace")
    if "ENOSPC" in text or "No space left" in text or shutil.disk_usage(folder).free < ALMOST_FULL:
        raise PaperError(f"{folder.parent}: the disk is full. {CACHE_WAY_OUT}")
    if status is None:
        raise UnavailableError(f"stopped, as nothing came for {patience:g} s")
    raise UnavailableError(_reason(text) or f"ended with status {status}")


def _start(command: Sequence[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    with guarded(folder, CACHE_WAY_OUT):
        folder.mkdir(exist_ok=True)
        output = log.open("wb")
    with output:
        try:
            return subprocess.Popen(  # noqa: S603 - fixed words, no shell
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise UnavailableError(f"{command[0]} cannot be started ({error.strerror})") from error


def _wait(process: subprocess.Popen[bytes], folder: Path, patience: float, progress: Progress) -> int | None:
    size, since = 0, time.monotonic()
    while True:
        try:
            status = process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        now = _size(folder)
        progress.update(now)
        if status is not None:
            return status
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    # The whole group, as the program may be a wrapper that started another.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # the program moved it meanwhile
                continue
    return total


def _reason(text: str) -> str:
    noise = ("npm warn", "npm notice", "complete log of this run", "npm help")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not any(part in line for part in noise)]
    npm = [line for line in lines if line.startswith(("npm error", "npm ERR!"))]
    return "; ".join(npm[:3] or lines[-1:])[:400]
