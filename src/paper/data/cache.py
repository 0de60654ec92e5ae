"""From a name to a checked file: made once in the user's cache, then linked to where it is wanted."""

import tempfile
from pathlib import Path
from typing import Any

from paper.cli import shown
from paper.data.artifact import read, save
from paper.data.disk import CACHE_WAY_OUT, OUTPUT_WAY_OUT, cache_folder, guarded, locked, place, sweep
from paper.data.generated import generate
from paper.data.identity import Identity, check, find
from paper.data.progress import Say, Terminal
from paper.data.sources import fetch
from paper.errors import PaperError


def prepare(name: str, output: Path, directory: Path | None = None, say: Say | None = None) -> dict[str, Any]:
    """Puts a data set at `output`, fetching it only if the cache lacks it.

    The cache is the folder $PATHCOND_DATA, else $XDG_CACHE_HOME/pathcond, else ~/.cache/pathcond.

    Args:
        name: name of the data set, one of `DATASETS`.
        output: path of the file to make; read it with `load`.
        directory: a folder in torchvision's layout that is tried first.
        say: takes lines on the progress; by default they go to the standard error stream.

    Returns:
        A record of the data set, its source ("the cache" if it was there), digests and shapes.

    Raises:
        PaperError: if no source delivers the data set, one delivers other bytes, or a file cannot be written.
    """
    identity, output, say = find(name), Path(output), say or Terminal()
    if identity.package is None:
        arrays, source = generate(), "arithmetic"
        check(arrays, identity, source, "This Python or numpy is at fault: reinstall them.")
        save(output, arrays, OUTPUT_WAY_OUT)
    else:
        path, source = _cached(identity, None if directory is None else Path(directory), say)
        place(path, output, OUTPUT_WAY_OUT)
    return {
        "dataset": name,
        "source": shown(source),
        "digests": {key: array.sha256 for key, array in identity.arrays.items()},
        "shapes": {key: list(array.shape) for key, array in identity.arrays.items()},
    }


def _cached(identity: Identity, directory: Path | None, say: Say) -> tuple[Path, str]:
    folder = cache_folder()
    path = folder / f"{identity.name}.pt"
    # Without the lock first: a cache that is complete may be one that cannot be written.
    with guarded(path, CACHE_WAY_OUT):
        there = path.exists()
    if there and _damage(path, identity) is None:
        return path, "the cache"
    with locked(folder / f".{identity.name}.lock", say) as alone:
        if path.exists():
            if (damage := _damage(path, identity)) is None:
                return path, "the cache"
            say(f"{damage} It is removed and made anew.")
            with guarded(path, CACHE_WAY_OUT):
                path.unlink(missing_ok=True)
        if alone:
            sweep(folder, identity.name)
        return path, _make(identity, path, directory, say)


def _damage(path: Path, identity: Identity) -> str | None:
    try:
        read(path, identity)
    except PaperError as error:
        return str(error)
    return None


def _make(identity: Identity, path: Path, directory: Path | None, say: Say) -> str:
    with guarded(path.parent, CACHE_WAY_OUT):
        work = tempfile.TemporaryDirectory(
            dir=path.parent, prefix=f"{identity.name}.", suffix=".tmp", ignore_cleanup_errors=True
        )
    with work as folder:
        arrays, source = fetch(identity, Path(folder), directory, say)
    save(path, arrays, CACHE_WAY_OUT)
    say(f"{identity.name}: checked, from {source}")
    return source
