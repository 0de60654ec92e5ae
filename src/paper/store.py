"""Results on disk: a table and its record, written whole or not at all, and checked when read."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from paper.errors import PaperError
from paper.plan import digest

# How a missing value is written; an empty cell is empty text.
_MISSING = "nan"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    try:
        temporary = _new_beside(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _new_beside(path: Path, attempts: int = 100) -> Path:
    """A new empty file in the folder of `path`, which is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    except FileNotFoundError:  # another job removed the folder in between, for it was empty
        if attempts > 1:
            return _new_beside(path, attempts - 1)
        raise
    os.close(handle)
    return Path(name)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV, whole or not at all; numbers come back as they were."""
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n", na_rep=_MISSING)


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote; text columns keep empty cells as empty text."""
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[_MISSING])
    except (OSError, ValueError) as error:
        raise _damaged(path, f"expected a table, got something that cannot be read ({error})") from error


def write_result(path: Path, table: pd.DataFrame, spec: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write a result: the table, then the record that vouches for it.

    Args:
        path: of the table; the record has the suffix ``.json``.
        table: rows of the result.
        spec: what was asked for.
        record: how it was done: hardware, versions, commit, wall time, status.
    """
    try:
        path.with_suffix(".json").unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    write_table(path, table)
    content = {**record, "spec": spec, "rows": len(table), "sha256": _sha256(path)}
    write_json(path.with_suffix(".json"), content)


def read_result(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a result, and make sure that it is what its name says.

    Returns:
        The table and the record.

    Raises:
        PaperError: the record is missing or no JSON, its spec is not the one of the name, or the table was changed.
    """
    record = read_record(path)
    if (got := _sha256(path)) != record["sha256"]:
        raise _damaged(path, f"expected the sha256 {record['sha256']} of its record, got {got}")
    return read_table(path), record


def read_record(path: Path) -> dict[str, Any]:
    """The record of a result, checked against the result's name."""
    try:
        record = json.loads(path.with_suffix(".json").read_text())
        expected, _ = digest(record["spec"]), record["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its record {path.with_suffix('.json').name} is missing or not readable") from error
    if not path.stem.endswith(f"-{expected}"):
        raise _damaged(path, f"the settings in its record have the digest {expected}, which is not the one of its name")
    return record


def is_whole(path: Path) -> bool:
    """Whether a result is there and is what its name says."""
    try:
        read_result(path)
    except (PaperError, OSError):
        return False
    return True


def _damaged(path: Path, reason: str) -> PaperError:
    return PaperError(f"{path}: {reason}. Delete it and run again.")


def _unwritable(path: Path, error: OSError) -> PaperError:
    return PaperError(f"cannot write {path}: {error.strerror or error}. Free some space or choose another folder.")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
