"""A folder with a small data set, in which commands get bad input."""

import shutil

import pytest

from paper.data import prepare
from tests.bad_input.command import Place


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """The generated data set, which needs no download; written once."""
    path = tmp_path_factory.mktemp("data") / "generated.pt"
    prepare("generated", path, say=lambda _: None)
    return path


@pytest.fixture
def place(tmp_path, monkeypatch, capsys, generated):
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    (tmp_path / "results" / "data").mkdir(parents=True)
    shutil.copy(generated, tmp_path / "results" / "data" / "generated.pt")
    return Place(tmp_path, monkeypatch, capsys)
