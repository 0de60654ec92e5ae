"""One finished run of the tiny scale, which tests copy and disturb."""

import pytest

from tests.workflow.tree import Tree


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = Tree.fresh(tmp_path_factory.mktemp("workflow") / "tree")
    tree.run()
    return tree


@pytest.fixture
def tree(finished: Tree, tmp_path) -> Tree:
    return finished.copy(tmp_path / "tree")
