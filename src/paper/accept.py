"""What the workflow finds when it starts: another one at work in its folder, results that are there, damaged files."""

import fcntl
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from paper import cli, sidecar, store
from paper.errors import PaperError

_KEPT: list[TextIO] = []  # a lock ends when its file is closed


def alone(path: Path) -> None:
    """Make this process the only one that holds the lock file `path`; the lock goes with it, however it ends.

    Raises:
        PaperError: another living process holds it.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        where = cli.shown(str(path.absolute().parents[1]))
        raise PaperError(
            f"{where}: expected no other Snakemake at work in this folder, got {holder}. "
            "Wait until it ends, stop it, or work in another clone. Nothing was changed."
        ) from error
    except OSError:  # no locks on this file system
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    _KEPT.append(file)


def accepted(
    scale: str,
    keys: Iterable[str],
    mend: bool,
    results: Path = Path("results"),
    checkpoints: Path = Path("checkpoints"),
) -> set[str]:
    """Keys of the runs whose results are there and whole.

    A damaged result is told of and, to be made again, deleted. Not so the recorded evidence of the paper's scale, whose
    making took a GPU: it stops the workflow.

    Args:
        scale: whose results.
        keys: of the runs asked for.
        mend: whether to delete damaged results, and checkpoints of whole ones; a dry run only tells.
        results: folder of the scales' folders.
        checkpoints: likewise, of the checkpoints.

    Raises:
        PaperError: a result of the paper's scale is damaged, or a damaged one cannot be deleted.
    """
    paths = {key: results / scale / f"{key}.csv" for key in keys}
    there = {key: path for key, path in paths.items() if store.is_there(path)}
    damaged = {key: reason for key, path in there.items() if (reason := store.damage(path))}
    if damaged and scale == "paper":
        files = " ".join(f"'{there[key].with_suffix('')}.*'" for key in damaged)
        raise PaperError("\n".join([*damaged.values(), f"Or bring back what was recorded: git restore {files}"]))
    for reason in damaged.values():
        cli.say(reason.replace("Delete it and run again.", "It is deleted and made again.") if mend else reason)
    whole = there.keys() - damaged.keys()
    if mend:
        for key in damaged:
            _delete(there[key])
        for key in whole:  # its job was killed when it had only that left to do
            (checkpoints / scale / f"{key}.pt").unlink(missing_ok=True)
    return whole


def check_data(path: Path, mend: bool) -> None:
    """Tell of a damaged data file and, to be made again, delete it; one that is not there is fine.

    Args:
        path: the file.
        mend: whether to delete; a dry run only tells.

    Raises:
        PaperError: a damaged file cannot be deleted.
    """
    if not path.exists() or (reason := sidecar.damage(path)) is None:
        return
    cli.say(reason.replace(sidecar.WAY_OUT, "It is deleted and made again.") if mend else reason)
    if mend:
        _delete(path)


def _delete(path: Path) -> None:
    """Delete a damaged file and its record."""
    try:
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
    except OSError as error:
        raise PaperError(f"{path}: damaged, and cannot be deleted ({error.strerror}). Delete it.") from error
