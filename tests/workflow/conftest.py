"""One finished run of the tiny scale, which tests copy and disturb; processes that share the tests share it."""

import fcntl

import pytest

from tests.workflow.tree import Tree


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Tree:
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent
    done = base / "finished.done"
    with (base / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return Tree(base / "finished")
        tree = Tree.fresh(base / "finished")
        tree.run()
        done.touch()
    return tree


@pytest.fixture
def tree(finished: Tree, tmp_path) -> Tree:
    return finished.copy(tmp_path / "tree")
