"""Where the data are kept, and writing there: whole files or none, one process at a time, errors with a way out."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paper.data.progress import Say
from paper.errors import PaperError
from paper.files import beside
from paper.sidecar import record_of

CACHE_WAY_OUT = "Set PATHCOND_DATA to a folder that can be written and has room (about 500 MB for cifar10)."
OUTPUT_WAY_OUT = "Make room or permit writing there, or choose another output folder."

FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def cache_folder() -> Path:
    """The user's folder for prepared data: $PATHCOND_DATA, $XDG_CACHE_HOME/pathcond or ~/.cache/pathcond."""
    if own := os.environ.get("PATHCOND_DATA"):
        return Path(own).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "pathcond"
    try:
        return Path.home() / ".cache" / "pathcond"
    except RuntimeError as error:
        raise PaperError(f"data: expected a home folder for the cache, got none. {CACHE_WAY_OUT}") from error


@contextlib.contextmanager
def guarded(path: Path, way_out: str) -> Iterator[None]:
    """Turns an error of the file system into one that a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            reason = "the disk is full or the quota is used up"
        elif error.errno in FORBIDDEN:
            reason = "no permission to write there"
        else:
            reason = "it cannot be written"
        raise PaperError(f"{path}: {reason} ({error.strerror or error}). {way_out}") from error


def write(path: Path, data: bytes | memoryview, record: Mapping[str, Any], way_out: str) -> None:
    """Writes a file and the record beside it, whole or not at all."""
    with _recorded(path, record, way_out) as temporary:
        _write(temporary, data)


def place(source: Path, path: Path, record: Mapping[str, Any], way_out: str) -> None:
    """Puts a file at another path too, with a record: a hard link, or a copy where links do not reach."""
    with _recorded(path, record, way_out) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            with source.open("rb") as old, temporary.open("xb") as new:
                shutil.copyfileobj(old, new, 2**20)
                new.flush()
                os.fsync(new.fileno())


@contextlib.contextmanager
def _recorded(path: Path, record: Mapping[str, Any], way_out: str) -> Iterator[Path]:
    # The record takes its place first: a file without one counts as damaged, and may be deleted.
    with guarded(path, way_out), beside(path) as temporary, beside(record_of(path)) as note:
        _write(note, f"{json.dumps(record, indent=2)}\n".encode())
        yield temporary


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


@contextlib.contextmanager
def locked(path: Path, say: Say) -> Iterator[bool]:
    """Waits until no other process holds the lock file.

    Yields:
        Whether the lock is held; a file system without locks gives False.
    """
    with guarded(path, CACHE_WAY_OUT):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("ab")
    with handle:
        yield _lock(handle.fileno(), path, say)


def _lock(descriptor: int, path: Path, say: Say) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for another process that holds {path}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def sweep(folder: Path, name: str) -> None:
    """Removes the downloads that a killed process left of a data set; only for the holder of its lock."""
    for left in folder.glob(f"{name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
