"""A copy of the workflow whose Snakemake submits to the pretend cluster, and the same runs by the plain programs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from paper import config
from paper.plan import plan
from paper.runs import Spec, key
from tests.slurm.cluster import Cluster, wait_for
from tests.workflow.tree import Tree


class Sent(Tree):
    """A tree that runs on a cluster."""

    cluster: Cluster

    @classmethod
    def fresh_on(cls, cluster: Cluster, folder: Path, experiments: Iterable[str] | None = None) -> "Sent":
        tree = cls(Tree.fresh(folder, experiments).folder)
        tree.cluster = cluster
        # What a site sets: its partitions, and what its nodes have.
        path = tree.folder / "profiles/slurm/config.yaml"
        profile = yaml.safe_load(path.read_text())
        profile["default-resources"] = {"mem_mb": 1000, "runtime": 5, "slurm_partition": "'cpu'"}
        profile["set-resources"] = {
            "train": {"gpu": 1, "mem_mb": 2000, "runtime": 5, "slurm_partition": "'gpu'"},
            "measure_time": {"gpu": 1, "mem_mb": 2000, "slurm_partition": "'gpu'"},
        }
        profile["set-threads"] = {"train": 1, "measure_time": 1}
        path.write_text(yaml.safe_dump(profile))
        return tree

    def command(self, *arguments: str, preset: str = "tiny", **settings: object) -> list[str]:
        python, module, name, _, _, *rest = super().command(*arguments, preset=preset, **settings)
        soon = ["--slurm-init-seconds-before-status-checks", "2"]
        return [python, module, name, "--workflow-profile", "profiles/slurm", *soon, *rest]

    def environment(self) -> dict[str, str]:
        given = {**super().environment(), **self.cluster.environment()}
        return {**given, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # where the executor may be


class Running:
    """A Snakemake that runs on a cluster, to be disturbed."""

    def __init__(self, tree: Sent, *arguments: str) -> None:
        self.tree, self.log = tree, tree.folder / "snakemake.out"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                tree.command(*arguments), cwd=tree.folder, env=tree.environment(), stdout=output, stderr=output
            )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text()

    def wait_for_checkpoint(self, name: str) -> None:
        """Wait until a run has a checkpoint."""
        path = self.tree.folder / f"results/checkpoints/tiny/{name}.pt"
        wait_for(f"checkpoint of {name}", lambda: path.exists() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.said()

    def job(self, name: str) -> tuple[str, str]:
        """Number and node of the Slurm job of a batch."""
        lines = self.tree.cluster.slurm("squeue", "--noheader", "--states=running", "--format=%i %N %k").splitlines()
        ((number, node),) = (line.split()[:2] for line in lines if line.endswith(name.replace("/", "_")))
        return number, node

    def finish(self) -> str:
        """Wait until it succeeds; returns its output."""
        assert self.process.wait(900) == 0, self.said()
        return self.said()


def specs(tree: Tree) -> dict[str, Spec]:
    """Every run of a tree's tiny preset, by key."""
    base, overlay = config.load(tree.folder / "config.yaml"), config.load(tree.folder / "config/tiny.yaml")
    root = Path(__file__).parents[2]  # with all experiments, as this process has them
    shipped = config.merged(config.load(root / "config.yaml"), config.load(root / "config/tiny.yaml"))
    content = config.merged(config.merged(shipped, base), {**overlay, "preset": "tiny", "missing": []})
    found, kept = plan(config.check(content)), base["experiments"]
    return {name: found.specs[name] for experiment in kept for name in found.asked[experiment]}


def plain(tree: Tree, wanted: Iterable[Spec]) -> dict[str, bytes]:
    """Tables that the plain programs make here, without Snakemake, by name."""

    def call(*words: str) -> None:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tree.folder, env=tree.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    listed = list(wanted)
    (tree.folder / "specs.json").write_text(json.dumps(listed, sort_keys=True))  # as `make specs` and the rules do
    call("paper.data", "generated", "--output", "results/data")
    stages = {spec["stage"] for spec in listed}
    if "train" in stages:
        call("paper.training", "specs.json", "--device", "cpu")
    if "measure" in stages:
        call("paper.experiments", "measure", "specs.json", "--device", "cpu")
    return tables(tree, map(key, listed))


def tables(tree: Tree, names: Iterable[str]) -> dict[str, bytes]:
    """The bytes of tables, by name."""
    return {name: (tree.folder / f"results/tiny/{name}.csv").read_bytes() for name in names}
