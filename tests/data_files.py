"""Small data sets in the layouts of the real sources, a web server for them, and a stand-in for npm."""

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, MNIST

from paper.data import ARRAYS, DATASETS, MNIST_FILES, Array, Arrays, DatasetInfo, Package, digest

SMALL = {"cifar10": ((20, 3, 32, 32), (3, 3, 32, 32)), "mnist": ((6, 28, 28), (2, 28, 28))}
LOCKS = {".cifar10.lock", ".mnist.lock", ".kjv.lock"}
CLOSED = "http://127.0.0.1:9/"  # nobody answers there


class Attack:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def small_arrays(name: str) -> Arrays:
    train, test = SMALL[name]
    shapes, top = (train, train[:1], test, test[:1]), (256, 10, 256, 10)
    random = np.random.default_rng(0)
    return {
        key: random.integers(high, size=shape, dtype=np.uint8)
        for key, shape, high in zip(ARRAYS, shapes, top, strict=True)
    }


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


# torchvision's layout


def write_cifar(directory: Path, arrays: Arrays) -> Path:
    folder = directory / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = [*np.split(arrays["train_images"], 5), arrays["test_images"]]
    labels = [*np.split(arrays["train_labels"], 5), arrays["test_labels"]]
    for number, (pixels, marks) in enumerate(zip(images, labels, strict=True), 1):
        batch = {"labels": marks.tolist(), "data": pixels.reshape(len(pixels), -1)}
        (folder / (f"data_batch_{number}" if number <= 5 else "test_batch")).write_bytes(pickle.dumps(batch, 2))
    return folder


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(directory: Path, arrays: Arrays, gzipped: bool = False) -> Path:
    folder = directory / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for key, name in zip(ARRAYS, MNIST_FILES, strict=True):
        data = idx(arrays[key])
        (folder / (f"{name}.gz" if gzipped else name)).write_bytes(gzip.compress(data, 1, mtime=0) if gzipped else data)
    return folder


def write_layout(name: str, directory: Path, arrays: Arrays) -> Path:
    return write_cifar(directory, arrays) if name == "cifar10" else write_mnist(directory, arrays, gzipped=True)


# archives


Member = tuple[tarfile.TarInfo, bytes]


def pack(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)  # the same bytes each time


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


def _sprite(images: np.ndarray) -> bytes:
    rows = images.reshape(len(images), 3, 1024).transpose(0, 2, 1)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rows)).save(buffer, "PNG")
    return buffer.getvalue()


def npm_archive(name: str, arrays: Arrays) -> bytes:
    if name == "mnist":
        files = {f"package/data/{file}": idx(arrays[key]) for key, file in zip(ARRAYS, MNIST_FILES, strict=True)}
    else:
        batches = np.split(arrays["train_images"], 5)
        files = {f"package/data_batch_{i}.png": _sprite(batch) for i, batch in enumerate(batches, 1)}
        files["package/test_batch.png"] = _sprite(arrays["test_images"])
        for split in ("train", "test"):
            files[f"package/{split}_lables.json"] = json.dumps(arrays[f"{split}_labels"].tolist()).encode()
    return pack([member("package/package.json", b"{}"), *(member(key, data) for key, data in files.items())])


def with_archive(info: DatasetInfo, archive: bytes) -> DatasetInfo:
    package = Package("small@1.0.0", hashlib.sha256(archive).hexdigest(), info.package.folder)
    return replace(info, package=package)


def isolate(tmp_path: Path, monkeypatch, url: str = CLOSED) -> None:
    """Small data sets with their digests, a separate cache, official archives at `url`, no npm."""
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in SMALL:
        arrays = small_arrays(name)
        known = {key: Array(array.shape, digest(array)) for key, array in arrays.items()}
        monkeypatch.setitem(
            DATASETS, name, with_archive(replace(DATASETS[name], arrays=known), npm_archive(name, arrays))
        )
        write_layout(name, tmp_path / "official", arrays)
    cifar, mnist = (tmp_path / "official" / DATASETS[name].folder for name in SMALL)
    lists = [[path.name, md5(path.read_bytes())] for path in sorted(cifar.iterdir())]
    monkeypatch.setattr(CIFAR10, "train_list", lists[:5])
    monkeypatch.setattr(CIFAR10, "test_list", lists[5:])
    archive = pack([member(f"{cifar.name}/{path.name}", path.read_bytes()) for path in sorted(cifar.iterdir())])
    (tmp_path / "official" / "cifar-10-python.tar.gz").write_bytes(archive)
    monkeypatch.setattr(CIFAR10, "url", f"{url}cifar-10-python.tar.gz")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive))
    names = [f"{name}.gz" for name in MNIST_FILES]
    monkeypatch.setattr(MNIST, "resources", [(name, md5((mnist / name).read_bytes())) for name in names])
    monkeypatch.setattr(MNIST, "mirrors", [CLOSED, f"{url}MNIST/raw/"])


def fake_npm(folder: Path, lines: str) -> Path:
    """A shell script that stands for npm; it writes its arguments to the file `calls` in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "npm"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n{lines}\n')
    script.chmod(0o755)
    return script


def serve(tmp_path: Path, archive: bytes) -> None:
    """Put an npm on the PATH that delivers this archive."""
    (tmp_path / "served").write_bytes(archive)
    fake_npm(tmp_path / "bin", f'/bin/cp "{tmp_path}/served" small-1.0.0.tgz')
