"""A copy of the workflow to run Snakemake in, and what a run or dry run of it says."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "config.yaml", "environment.yml", "workflow", "profiles", "src")


class Tree:
    """A folder with a copy of the workflow; its own `src` is the one that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def fresh(cls, folder: Path) -> "Tree":
        """The sources alone."""
        folder.mkdir(parents=True)
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, folder / part)
        return cls(folder)

    def copy(self, folder: Path) -> "Tree":
        """Everything, results and Snakemake's own notes too, with the times of the files."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Tree(folder)

    def command(self, *arguments: str, scale: str = "tiny", **settings: object) -> list[str]:
        program = [sys.executable, "-m", "snakemake", "--cores", "2"]
        return [*program, *arguments, "--config", f"scale={scale}", *(f"{k}={v}" for k, v in settings.items())]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def snakemake(
        self, *arguments: str, scale: str = "tiny", timeout: float = 600, **settings: object
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, scale=scale, **settings),
            cwd=self.folder, env=self.environment(), text=True, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str) -> Counter[str]:
        """Run, and count the jobs that ran by what they made."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout[-8000:]
        return jobs(done.stdout)

    def due(self, *arguments: str, scale: str = "tiny", **settings: object) -> Counter[str]:
        """Jobs that a run would start."""
        done = self.snakemake("-n", *arguments, scale=scale, **settings)
        assert done.returncode == 0, done.stdout[-8000:]
        return jobs(done.stdout)

    def edit(self, path: str, old: str, new: str, count: int = 1) -> None:
        """Replace text in a file; it must be there."""
        file = self.folder / path
        text = file.read_text()
        assert text.count(old) >= count, f"{old!r} is not {count} times in {path}"
        file.write_text(text.replace(old, new, count))

    def set(self, scale: str, item: str, key: str, value: str) -> None:
        """Change one line of config.yaml."""
        file = self.folder / "config.yaml"
        text = file.read_text()
        start = text.index(f"    {item}:\n", text.index(f"\n  {scale}:\n"))
        line = re.compile(rf"^      {key}: .*$", re.MULTILINE)
        found = line.search(text, start)
        assert found is not None
        assert found.group() != f"      {key}: {value}", "nothing would change"
        file.write_text(f"{text[: found.start()]}      {key}: {value}{text[found.end() :]}")

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))


def once(factory: pytest.TempPathFactory, worker: str, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is filled once for all processes that share the tests."""
    base = factory.getbasetemp()
    base = base if worker == "master" else base.parent
    done = base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(base / name)
            done.touch()
    return base / name


def jobs(output: str) -> Counter[str]:
    """Jobs in Snakemake's output, as "rule" or "rule subject": the item, or the measurement without its digest."""
    found: Counter[str] = Counter()
    for block in re.split(r"\n(?=(?:local)?rule )", output)[1:]:
        rule = re.match(r"(?:local)?rule (\w+):", block)
        assert rule is not None
        wildcards = re.search(r"^    wildcards: (.*)$", block, re.MULTILINE)
        subject = ""
        if wildcards:
            value = wildcards.group(1).split("=", 1)[1]
            subject = " " + re.sub(r"^(measure|train)/|-[0-9a-f]{12}$", "", value)
        found[rule.group(1) + subject] += 1
    return found
