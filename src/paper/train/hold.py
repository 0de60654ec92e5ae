"""One process a cell: a job that outlived its Snakemake and the job in its place do not both train it."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from paper import cli
from paper.plan import digest, key


@contextmanager
def holding(folder: Path, cells: Sequence[Mapping[str, Any]], stop: Callable[[], bool]) -> Iterator[bool]:
    """Wait until no other process trains these cells, and keep others from them until the block ends.

    A cell is a byte of one file, locked: the lock goes with the process, however that ends, and holds between machines
    where the file system's locks do. Where there are no locks, nothing is held.

    Args:
        folder: of the checkpoints; processes that share it take turns.
        cells: specs.
        stop: whether to give up waiting.

    Yields:
        False if `stop` said so before the others were done.
    """
    names = {int(digest(dict(cell)), 16): key(dict(cell)) for cell in cells}
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file, held = _take(path, names, stop)
    except OSError:
        yield True
        return
    with file:
        try:
            yield held
        finally:
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while others hold cells of theirs
                path.unlink()


def _take(path: Path, names: Mapping[int, str], stop: Callable[[], bool]) -> tuple[BinaryIO, bool]:
    """The lock file with a byte locked for each name; the order is the same for all, so none wait for each other."""
    while True:
        file = path.open("ab")
        held = all(_wait(file, position, names[position], stop) for position in sorted(names))
        with suppress(FileNotFoundError):
            if not held or os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, held
        file.close()  # its last holder removed it in between


def _wait(file: BinaryIO, position: int, name: str, stop: Callable[[], bool]) -> bool:
    told = False
    while True:
        with suppress(BlockingIOError, PermissionError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
            return True
        if stop():
            return False
        if not told:
            cli.say(f"{name}: another process trains it; waiting for that one to end")
            told = True
        time.sleep(0.2)
