"""A copy of the workflow whose Snakemake submits to the pretend cluster, and the same runs by the plain programs."""

import json
import os
import subprocess
from pathlib import Path
from typing import Self

import yaml

from tests.slurm.cluster import Cluster, wait_for
from tests.workflow.tree import Tree

EXPERIMENTS = ("toy", "timing", "mlp_depth")
# Training pauses after its checkpoints while there is a file `hold`, so that a test can harm it in the middle.
HELD = "                saved = time.monotonic()\n"
HOLD = f"{HELD}                while Path('hold').exists():\n                    time.sleep(0.05)\n"


class Sent(Tree):
    """A tree that runs on a cluster: two jobs of two short training runs each, and two measurements."""

    cluster: Cluster

    @classmethod
    def fresh_on(cls, cluster: Cluster, folder: Path) -> Self:
        tree = cls(Tree.fresh(folder, EXPERIMENTS).folder)
        tree.cluster = cluster
        tree.set("experiments.mlp_depth.hidden_layers", [2])
        tree.set("experiments.mlp_depth.methods", ["baseline", "pathcond"])
        tree.set("runs_per_job", {"fully_connected": 2})
        tree.edit("workflow/rules/train.smk", "--index", "--save-every 0 --index")
        tree.edit("src/paper/training/runner.py", HELD, HOLD)
        # What a site sets: its partitions, and what its nodes have.
        path = tree.folder / "profiles/slurm/config.yaml"
        gpu = {"gpu": 1, "mem_mb": 2000, "runtime": 5, "slurm_partition": "'gpu'"}
        profile = yaml.safe_load(path.read_text()) | {
            "default-resources": {"mem_mb": 1000, "runtime": 5, "slurm_partition": "'cpu'"},
            "set-resources": {"train": gpu, "measure_time": gpu},
            "set-threads": {"train": 1, "measure_time": 1},
        }
        path.write_text(yaml.safe_dump(profile))
        return tree

    def again(self, folder: Path) -> Self:
        """A copy, with all that was made."""
        tree = type(self)(self.copy(folder).folder)
        tree.cluster = self.cluster
        return tree

    def command(self, *arguments: str, preset: str = "tiny", **settings: object) -> list[str]:
        python, module, name, _, _, *rest = super().command(*arguments, preset=preset, **settings)
        soon = ["--slurm-init-seconds-before-status-checks", "2"]
        return [python, module, name, "--workflow-profile", "profiles/slurm", *soon, *rest]

    def environment(self) -> dict[str, str]:
        given = {**super().environment(), **self.cluster.environment()}
        return {**given, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # where the executor may be


class Running:
    """A Snakemake that runs on a cluster, held after the first checkpoints of both its training jobs."""

    def __init__(self, tree: Sent, *arguments: str) -> None:
        self.tree, self.log, self.hold = tree, tree.folder / "snakemake.out", tree.folder / "hold"
        self.hold.touch()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                tree.command(*arguments), cwd=tree.folder, env=tree.environment(), stdout=output, stderr=output
            )

    def __enter__(self) -> Self:
        def ready() -> bool:
            return len(self.tree.files("results/checkpoints/**/[!.]*.pt")) == 2 or self.process.poll() is not None

        wait_for("two checkpoints", ready, 240)
        assert self.process.poll() is None, self.said()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.unlink(missing_ok=True)
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text()

    def jobs(self) -> list[tuple[str, str]]:
        """Number and node of the training jobs."""
        lines = self.tree.cluster.slurm("squeue", "--noheader", "--states=running", "--format=%i|%N|%k").splitlines()
        return [(number, node) for number, node, name in (line.split("|") for line in lines) if "rule_train" in name]

    def finish(self) -> str:
        """Let it go on, and wait until it succeeds; returns its output."""
        self.hold.unlink()
        assert self.process.wait(600) == 0, self.said()
        return self.said()


def numbers(found: dict[str, tuple[bytes, int]]) -> dict[str, bytes]:
    """Tables without the times at which they were written, and without those that hold times."""
    return {name: table for name, (table, _) in found.items() if "/timing/" not in name}


def trained(tree: Tree) -> dict[str, str]:
    """Keys of the runs in the indices of training, with their checksums."""
    return {
        key: sha
        for path in tree.files("results/tiny/train/*.json")
        for key, sha in json.loads(path.read_text()).items()
    }
