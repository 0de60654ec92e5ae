"""Checkpoints of runs on disk, and the locks that keep two processes from training the same run."""

import hashlib
import io
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from paper import cli
from paper.results import sweep, write_bytes
from paper.runs import digest, key

LOCKS = ".locks"  # folder of the lock files, in that of the checkpoints
POLL_SECONDS = 0.2


class Checkpoint:
    """The checkpoint of one run: its state and rows. It is replaced atomically and verified when read.

    Args:
        folder: folder of the checkpoints.
        spec: the spec.
    """

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self.path = folder / spec["preset"] / f"{key(dict(spec))}.pt"
        self.digest = digest(dict(spec))

    def read(self) -> tuple[dict[str, Any], str | None]:
        """State (epoch, state, rows, seconds; empty without a file), and a remark if a file cannot be used."""
        if not self.path.exists():
            return {}, None
        try:
            raw = self.path.read_bytes()
            if hashlib.sha256(raw[32:]).digest() != raw[:32]:
                raise ValueError("wrong checksum")
            content = torch.load(io.BytesIO(raw[32:]), weights_only=True)
            if content["digest"] != self.digest:
                raise ValueError("it belongs to other settings")
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            self.remove()
            return {}, f"checkpoint {self.path.name} cannot be used ({error}); starting anew"
        return content["run"], None

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the file."""
        buffer = io.BytesIO()
        torch.save({"digest": self.digest, "run": dict(state)}, buffer)
        body = buffer.getvalue()
        write_bytes(self.path, hashlib.sha256(body).digest() + body)

    def remove(self) -> None:
        """Delete the file, temporary files of killed writes beside it, and folders that are then empty."""
        self.path.unlink(missing_ok=True)
        sweep(self.path.parent)
        for folder in self.path.parents[:4]:
            try:
                os.rmdir(folder)
            except OSError:
                break


@contextmanager
def lock_runs(folder: Path, specs: Sequence[Mapping[str, Any]], stop: Callable[[], bool]) -> Iterator[bool]:
    """Wait until no other process trains these specs, and keep others from them until the block ends.

    The operating system releases the locks of a process that ends, also of a killed one. Locks are taken in one order
    everywhere, so no two processes wait for each other.

    Args:
        folder: folder of the checkpoints; processes that share it exclude each other.
        specs: the specs.
        stop: whether to give up waiting.

    Yields:
        False if `stop` returned true before the locks were acquired.
    """
    names = {digest(dict(spec)): key(dict(spec)) for spec in specs}
    with ExitStack() as held:
        locked = True
        try:
            for name in sorted(names):
                locked = locked and _acquire(held, folder / LOCKS / f"{name}.lock", names[name], stop)
        except (OSError, NotImplementedError) as error:
            cli.say(f"{folder}: no locks here ({error}); another process could train the same runs")
        yield locked


def _acquire(held: ExitStack, path: Path, name: str, stop: Callable[[], bool]) -> bool:
    lock, waiting = FileLock(path), False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if stop():
                return False
            if not waiting:
                cli.say(f"{name}: another process trains it; waiting for that one to end")
                waiting = True
            time.sleep(POLL_SECONDS)
        else:
            held.callback(_release, lock, path)
            return True


def _release(lock: FileLock, path: Path) -> None:
    """Remove the lock file while it is still locked (filelock does not trust a removed file), then unlock."""
    with suppress(OSError):
        path.unlink()
    lock.release()
    for folder in (path.parent, path.parent.parent):
        with suppress(OSError):
            folder.rmdir()
