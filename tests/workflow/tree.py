"""A copy of the workflow to run Snakemake in, and what a run or dry run of it says."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "config.yaml", "config", "environment.yml", "workflow", "profiles", "src")
# Experiments that cover every rule: measured by part, with rows, timed; trained, with runs that two experiments share.
FEW = ("toy", "regimes", "timing", "mlp_depth", "mlp_depth_lrs")
TRAINED = ("mlp_depth", "mlp_depth_lrs")
TABLES = tuple(f"results/tiny/aggregate/{name}.csv" for name in TRAINED)  # quicker than figures and claims


class Tree:
    """A folder with a copy of the workflow; its own `src` is the one that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def fresh(cls, folder: Path, experiments: Iterable[str] | None = None) -> "Tree":
        """The sources alone; of the experiments, these or all."""
        folder.mkdir(parents=True)
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, folder / part)
        tree = cls(folder)
        if experiments is not None:
            tree.keep(set(experiments))
        return tree

    @classmethod
    def clone(cls, folder: Path) -> "Tree":
        """A clone with all recorded runs: what git would hold if everything here was committed."""
        listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in filter(None, listed):
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "all")
        return cls(folder)

    def keep(self, experiments: set[str]) -> None:
        """Remove the other experiments: their files, and their blocks of the configuration."""
        for path in self.files("src/paper/experiments/*.py"):
            if path.stem not in {*experiments, "base", "__init__", "__main__"}:
                path.unlink()
        for path in [self.folder / "config.yaml", *self.files("config/*.yaml")]:
            content = yaml.safe_load(path.read_text())
            content["experiments"] = {k: v for k, v in content["experiments"].items() if k in experiments}
            path.write_text(yaml.safe_dump(content, sort_keys=False))

    def copy(self, folder: Path) -> "Tree":
        """Everything, results and Snakemake's own metadata too, with the times of the files."""
        subprocess.run(["/bin/cp", "-a", str(self.folder), str(folder)], check=True)
        return Tree(folder)

    def command(self, *arguments: str, preset: str = "tiny", **settings: object) -> list[str]:
        program = [sys.executable, "-m", "snakemake", "--cores", "2"]
        return [*program, *arguments, "--config", f"preset={preset}", *(f"{k}={v}" for k, v in settings.items())]

    def environment(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**given, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def snakemake(
        self, *arguments: str, preset: str = "tiny", timeout: float = 900, **settings: object
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, preset=preset, **settings),
            cwd=self.folder, env=self.environment(), text=True, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str) -> Counter[str]:
        """Run, and count the jobs that ran."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout[-8000:]
        return jobs(done.stdout)

    def due(self, *arguments: str, preset: str = "tiny", **settings: object) -> Counter[str]:
        """Jobs that a run would start."""
        done = self.snakemake("-n", *arguments, preset=preset, **settings)
        assert done.returncode == 0, done.stdout[-8000:]
        return jobs(done.stdout)

    def edit(self, path: str, old: str, new: str, count: int = 1) -> None:
        """Replace text in a file; it must be there."""
        file = self.folder / path
        text = file.read_text()
        assert text.count(old) >= count, f"{old!r} is not {count} times in {path}"
        file.write_text(text.replace(old, new, count))

    def set(self, where: str, value: Any, preset: str = "tiny") -> None:
        """Change one value of a preset's configuration, by its dotted path."""
        file = self.folder / ("config.yaml" if preset == "paper" else f"config/{preset}.yaml")
        content = json.loads(json.dumps(yaml.safe_load(file.read_text())))  # blocks under one anchor become separate
        *parents, last = where.split(".")
        block = content
        for name in parents:
            block = block.setdefault(name, {})
        assert block.get(last) != value, "nothing would change"
        block[last] = value
        file.write_text(yaml.safe_dump(content, sort_keys=False))

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))

    def results(self) -> dict[str, tuple[bytes, int]]:
        """Tables of all runs, with the times at which they were written."""
        paths = [*self.files("results/tiny/train/*/**/*.csv"), *self.files("results/tiny/measure/*/*.csv")]
        return {str(p.relative_to(self.folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


def git(folder: Path, *words: str) -> str:
    """The output of git in a folder."""
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout  # noqa: S607


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
    """Jobs in Snakemake's output, as "rule" or "rule subject": experiment, experiments of a batch, family."""
    return Counter(re.findall(r"^Job \d+: (\w+(?: [a-z0-9_+]+)?)", output, re.MULTILINE))
