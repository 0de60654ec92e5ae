"""One undisturbed run of the small workflow, which tests copy and compare with; test processes share it."""

import fcntl
from pathlib import Path

import pytest

from tests.faults.small import Small


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Small:
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent
    done = base / "undisturbed.done"
    with (base / "undisturbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return Small(base / "undisturbed")
        tree = Small.fresh(base / "undisturbed")
        tree.finish()
        assert tree.leftovers() == []
        done.touch()
    return tree


@pytest.fixture
def fresh(undisturbed: Small, tmp_path: Path) -> Small:
    """The same workflow with nothing made yet."""
    return undisturbed.sources(tmp_path / "tree")


@pytest.fixture
def finished(undisturbed: Small, tmp_path: Path) -> Small:
    """A copy of the finished run."""
    return undisturbed.copy(tmp_path / "tree")
