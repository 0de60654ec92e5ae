"""Results on disk: written completely or not at all, read back exactly, and refused if they were changed."""

import errno
import json
import math
import os
import re
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paper import results, runs
from paper.cli import PaperError
from tests.faults.harm import cut, files, flip, leave_half, writing

SPEC = {
    "stage": "measure", "preset": "tiny", "experiment": "toy", "part": "all", "version": 1, "settings": {"seeds": [0]},
}  # fmt: skip
RECORD = {"hardware": "CPU", "seconds": 1.5, "status": "done"}
TABLE = pd.DataFrame({"seed": [0, 1], "loss": [0.1, 1 / 3]})


@pytest.fixture
def result(tmp_path) -> Path:
    """An undamaged result."""
    path = tmp_path / f"{runs.key(SPEC)}.csv"
    results.write_result(path, TABLE, SPEC, RECORD)
    return path


def refused(read, path, reason):
    """The message names the file and says what to do."""
    with pytest.raises(PaperError) as caught:
        read(path)
    text = str(caught.value)
    assert path.as_posix() in text
    assert re.search(reason, text)
    assert text.endswith("Delete it and run again.")
    assert not results.is_complete(path)


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")], ids=["cut", "flip", "empty"])
def test_a_damaged_table_is_refused(result, damage):
    table, record = results.read_result(result)
    pd.testing.assert_frame_equal(table, TABLE, check_exact=True)
    assert record == record | {"spec": SPEC, **RECORD, "rows": 2}
    damage(result)
    refused(results.read_result, result, "sha256")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        cut,
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("null"),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 2.5})),
        lambda path: path.write_text(json.dumps({"spec": {**SPEC, "experiment": "other"}, "sha256": "0"})),
    ],
    ids=["gone", "cut", "bytes", "null", "changed", "other spec"],
)
def test_a_damaged_record_is_refused(result, damage):
    damage(result.with_suffix(".json"))
    for read in (results.read_result, results.read_provenance):
        refused(read, result, r"its provenance \S+\.json (is missing|was changed)|the settings in")


def test_a_result_is_replaced_when_its_successor_is_complete(result, monkeypatch):
    """On a full disk the old result stays as it was, whichever of its two files cannot be written."""
    before, inner = {path: path.read_bytes() for path in result.parent.iterdir()}, os.fsync
    for failing in (1, 2):
        calls = []

        def full(handle, calls=calls, failing=failing):
            calls.append(handle)
            if len(calls) == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            inner(handle)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(PaperError, match=r"No space left on device. Free some space"):
            results.write_result(result, TABLE.assign(loss=0.0), SPEC, RECORD)
        assert {path: path.read_bytes() for path in result.parent.iterdir()} == before
    monkeypatch.setattr(os, "fsync", inner)
    assert results.due(result.parents[2], [{**SPEC, "preset": ""}]) == []
    later = result.stat().st_mtime + 1
    assert results.due(result.parents[2], [{**SPEC, "preset": ""}], again=later) == [{**SPEC, "preset": ""}]
    assert not results.is_complete(result, since=later)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "figure.pdf"
    results.write_text(path, "old")
    with results.replacing(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
        made = new.stat().st_ino
    assert path.stat().st_ino == made  # renamed, which cannot stop half way, not copied
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(ZeroDivisionError), results.replacing(path) as new:
        new.write_text(str(1 / 0))
    assert (path.read_text(), files(tmp_path)) == ("new", {"figure.pdf"})
    with pytest.raises(PaperError, match=r"cannot write .*figure.pdf/table\.csv: .*Choose another folder"):
        results.write_result(path / "table.csv", TABLE, SPEC, RECORD)
    (tmp_path / "table.csv").mkdir()
    with pytest.raises(PaperError, match=r"A folder of this name is in the way: remove it\."):
        results.write_table(tmp_path / "table.csv", TABLE)


def test_tables_come_back_as_they_were(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    numbers = [-0.0, 5e-324, math.nan, math.inf, *bits[np.isfinite(bits)]]
    odd = {"whole": [1, -2, 2**53 + 1], "truth": [True, False, True], "text": ["", "NA", 'a, quo"te\nline'],
           "empty": [""] * 3, "missing": [math.nan] * 3}  # fmt: skip
    for table in (pd.DataFrame({"number": numbers}), pd.DataFrame(odd)):
        results.write_table(tmp_path / "table.csv", table)
        back = results.read_table(tmp_path / "table.csv")
        pd.testing.assert_frame_equal(back, table, check_exact=True)
        assert "number" not in back or math.copysign(1.0, back["number"][0]) == -1.0


def test_the_next_write_replaces_what_a_killed_one_left(tmp_path):
    left = leave_half(tmp_path / "table.csv")
    assert files(tmp_path) == {left.name}
    results.write_text(tmp_path / "table.csv", "complete")
    assert files(tmp_path) == {"table.csv"}


def test_a_second_writer_waits(tmp_path):
    path = tmp_path / "table.csv"
    with writing(path) as half:
        second = threading.Thread(target=results.write_text, args=(path, "complete"))
        second.start()
        second.join(0.3)
        assert second.is_alive()
        assert half.read_bytes() == b"half"
    second.join(20)
    assert path.read_text() == "complete"
    assert files(tmp_path) == {"table.csv"}
