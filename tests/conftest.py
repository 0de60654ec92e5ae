"""What all tests share: the generated data set, and one process for all tests of a network."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All properties of a network of `tests/cases.py` are tested in one process, which records it once."""
    for item in items:
        if (call := getattr(item, "callspec", None)) and "net" in call.params:
            item.add_marker(pytest.mark.xdist_group(call.id))


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from paper.data import prepare

    path = tmp_path_factory.mktemp("data") / "generated.pt"
    prepare("generated", path, say=lambda _: None)
    return path
