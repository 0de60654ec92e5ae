"""Files written whole or not at all: first beside their place, where the next write removes what killed ones left."""

import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-([0-9]+)-[0-9a-f]{8}(\.\w+)?")
_A_DAY, _A_MINUTE = 86400.0, 60.0


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A new file beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    temporary = _new(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        # Also after success: replacing a file by a link to itself leaves the link.
        with suppress(OSError):
            temporary.unlink()


def sweep(folder: Path) -> None:
    """Remove temporary files whose writers were killed; those of living ones stay.

    A writer on another machine cannot be asked: its file stays for a day.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (found := _TEMPORARY.fullmatch(entry.name)) is None:
                continue
            here = found[1] == _here()
            with suppress(OSError):
                if (here and not _alive(int(found[2]))) or time.time() - entry.stat().st_ctime > _A_DAY:
                    os.unlink(entry.path)


_swept: dict[Path, float] = {}


def _sweep_now_and_then(folder: Path) -> None:
    """A process that writes thousands of files to a folder does not look through all of them each time."""
    if time.monotonic() - _swept.get(folder, -_A_MINUTE) >= _A_MINUTE:
        _swept[folder] = time.monotonic()
        sweep(folder)


def _new(path: Path, attempts: int = 100) -> Path:
    """A new empty file in the folder of `path`, which is made if need be."""
    name = f".{path.name}.{_here()}-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}"
    temporary = path.with_name(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep_now_and_then(path.parent)
        temporary.touch(exist_ok=False)
    except FileNotFoundError:  # another job removed the folder in between, for it was empty
        if attempts > 1:
            return _new(path, attempts - 1)
        raise
    return temporary


@cache
def _here() -> str:
    """Where process numbers mean the same: this machine, or this container."""
    numbers = ""
    with suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{socket.gethostname()} {numbers}".encode()).hexdigest()[:8]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True
    return state not in "ZX"  # dead, and its parent has not asked yet
