"""Jobs, a node and the controller fail for real in the middle of training: nothing is lost, the log says why."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from paper.runs import Spec, digest
from tests.slurm.cluster import wait_for
from tests.slurm.runs import Running, Sent, plain, specs, tables
from tests.workflow.tree import Tree

pytestmark = pytest.mark.slurm
TARGET = "results/tiny/aggregate/cifar_nv.csv"


EXPERIMENTS = ("cifar_nv",)


def lengthened(tree: Tree) -> dict[str, Spec]:
    """Change the settings so that two jobs have two runs each that take half a minute; gives the runs by key."""
    tree.set("setups.cifar_nv.epochs", 200)
    tree.set("setups.cifar_nv.methods", ["baseline", "pathcond"])
    tree.set("runs_per_job", {"fully_connected": 4, "convolutional": 2})
    tree.edit("workflow/rules/train.smk", "--index", "--save-every 0 --index")
    found = specs(tree)
    assert len(found) == 4
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[dict[str, bytes]]]:
    """The same runs trained here, while the first test runs."""
    tree = Tree.fresh(tmp_path_factory.mktemp("undisturbed") / "tree", EXPERIMENTS)
    with ThreadPoolExecutor() as pool:
        yield pool.submit(plain, tree, lengthened(tree).values())


JOBS: list[str] = []  # names of the two batches, which end in a digest of their runs


@pytest.fixture
def cells(tree: Sent, undisturbed: Future[dict[str, bytes]]) -> Iterator[list[str]]:
    """The first run of each of two jobs; in the end all tables are those of the undisturbed run, nothing is left."""
    tree.keep(set(EXPERIMENTS))
    found = lengthened(tree)
    names = list(found)
    pairs = (sorted(names[:2]), sorted(names[2:]))
    JOBS[:] = [f"cifar_nv-{digest({'runs': [[name, None] for name in pair]})}" for pair in pairs]
    yield [next(name for name in names if f"/{method}-" in name) for method in ("baseline", "pathcond")]
    assert tables(tree, names) == undisturbed.result()
    assert tree.due(TARGET) == {}
    assert tree.files("results/checkpoints/**/*.pt") == []
    assert tree.cluster.left() == []


def resumed(tree: Sent, job: str) -> bool:
    """Whether the last attempt of a job did not begin at the beginning."""
    log = (tree.folder / f"logs/tiny/train/{job}.log").read_text()
    return "reused" in log or int(log.split("epoch ")[1].split("/")[0]) > 1


def training(tree: Sent, node: str) -> int:
    """The process that trains on a node."""
    (pid,) = tree.cluster.processes(node, "python -m paper.training")
    return pid


def test_a_killed_and_a_cancelled_job_go_on(tree: Sent, cells: list[str]):
    with Running(tree, TARGET) as running:
        for name in cells:
            running.wait_for_checkpoint(name)
        (killed, node), (cancelled, _) = map(running.job, JOBS)
        os.kill(training(tree, node), signal.SIGKILL)
        tree.cluster.slurm("scancel", cancelled)
        said = running.finish()
    assert f"SLURM-job '{killed}' failed, SLURM status is: 'FAILED'" in said
    assert f"SLURM-job '{cancelled}' failed, SLURM status is: 'CANCELLED'" in said
    assert all(resumed(tree, job) for job in JOBS)


def test_jobs_out_of_time_go_on(tree: Sent, cells: list[str]):
    """Of two jobs with five minutes each, one stops by itself before its end; the other hangs until Slurm ends it."""
    tree.edit("src/paper/training/__main__.py", "MARGIN = 30.0", "MARGIN = 180.0")  # two minutes to train
    halted = []
    with Running(tree, TARGET) as running:
        for name, job in zip(cells, JOBS, strict=True):
            running.wait_for_checkpoint(name)
            number, node = running.job(job)
            pid = training(tree, node)
            os.kill(pid, signal.SIGSTOP)
            halted.append((number, pid))
        (slow, pid), (hung, _) = halted
        wait_for("the end of the first training", lambda: tree.cluster.seconds(slow) > 121, 180)
        os.kill(pid, signal.SIGCONT)
        wait_for("a minute of the other job", lambda: tree.cluster.seconds(hung) > 61, 120)
        tree.cluster.slurm("scontrol", "update", f"JobId={hung}", "TimeLimit=1")
        said = running.finish()
    assert f"SLURM-job '{slow}' failed, SLURM status is: 'FAILED'" in said
    assert "time is up; the same command resumes from the checkpoints" in said
    assert f"SLURM-job '{hung}' failed, SLURM status is: 'TIMEOUT'" in said
    assert all(resumed(tree, job) for job in JOBS)


def test_a_lost_node_comes_back(tree: Sent, cells: list[str]):
    """Of the other node only slurmd is killed, and started again: its job does not notice."""
    with Running(tree, TARGET) as running:
        for name in cells:
            running.wait_for_checkpoint(name)
        (lost, node), (kept, other) = map(running.job, JOBS)
        tree.cluster.lose_node(node)
        tree.cluster.kill_daemon(other)
        tree.cluster.start_node(other)
        wait_for("Slurm to miss the node", lambda: lost in tree.cluster.jobs("node_fail"), 90)
        tree.cluster.start_node(node)
        tree.cluster.wait_for_nodes()
        said = running.finish()
    assert f"SLURM-job '{lost}' failed due to a node failure, SLURM status is: 'NODE_FAIL'" in said
    assert f"SLURM-job '{kept}' failed" not in said
    assert resumed(tree, JOBS[0])


def test_a_killed_controller_comes_back(tree: Sent, cells: list[str]):
    with Running(tree, TARGET) as running:
        for name in cells:
            running.wait_for_checkpoint(name)
        tree.cluster.kill_daemon("slurmctld")
        missed = (
            "Falling back to 'sacct' for status queries (MinJobAge=None"  # Slurm does not say how long it remembers
        )
        wait_for("Snakemake to miss the controller", lambda: missed in running.said())
        tree.cluster.start_controller()
        said = running.finish()
    assert "Error in rule" not in said
