"""What killed writers leave is removed by the next write, and no living writer is disturbed."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from paper import files, store
from tests.faults.harm import leave_half, writing


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["table.csv", "no_suffix", "of another.name.json"])
def test_the_next_write_removes_what_a_killed_one_left(tmp_path, name):
    left = leave_half(tmp_path / name)
    assert names(tmp_path) == {left.name}
    store.write_text(tmp_path / "table.csv", "whole")
    assert names(tmp_path) == {"table.csv"}


def test_a_living_writer_is_left_alone(tmp_path):
    with writing(tmp_path / "table.csv") as temporary:
        store.write_text(tmp_path / "table.csv", "whole")
        files.sweep(tmp_path)
        assert temporary.read_bytes() == b"half"
        with files.beside(tmp_path / "table.csv") as own:
            files.sweep(tmp_path)
            assert own.exists()
    files.sweep(tmp_path)
    assert names(tmp_path) == {"table.csv"}


def test_a_writer_on_another_machine_has_a_day(tmp_path, monkeypatch):
    left = leave_half(tmp_path / "table.csv")
    left.rename(left.with_name(left.name.replace(files._here(), "0" * 8)))
    files.sweep(tmp_path)
    assert len(names(tmp_path)) == 1
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    files.sweep(tmp_path)
    assert names(tmp_path) == set()


def test_a_dead_writer_whose_parent_has_not_asked_is_dead(tmp_path):
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        left = tmp_path / f".table.csv.{files._here()}-{child.pid}-{'0' * 8}.csv"
        left.touch()
        files.sweep(tmp_path)
        assert not left.exists()


@pytest.mark.parametrize("name", [".table.csv", ".table.csv.swp", "table.csv", ".table.csv.0123-12-34.csv"])
def test_files_of_others_are_left_alone(tmp_path, name):
    (tmp_path / name).touch()
    files.sweep(tmp_path)
    assert names(tmp_path) == {name}


def test_a_folder_that_is_gone_is_nothing_to_sweep(tmp_path):
    files.sweep(tmp_path / "gone")


def test_thousands_of_writes_look_through_their_folder_once(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(files, "sweep", looks.append)
    for number in range(20):
        with files.beside(tmp_path / f"{number}.csv"):
            pass
    assert looks == [tmp_path]
    monkeypatch.setattr(files, "_swept", {folder: when - 61 for folder, when in files._swept.items()})
    with files.beside(tmp_path / "later.csv"):
        pass
    assert looks == [tmp_path] * 2
