"""One undisturbed run of the small workflow, which tests copy and compare with; test processes share it."""

from pathlib import Path

import pytest

from tests.faults.small import Small
from tests.workflow.tree import once


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Small:
    def make(folder: Path) -> None:
        tree = Small.fresh(folder)
        tree.finish()
        assert tree.leftovers() == []

    return Small(once(tmp_path_factory, worker_id, "undisturbed", make))


@pytest.fixture
def fresh(undisturbed: Small, tmp_path: Path) -> Small:
    """The same workflow with nothing made yet."""
    return undisturbed.sources(tmp_path / "tree")


@pytest.fixture
def finished(undisturbed: Small, tmp_path: Path) -> Small:
    """A copy of the finished run."""
    return undisturbed.copy(tmp_path / "tree")
