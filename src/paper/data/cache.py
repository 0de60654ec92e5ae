"""From a name to a checked file: made once in the user's cache, then linked to where it is wanted."""

import tempfile
from pathlib import Path
from typing import Any

from paper.data.artifact import describe, read, save
from paper.data.disk import CACHE_WAY_OUT, OUTPUT_WAY_OUT, cache_folder, guarded, locked, place, sweep
from paper.data.generated import generate
from paper.data.identity import Identity, check, find
from paper.data.progress import Say, Terminal
from paper.data.sources import fetch
from paper.errors import PaperError
from paper.sidecar import record_of


def prepare(name: str, output: Path, directory: Path | None = None, say: Say | None = None) -> dict[str, Any]:
    """Puts a data set at `output`, and its record beside it, fetching it only if the cache lacks it.

    The cache is the folder $PATHCOND_DATA, else $XDG_CACHE_HOME/pathcond, else ~/.cache/pathcond.

    Args:
        name: name of the data set, one of `DATASETS`.
        output: path of the file to make; read it with `load`.
        directory: a folder in torchvision's layout that is tried first.
        say: takes lines on the progress; by default they go to the standard error stream.

    Returns:
        The record: the data set, its source ("the cache" if it was there), digests and shapes.

    Raises:
        PaperError: if no source delivers the data set, one delivers other bytes, or a file cannot be written.
    """
    identity, output, say = find(name), Path(output), say or Terminal()
    if identity.package is None:
        arrays, source = generate(), "arithmetic"
        check(arrays, identity, source, "This Python or numpy is at fault: reinstall them.")
        return save(output, arrays, identity, source, OUTPUT_WAY_OUT)
    path, record = _cached(identity, None if directory is None else Path(directory), say)
    place(path, output, record, OUTPUT_WAY_OUT)
    return record


def _cached(identity: Identity, directory: Path | None, say: Say) -> tuple[Path, dict[str, Any]]:
    folder = cache_folder()
    path = folder / f"{identity.name}.pt"
    # Without the lock first: a cache that is complete may be one that cannot be written.
    with guarded(path, CACHE_WAY_OUT):
        there = path.exists()
    if there and isinstance(found := _found(path, identity), dict):
        return path, found
    with locked(folder / f".{identity.name}.lock", say) as alone:
        if path.exists():
            if isinstance(found := _found(path, identity), dict):
                return path, found
            say(str(found))
            with guarded(path, CACHE_WAY_OUT):
                path.unlink(missing_ok=True)
                record_of(path).unlink(missing_ok=True)
        if alone:
            sweep(folder, identity.name)
        return path, _make(identity, path, directory, say)


def _found(path: Path, identity: Identity) -> dict[str, Any] | PaperError:
    """The record of the cached file, or what is wrong with it."""
    try:
        _, sha256 = read(path, identity, "It is removed and made anew.")
    except PaperError as error:
        return error
    return describe(identity, "the cache", sha256)


def _make(identity: Identity, path: Path, directory: Path | None, say: Say) -> dict[str, Any]:
    with guarded(path.parent, CACHE_WAY_OUT):
        work = tempfile.TemporaryDirectory(
            dir=path.parent, prefix=f"{identity.name}.", suffix=".tmp", ignore_cleanup_errors=True
        )
    with work as folder:
        arrays, source = fetch(identity, Path(folder), directory, say)
    record = save(path, arrays, identity, source, CACHE_WAY_OUT)
    say(f"{identity.name}: checked, from {source}")
    return record
