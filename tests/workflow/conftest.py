"""One finished run of the tiny scale, which tests copy and disturb; processes that share the tests share it."""

import pytest

from tests.workflow.tree import Tree, once


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Tree:
    return Tree(once(tmp_path_factory, worker_id, "finished", lambda folder: Tree.fresh(folder).run()))


@pytest.fixture
def tree(finished: Tree, tmp_path) -> Tree:
    return finished.copy(tmp_path / "tree")
