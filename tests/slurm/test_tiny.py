"""A part of the tiny preset through a real Slurm: where jobs ran, what they asked for, and the bytes of a local run."""

import re
from collections import Counter

import pytest

from paper.experiments import EXPERIMENTS
from tests.slurm.cluster import Cluster
from tests.slurm.runs import Sent, plain, specs, tables
from tests.workflow.tree import Tree

pytestmark = pytest.mark.slurm
SENT = ("toy", "bcd", "timing", "mlp_depth", "cifar_nv")
TABLES = [f"results/tiny/aggregate/{name}.csv" for name in SENT]  # what follows is made on the login node anyway


@pytest.fixture(scope="module")
def done(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    tree = Sent.fresh_on(cluster, tmp_path_factory.mktemp("sent") / "tree", SENT)
    tree.set("runs_per_job", {"fully_connected": 4, "convolutional": 2})
    tree.run(*TABLES)
    return tree


def jobs(cluster: Cluster, tree: Sent) -> dict[str, Counter[str]]:
    """Jobs of a tree by rule: how many by node, memory, minutes, state and GPU."""
    found: dict[str, Counter[str]] = {}
    for line in cluster.slurm("squeue", "--noheader", "--states=all", "--format=%Z|%k|%i|%N|%m|%l|%T").splitlines():
        folder, comment, number, *given = line.split("|")
        if folder == str(tree.folder):
            gpus = {gpu for job, _, gpu in cluster.steps() if job == number}
            rule = comment.split("_wildcards_")[0]
            found.setdefault(rule, Counter())[" ".join([*given, *sorted(gpus)])] += 1
    return found


def test_training_ran_on_both_nodes_with_their_gpu(cluster: Cluster, done: Sent):
    found = jobs(cluster, done)["rule_train"]
    assert {re.sub(" [0-9:]+ ", " ", given) for given in found} == {"gpu1 2000M COMPLETED 0", "gpu2 2000M COMPLETED 0"}
    assert sum(found.values()) == 6  # three of at most four MLPs, three of two convolutional networks


def test_measurements_ran_on_the_node_without_a_gpu(cluster: Cluster, done: Sent):
    assert jobs(cluster, done)["rule_measure"] == {"cpu1 1000M 5:00 COMPLETED none": 5}


def test_tables_are_those_of_a_local_run(done: Sent, tmp_path):
    tree = Tree.fresh(tmp_path / "tree", SENT)
    timed = [name for name, entry in EXPERIMENTS.items() if entry.exclusive]  # whose numbers differ each time
    local = plain(tree, [spec for spec in specs(tree).values() if spec.get("experiment") not in timed])
    assert len(local) == 12 + 6 + 5
    assert tables(done, local) == local


def test_nothing_is_left_to_do_and_nothing_left_behind(cluster: Cluster, done: Sent):
    assert done.due(*TABLES) == {}
    assert cluster.left() == []
    assert done.files("results/checkpoints/**/*.pt") == []
