"""Snakemake's own options do what its manual says, and dry runs change nothing."""

import re

from tests.workflow.tree import TABLES, Tree


def content(tree: Tree) -> dict[str, tuple[bytes, int]]:
    paths = [path for part in ("results", "figures") for path in tree.files(f"{part}/**/*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def test_looking_changes_nothing(tree: Tree):
    """Even if results are damaged."""
    for path in [*tree.files("results/tiny/train/*/**/*.csv")[:2], *tree.files("results/data/*.pt")]:
        path.write_bytes(path.read_bytes()[:-3])
    before = content(tree)
    for option in ("--list", "--summary", "-n", "--list-changes=params"):
        done = tree.snakemake(option)
        assert done.returncode == 0, (option, done.stdout[-3000:])
    assert content(tree) == before


def test_forced_training_runs_again(tree: Tree):
    before = tree.results()
    due = tree.due("-R", "train")
    assert [job for job in due if job.startswith("train")]
    assert {"aggregate mlp_depth", "figure mlp_depth_lrs"} <= set(due)
    assert not [job for job in due if job.startswith(("measure", "aggregate toy"))]
    tree.run(*TABLES, "-R", "train", "--no-hooks")
    now = tree.results()
    for name, (table, when) in before.items():
        assert now[name][0] == table
        assert (now[name][1] > when) == ("/train/" in name), name
    assert tree.due(*TABLES) == {}


def test_more_runs_than_a_command_line_holds(tree: Tree):
    """A job names its batch; its runs are not on its command line."""
    tree.set("runs_per_job", {"fully_connected": 10_000})
    tree.set("experiments.mlp_depth.seeds", list(range(700)))
    done = tree.snakemake("-n", "-p", "mlp_depth")
    assert done.returncode == 0
    assert max(map(len, re.findall(r"python -m paper.training.*", done.stdout))) < 1000
