"""The workflow on a real Slurm: where jobs run, forced jobs, and a job or controller that fails in the middle."""

import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.slurm.cluster import Cluster, lacking, wait_for
from tests.slurm.runs import Running, Sent, numbers, trained
from tests.workflow.tree import Tree

pytestmark = pytest.mark.slurm
TABLES = [f"results/tiny/aggregate/{name}.csv" for name in ("toy", "timing", "mlp_depth")]
TRAINED = TABLES[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    reason = lacking()
    if reason:
        pytest.skip(reason)
    # A folder of short name that every user may enter: Slurm and munge ask for both.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    started = Cluster(folder)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated"))
    try:
        started.start()
        yield started
    finally:
        started.stop()
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def fresh(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return Sent.fresh_on(cluster, tmp_path_factory.mktemp("fresh") / "tree")


@pytest.fixture(scope="module")
def expected(fresh: Sent, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tables of a local run."""
    local = Tree(fresh.again(tmp_path_factory.mktemp("local") / "tree").folder)
    local.run(*TABLES)
    found = numbers(local.results())
    assert len(found) == 4 + 1
    return found


@pytest.fixture(scope="module")
def done(fresh: Sent, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    tree = fresh.again(tmp_path_factory.mktemp("done") / "tree")
    tree.run(*TABLES)
    return tree


@pytest.fixture
def tree(fresh: Sent, expected: dict[str, bytes], tmp_path) -> Iterator[Sent]:
    """A fresh tree to harm; in the end all tables are those of the local run, and nothing is left."""
    fresh.cluster.repair()
    tree = fresh.again(tmp_path / "tree")
    yield tree
    found = numbers(tree.results())
    assert found == {name: table for name, table in expected.items() if name in found}
    assert len(trained(tree)) == 4
    assert tree.due(TRAINED) == {}
    assert tree.files("results/checkpoints/**/*.pt") == []
    assert tree.cluster.left() == []


def test_jobs_run_where_they_should_and_give_the_tables_of_a_local_run(done: Sent, expected: dict[str, bytes]):
    found: dict[str, Counter[str]] = {}
    words = ("--noheader", "--states=all", "--format=%Z|%k|%i|%N|%m|%T")
    for line in done.cluster.slurm("squeue", *words).splitlines():
        folder, comment, number, node, *given = line.split("|")
        if folder == str(done.folder):
            gpus = {gpu for job, _, gpu in done.cluster.steps() if job == number}
            place = [re.sub(r"\d$", "", node), *given, *sorted(gpus)]
            found.setdefault(comment.split("_wildcards_")[0], Counter())[" ".join(place)] += 1
    assert found["rule_train"] == {"gpu 2000M COMPLETED 0": 2}
    assert found["rule_measure_time"] == {"gpu 2000M COMPLETED 0": 1}
    assert found["rule_measure"] == {"cpu 1000M COMPLETED none": 1}
    assert numbers(done.results()) == expected
    assert done.due(*TABLES) == {}
    assert done.cluster.left() == []


def test_forced_jobs_replace_their_runs_once_the_new_ones_are_complete(done: Sent, tmp_path):
    tree = done.again(tmp_path / "tree")
    before = tree.results()
    tree.edit("src/paper/experiments/toy.py", "\ndef measure(", "\ndef unused(")
    tree.edit("src/paper/experiments/toy.py", "EXPERIMENT = ", "measure = None.measure\nEXPERIMENT = ")
    assert tree.snakemake(TABLES[0], "-R", "measure", "--retries", "0").returncode == 1
    assert tree.results() == before, "a forced job that fails leaves what was there"
    tree.edit("src/paper/experiments/toy.py", "measure = None.measure\n", "")
    tree.edit("src/paper/experiments/toy.py", "\ndef unused(", "\ndef measure(")
    tree.run(TRAINED, "-R", "train")
    after = tree.results()
    assert {name for name in after if after[name][1] > before[name][1]} == {name for name in after if "/train/" in name}
    tree.run(TABLES[0], "-F")
    last = tree.results()
    assert {name for name in last if last[name][1] > after[name][1]} == {name for name in last if "/toy/" in name}
    assert numbers(last) == numbers(before)
    assert tree.due(TRAINED, TABLES[0]) == {}


def test_training_asks_for_a_gpu_and_refuses_to_go_on_without(fresh: Sent, tmp_path):
    """The node has one by name alone; the login node, which has none, is not asked."""
    tree = fresh.again(tmp_path / "tree")
    path = tree.folder / "profiles/slurm/config.yaml"
    profile = yaml.safe_load(path.read_text())
    del profile["set-resources"]["train"]["gpu"]  # the rule asks for it
    path.write_text(yaml.safe_dump(profile))
    known = len(tree.cluster.steps())
    done = tree.snakemake(TRAINED, "--retries", "0", device="auto")
    assert done.returncode == 1
    assert "to be trained (mlp_2x16), and there is no GPU here" in done.stdout
    assert "0" in {gpu for _, node, gpu in tree.cluster.steps()[known:] if node.startswith("gpu")}
    assert tree.results() == {}


def resumed(tree: Sent) -> list[bool]:
    """For each job, whether its last attempt did not begin at the beginning."""
    logs = [path.read_text() for path in tree.files("logs/tiny/train/*.log")]
    return ["reused" in log or int(log.split("epoch ")[1].split("/")[0]) > 1 for log in logs]


def test_a_killed_and_a_cancelled_job_resume(tree: Sent):
    with Running(tree, TRAINED) as running:
        (killed, node), (cancelled, _) = running.jobs()
        (pid,) = tree.cluster.processes(node, "python -m paper.training")
        os.kill(pid, signal.SIGKILL)
        tree.cluster.slurm("scancel", cancelled)
        said = running.finish()
    assert f"SLURM-job '{killed}' failed, SLURM status is: 'FAILED'" in said
    assert f"SLURM-job '{cancelled}' failed, SLURM status is: 'CANCELLED'" in said
    assert all(resumed(tree))


def test_a_job_whose_node_is_lost_resumes_on_another(tree: Sent):
    with Running(tree, TRAINED) as running:
        job, node = running.jobs()[0]
        tree.cluster.lose(node)
        said = running.finish()
    assert f"SLURM-job '{job}' failed due to a node failure, SLURM status is: 'NODE_FAIL'" in said
    assert any(resumed(tree))  # the other job is not disturbed
    tree.cluster.repair()


def test_a_killed_controller_comes_back(tree: Sent):
    with Running(tree, TRAINED) as running:
        tree.cluster.kill_daemon("slurmctld")
        missed = (
            "Falling back to 'sacct' for status queries (MinJobAge=None"  # Slurm does not say how long it remembers
        )
        wait_for("Snakemake to miss the controller", lambda: missed in running.said(), 120)
        tree.cluster.start_controller()
        said = running.finish()
    assert "Error in rule" not in said
