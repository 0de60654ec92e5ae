"""Real damage to files: killed writers, truncated files, flipped bits, full disks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_WRITER = """
import sys, time
from pathlib import Path
from paper import results
with results.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print(temporary, flush=True)
    time.sleep(600)
"""


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A process half way through writing a file; yields the temporary name. The block ends with its kill."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], env=environment, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        temporary = Path(writer.stdout.readline().strip())
        assert temporary.read_bytes() == b"half"
        yield temporary
        writer.kill()


def leave_half(path: Path) -> Path:
    """Kill a process half way through writing a file; returns the file it left."""
    with writing(path) as temporary:
        pass
    assert temporary.exists()
    return temporary


def files(folder: Path) -> set[str]:
    """Names of all files below a folder."""
    return {path.name for path in folder.rglob("*") if path.is_file()}


def cut(path: Path) -> None:
    """Cut a file's last third off."""
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


@contextmanager
def small_disk(folder: Path, size: int = 2**20) -> Iterator[None]:
    """A disk of its own for a folder; skips the test where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("no mount here")
    if subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no permission to mount a small disk")
    try:
        yield
    finally:
        subprocess.run([umount, "--lazy", folder], check=True)


def fill(folder: Path, room: int = 0) -> Path:
    """Fill a disk up to the last `room` bytes, with a file whose path is returned."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            os.truncate(file.fileno(), max(0, file.tell() - room))
    return filler
