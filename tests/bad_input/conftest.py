"""A folder with a small data set, in which commands get bad input."""

import shutil

import pytest

from tests.bad_input.command import Place


@pytest.fixture
def place(tmp_path, monkeypatch, capsys, generated):
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    (tmp_path / "results" / "data").mkdir(parents=True)
    shutil.copy(generated, tmp_path / "results" / "data" / "generated.pt")
    return Place(tmp_path, monkeypatch, capsys)
