"""Results on disk: written completely or not at all, read back exactly, and refused if they were changed."""

import errno
import json
import math
import os
import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paper import results, runs
from paper.cli import PaperError
from tests.faults.harm import cut, files, flip, leave_half, writing

SPEC = {
    "stage": "measure",
    "preset": "tiny",
    "experiment": "toy",
    "part": "all",
    "version": 1,
    "settings": {"seeds": [0, 1]},
}
RECORD = {"hardware": "CPU", "seconds": 1.5, "status": "done"}
TABLE = pd.DataFrame({"seed": [0, 1], "loss": [0.1, 1 / 3]})


@pytest.fixture
def result(tmp_path) -> Path:
    """An undamaged result."""
    path = tmp_path / f"{runs.key(SPEC)}.csv"
    results.write_result(path, TABLE, SPEC, RECORD)
    return path


def tell(error: pytest.ExceptionInfo, path: Path) -> str:
    """The message, which must name the file and say what to do."""
    text = str(error.value)
    assert path.as_posix() in text
    assert text.endswith("Delete it and run again.")
    return text


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")], ids=["cut", "flip", "empty"])
def test_a_damaged_table_is_refused(result, damage):
    table, record = results.read_result(result)
    pd.testing.assert_frame_equal(table, TABLE, check_exact=True)
    assert record == record | {"spec": SPEC, **RECORD, "rows": 2}
    damage(result)
    with pytest.raises(PaperError) as caught:
        results.read_result(result)
    assert "sha256" in tell(caught, result)
    assert not results.is_complete(result)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        cut,
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("null"),
        lambda path: path.write_text(json.dumps({"sha256": "0"})),
        lambda path: path.write_text(json.dumps({"spec": SPEC})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 2.5})),
        lambda path: path.write_text(json.dumps({"spec": {**SPEC, "experiment": "other"}, "sha256": "0"})),
        lambda path: path.write_text(json.dumps({"spec": {**SPEC, "settings": 3}, "sha256": "0"})),
    ],
    ids=["gone", "cut", "bytes", "null", "no spec", "no sha256", "changed", "other item", "settings"],
)
def test_a_damaged_record_is_refused(result, damage):
    damage(result.with_suffix(".json"))
    for read in (results.read_result, results.read_provenance):
        with pytest.raises(PaperError) as caught:
            read(result)
        assert re.search(r"its provenance \S+\.json (is missing|was changed)|the settings in", tell(caught, result))
    assert not results.is_complete(result)


def test_a_record_never_vouches_for_a_half_written_table(result, monkeypatch):
    """The old result stays until the new table is complete; a table without its own provenance is no result."""
    before, calls, inner = result.read_bytes(), [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) in (1, 3):  # the table; the record, after the table was written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inner(handle)

    monkeypatch.setattr(os, "fsync", full)
    for whole in (True, False):
        with pytest.raises(PaperError, match="No space left"):
            results.write_result(result, TABLE.assign(loss=0.0), SPEC, RECORD)
        assert files(result.parent) == {result.name, result.with_suffix(".json").name}
        assert (result.read_bytes() == before) is whole
        assert results.is_complete(result) is whole
    results.write_result(result, TABLE, SPEC, RECORD)
    assert results.is_complete(result)


def test_a_damaged_result_is_told_of_and_a_missing_one_is_not(result, capsys):
    cut(result)
    assert not results.is_complete(result)
    assert capsys.readouterr().err.startswith(f"{result}: expected the sha256 ")
    result.unlink()
    assert not results.is_complete(result)
    assert capsys.readouterr().err == ""


def test_rows_that_a_result_lacks(tmp_path):
    spec = {**SPEC, "rows": {"alphas": [1.0, 2.0]}}
    path = tmp_path / f"{runs.key(spec)}.csv"
    assert runs.key(spec) == runs.key(SPEC)
    assert results.problem(path, spec) == f"{path}: missing."
    results.write_result(path, TABLE, spec, RECORD)
    assert results.problem(path, spec) is None
    more = {**spec, "rows": {"alphas": [1.0, 2.0, 3.0]}}
    assert results.problem(path, more) == f"{path}: lacks the rows {{'alphas': [3.0]}}."


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "figure.pdf"
    results.write_text(path, "old")
    with results.replacing(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".pdf")  # one file system; savefig reads the suffix
        temporary.write_text("new")
        assert path.read_text() == "old"
        made = temporary.stat().st_ino
    assert path.stat().st_ino == made  # renamed, which cannot stop half way, not copied
    assert path.stat().st_mode & 0o777 == 0o644

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for one in (path, tmp_path / "new" / "table.csv"):
        with pytest.raises(PaperError, match=rf"cannot write {one}.*No space left on device. Free some space"):
            results.write_table(one, TABLE)
    assert (path.read_text(), files(tmp_path)) == ("new", {"figure.pdf"})
    with pytest.raises(PaperError, match=r"cannot write .*figure.pdf/table\.csv: .*choose another folder"):
        results.write_result(path / "table.csv", TABLE, SPEC, RECORD)


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


# Files that killed processes leave


def test_the_next_write_removes_what_a_killed_one_left_alone(tmp_path):
    others = {".table.csv.swp", ".table.csv.0123-12-34.csv"}
    for name in others:
        (tmp_path / name).touch()
    for name in ("table.csv", "no_suffix", "of another.name.json"):
        left = leave_half(tmp_path / name)
        assert left.name in files(tmp_path)
        results.write_text(tmp_path / "table.csv", "complete")
        assert files(tmp_path) == {"table.csv", *others}


def test_a_living_writer_is_left_alone(tmp_path):
    with writing(tmp_path / "table.csv") as temporary:
        results.write_text(tmp_path / "table.csv", "complete")
        results.sweep(tmp_path)
        assert temporary.read_bytes() == b"half"
    results.sweep(tmp_path)
    assert files(tmp_path) == {"table.csv"}


def test_a_writer_on_another_machine_has_a_day(tmp_path, monkeypatch):
    left = leave_half(tmp_path / "table.csv")
    left.rename(left.with_name(re.sub(r"\.[0-9a-f]{8}-", ".00000000-", left.name, count=1)))
    results.sweep(tmp_path)
    assert len(files(tmp_path)) == 1
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    results.sweep(tmp_path)
    assert files(tmp_path) == set()
