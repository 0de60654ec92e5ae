"""The generated data set, which needs no download, for all tests of a process."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from paper.data import prepare

    path = tmp_path_factory.mktemp("data") / "generated.pt"
    prepare("generated", path, say=lambda _: None)
    return path
