"""A small part of the tiny preset to disturb: four training runs, a measurement, and what is made of them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.workflow.tree import PARTS, Tree

TARGETS = ("mlp_depth", "toy")
MADE = ("results", "figures")
PATIENCE = 900  # seconds until something hangs; a slow machine is no fault
# Long enough to be killed in the middle.
SETTINGS = {"hidden_layers": [2], "methods": ["baseline", "pathcond"], "epochs": 40}


class Small(Tree):
    """A copy of the workflow with two experiments, which checkpoints after every epoch."""

    targets: tuple[str, ...] = TARGETS

    @classmethod
    def fresh(cls, folder: Path) -> "Small":
        """The sources alone."""
        tree = cls(Tree.fresh(folder, TARGETS).folder)
        for key, value in SETTINGS.items():
            tree.set(f"experiments.mlp_depth.{key}", value)
        tree.edit("workflow/rules/train.smk", "--index", "--save-every 0 --index")
        return tree

    def sources(self, folder: Path) -> Self:
        """The sources of this tree, compiled ones too, without what they made."""
        folder.mkdir(parents=True)
        subprocess.run(["/bin/cp", "-a", *PARTS, str(folder)], cwd=self.folder, check=True)
        return type(self)(folder)

    def copy(self, folder: Path) -> Self:
        return type(self)(super().copy(folder).folder)

    def command(self, *arguments: str, preset: str = "tiny", **settings: object) -> list[str]:
        return super().command(*(arguments or self.targets), preset=preset, **settings)

    def begin(self) -> subprocess.Popen[str]:
        """Start Snakemake, as the leader of a process group that its jobs belong to."""
        with (self.folder / "said").open("a") as said:
            return subprocess.Popen(
                self.command(), cwd=self.folder, env=self.environment(), text=True,
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """Snakemake's output since the first `begin`."""
        return (self.folder / "said").read_text()

    def unlock(self) -> None:
        """Remove Snakemake's lock, as it asks for after it was killed."""
        assert self.snakemake("--unlock").returncode == 0

    def finish(self) -> str:
        """Run the same command to its end; returns its output."""
        done = self.snakemake()
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout

    def content(self) -> dict[str, bytes]:
        """Every file that the workflow made, except those that hold times."""
        found = {}
        for path in self.made():
            timed = "rescale" in path.parts or "pages" in path.parts
            if not timed and (path.suffix != ".json" or "claims" in path.parts):
                found[path.relative_to(self.folder).as_posix()] = path.read_bytes()
        return found

    def made(self) -> list[Path]:
        return [path for part in MADE for path in self.files(f"{part}/**/*") if path.is_file()]

    def leftovers(self) -> list[str]:
        """Temporary files, lock files and checkpoints, of which none may be left at the end."""
        ends = (".lock",)
        return [str(p) for p in self.made() if p.name.startswith(".") or "checkpoints" in p.parts or p.suffix in ends]


def jobs_of(group: int) -> dict[int, str]:
    """Our programs that run in a process group, by process id: the name of the module."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            if os.getpgid(int(entry.name)) == group and b"-m" in words and b"python" in words[0]:
                module = words[words.index(b"-m") + 1].decode()
                if module.startswith("paper."):
                    found[int(entry.name)] = module
        except (OSError, IndexError):
            continue
    return found


def wait_for(group: subprocess.Popen[str], module: str, timeout: float = PATIENCE) -> int:
    """Wait until a program of ours runs in Snakemake's process group; returns its process id."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for process, name in jobs_of(group.pid).items():
            if name == module:
                return process
        assert group.poll() is None, f"Snakemake ended before {module} ran"
        time.sleep(0.02)
    raise AssertionError(f"{module} did not run in {timeout} s")


def wait_until_gone(group: int, timeout: float = PATIENCE) -> None:
    """Wait until no program of ours is left in a process group."""
    end = time.monotonic() + timeout
    while jobs_of(group):
        assert time.monotonic() < end, jobs_of(group)
        time.sleep(0.05)


def kill(process: int, group: bool = False) -> None:
    """End a process, or a whole group, at once; one that has ended already is fine."""
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process, signal.SIGKILL)


if sys.platform != "linux":
    raise RuntimeError("these tests find jobs in /proc")
