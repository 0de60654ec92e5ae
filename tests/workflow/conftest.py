"""A finished run of a few experiments at the tiny preset, which tests copy and disturb; test processes share it."""

from pathlib import Path

import pytest

from tests.workflow.tree import FEW, Tree, once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests here have a target of their own, `make test-workflow`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.workflow)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Tree:
    def make(folder: Path) -> None:
        Tree.fresh(folder, FEW).run()

    return Tree(once(tmp_path_factory, worker_id, "finished", make))


@pytest.fixture
def tree(finished: Tree, tmp_path: Path) -> Tree:
    return finished.copy(tmp_path / "tree")
