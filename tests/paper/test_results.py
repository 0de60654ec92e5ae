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
from tests.faults.harm import cut, flip, leave_half, writing

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


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def fail_halfway(path: Path) -> None:
    with results.replacing(path) as temporary:
        temporary.write_text("half of it")
        raise ZeroDivisionError


def test_a_failure_keeps_what_was_there_and_leaves_no_trace(tmp_path):
    path = tmp_path / "table.csv"
    results.write_text(path, "old")
    with pytest.raises(ZeroDivisionError):
        fail_halfway(path)
    with pytest.raises(ZeroDivisionError):
        fail_halfway(tmp_path / "new" / "table.csv")
    assert (path.read_text(), files(tmp_path)) == ("old", ["table.csv"])


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "figure.pdf"
    results.write_text(path, "old")
    with results.replacing(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".pdf")  # one file system; savefig reads the suffix
        temporary.write_text("new")
        assert path.read_text() == "old"
        made = temporary.stat().st_ino
    assert path.stat().st_ino == made  # renamed, which cannot stop half way, not copied
    assert (path.read_text(), files(tmp_path)) == ("new", ["figure.pdf"])
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_is_an_error_to_act_on(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    results.write_text(path, "old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PaperError, match="No space left on device. Free some space") as caught:
        results.write_table(path, TABLE)
    assert str(caught.value).startswith(f"cannot write {path}")
    assert (path.read_text(), files(tmp_path)) == ("old", ["table.csv"])


def test_a_folder_that_cannot_be_made_is_an_error_to_act_on(tmp_path):
    (tmp_path / "results").write_text("a file where a folder should be")
    for write in (
        lambda path: results.write_text(path, "text"),
        lambda path: results.write_result(path, TABLE, SPEC, RECORD),
    ):
        with pytest.raises(PaperError, match=r"cannot write .*results/table\.csv: .*choose another folder"):
            write(tmp_path / "results" / "table.csv")
    assert files(tmp_path) == ["results"]


def test_tables_come_back_as_they_were(tmp_path):
    table = pd.DataFrame(
        {
            "number": [0.1, 1 / 3, 1e-300, math.nan, math.inf],
            "exact": [1.0 + 2**-52, -0.0, 5e-324, 1.7976931348623157e308, 123456789.123456789],
            "whole": [1, -2, 2**53 + 1, 0, 7],
            "truth": [True, False, True, True, False],
            "text": ["", "NA", "None", "a, b", 'quo"te\nline'],
            "empty": [""] * 5,
            "missing": [math.nan] * 5,
        }
    )
    results.write_table(tmp_path / "table.csv", table)
    back = results.read_table(tmp_path / "table.csv")
    pd.testing.assert_frame_equal(back, table, check_exact=True)
    assert math.copysign(1.0, back["exact"][1]) == -1.0
    assert list(back["empty"]) == [""] * 5


def test_every_double_comes_back_bit_by_bit(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    table = pd.DataFrame({"number": bits[np.isfinite(bits)]})
    results.write_table(tmp_path / "table.csv", table)
    assert (results.read_table(tmp_path / "table.csv") == table).all(axis=None)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_a_table_that_is_none_is_an_error_to_act_on(tmp_path, content):
    path = tmp_path / "aggregate.csv"
    path.write_bytes(content)
    with pytest.raises(PaperError) as caught:
        results.read_table(path)
    assert "expected a table" in tell(caught, path)


def test_a_result_comes_back_with_its_record(result):
    table, record = results.read_result(result)
    pd.testing.assert_frame_equal(table, TABLE, check_exact=True)
    assert record["spec"] == SPEC
    assert {name: record[name] for name in RECORD} == RECORD
    assert record["rows"] == 2
    assert results.is_complete(result)
    assert files(result.parent) == sorted([result.name, result.with_suffix(".json").name])


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")], ids=["cut", "flip", "empty"])
def test_a_damaged_table_is_refused(result, damage):
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
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("null"),
        lambda path: path.write_text(json.dumps({"sha256": "0"})),
        lambda path: path.write_text(json.dumps({"spec": SPEC})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 2.5})),
        lambda path: path.write_text(json.dumps({"spec": {**SPEC, "experiment": "other"}, "sha256": "0"})),
        lambda path: path.write_text(json.dumps({"spec": {**SPEC, "settings": 3}, "sha256": "0"})),
    ],
    ids=["gone", "cut", "empty", "bytes", "list", "null", "no spec", "no sha256", "changed", "other item", "settings"],
)
def test_a_damaged_record_is_refused(result, damage):
    damage(result.with_suffix(".json"))
    for read in (results.read_result, results.read_provenance):
        with pytest.raises(PaperError) as caught:
            read(result)
        assert re.search(r"its provenance \S+\.json (is missing|was changed)|the settings in", tell(caught, result))
    assert not results.is_complete(result)


def test_a_result_under_another_name_is_refused(result):
    record = json.loads(result.with_suffix(".json").read_text())
    record["spec"]["settings"]["seeds"] = [0, 2]
    result.with_suffix(".json").write_text(json.dumps(record))
    with pytest.raises(PaperError) as caught:
        results.read_result(result)
    assert f"have the digest {runs.digest(record['spec'])}, which is not the one of its name" in tell(caught, result)
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
        assert files(result.parent) == sorted([result.name, result.with_suffix(".json").name])
        assert (result.read_bytes() == before) is whole
        assert results.is_complete(result) is whole
    results.write_result(result, TABLE, SPEC, RECORD)
    assert results.is_complete(result)


def test_any_flipped_bit_is_noticed(result):
    """A flipped bit in the table or its provenance is refused, unless the content stays the same."""
    whole = results.read_result(result)[1]
    for path in (result, result.with_suffix(".json")):
        content = path.read_bytes()
        for bit in range(0, 8 * len(content), 5):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bytes(flipped))
            if results.damage(result) is None:
                assert path.suffix == ".json"
                assert {**results.read_provenance(result), **whole} == results.read_provenance(result), (path.name, bit)
        path.write_bytes(content)
    assert results.is_complete(result)


def test_a_damaged_result_is_told_of_and_a_missing_one_is_not(result, capsys):
    cut(result)
    assert not results.is_complete(result)
    assert capsys.readouterr().err.startswith(f"{result}: expected the sha256 ")
    result.unlink()
    assert not results.is_complete(result)
    assert capsys.readouterr().err == ""


def test_another_preset_makes_the_same_result(tmp_path):
    path = tmp_path / f"{runs.key(SPEC)}.csv"
    results.write_result(path, TABLE, {**SPEC, "preset": "paper"}, RECORD)
    assert results.is_complete(path)


def test_rows_that_a_result_lacks(tmp_path):
    spec = {**SPEC, "rows": {"alphas": [1.0, 2.0]}}
    path = tmp_path / f"{runs.key(spec)}.csv"
    assert runs.key(spec) == runs.key(SPEC)
    assert results.problem(path, spec) == f"{path}: missing."
    results.write_result(path, TABLE, spec, RECORD)
    assert results.problem(path, spec) is None
    more = {**spec, "rows": {"alphas": [1.0, 2.0, 3.0]}}
    assert results.problem(path, more) == f"{path}: lacks the rows {{'alphas': [3.0]}}."


# Files that killed processes leave


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["table.csv", "no_suffix", "of another.name.json"])
def test_the_next_write_removes_what_a_killed_one_left(tmp_path, name):
    left = leave_half(tmp_path / name)
    assert names(tmp_path) == {left.name}
    results.write_text(tmp_path / "table.csv", "complete")
    assert names(tmp_path) == {"table.csv"}


def test_a_living_writer_is_left_alone(tmp_path):
    with writing(tmp_path / "table.csv") as temporary:
        results.write_text(tmp_path / "table.csv", "complete")
        results.sweep(tmp_path)
        assert temporary.read_bytes() == b"half"
    results.sweep(tmp_path)
    assert names(tmp_path) == {"table.csv"}


def test_a_writer_on_another_machine_has_a_day(tmp_path, monkeypatch):
    left = leave_half(tmp_path / "table.csv")
    left.rename(left.with_name(re.sub(r"\.[0-9a-f]{8}-", ".00000000-", left.name, count=1)))
    results.sweep(tmp_path)
    assert len(names(tmp_path)) == 1
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    results.sweep(tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", [".table.csv", ".table.csv.swp", "table.csv", ".table.csv.0123-12-34.csv"])
def test_files_of_others_are_left_alone(tmp_path, name):
    (tmp_path / name).touch()
    results.sweep(tmp_path)
    assert names(tmp_path) == {name}
