"""Results on disk: a table and its record, written whole or not at all, and checked when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper import cli, files
from paper.errors import PaperError
from paper.plan import digest

if TYPE_CHECKING:
    import pandas as pd  # else only where a table is read: the workflow looks at records each time it starts

# How a missing value is written; an empty cell is empty text.
_MISSING = "nan"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    try:
        with files.beside(path) as temporary:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or error
        raise PaperError(f"cannot write {path}: {reason}. Free some space or choose another folder.") from error


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be written, or made, before hours are spent on what would go there."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise PaperError(f"cannot write {path}: {there} is no folder that may be written. Choose another.")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV, whole or not at all; numbers come back as they were."""
    write_text(path, _csv(table))


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote; text columns keep empty cells as empty text."""
    import pandas as pd

    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[_MISSING])
    except (OSError, ValueError) as error:
        raise _unreadable(path, "a table", error) from error


@contextmanager
def of_item(path: Path, table: pd.DataFrame) -> Iterator[None]:
    """Around what draws or judges an item's table: one without rows or a column is an error that names the file."""
    from pandas.errors import UndefinedVariableError

    try:
        if table.empty:
            raise KeyError("any row")
        yield
    except (KeyError, UndefinedVariableError) as error:
        raise _damaged(path, f"expected the table of this item, got one without {error}") from error


def read_bytes(path: Path) -> bytes:
    """Read a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, "a file", error) from error


def read_json(path: Path) -> Any:
    """Read JSON that `write_json` wrote."""
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise _unreadable(path, "JSON", error) from error


def write_result(path: Path, table: pd.DataFrame, spec: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write a result: the table, then the record that vouches for it.

    Args:
        path: of the table; the record has the suffix ``.json``.
        table: rows of the result.
        spec: what was asked for.
        record: how it was done: hardware, versions, commit, wall time, status.
    """
    text = _csv(table)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    content = json.loads(json.dumps({**record, "spec": spec, "rows": len(table), "sha256": sha256}))
    write_text(path, text)
    write_json(path.with_suffix(".json"), {**content, "seal": _seal(content)})


def read_result(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a result, and make sure that it is what its name says.

    Returns:
        The table and the record.

    Raises:
        PaperError: the record is missing or was changed, its spec is not the one of the name, or the table was changed.
    """
    record = _checked(path)
    return read_table(path), record


def read_record(path: Path) -> dict[str, Any]:
    """The record of a result, checked against its own seal and the result's name."""
    name = path.with_suffix(".json").name
    try:
        record = json.loads(path.with_suffix(".json").read_text("utf-8"))
        seal, expected, _ = record.pop("seal", None), digest(record["spec"]), record["sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"its record {name} is missing or not readable") from error
    if not path.stem.endswith(f"-{expected}"):
        raise _damaged(path, f"the settings in its record have the digest {expected}, which is not the one of its name")
    if seal != _seal(record):
        raise _damaged(path, f"its record {name} is not as it was written (its seal is wrong or missing)")
    return record


def is_whole(path: Path) -> bool:
    """Whether a result is there and is what its name says; a damaged one is told of."""
    if not is_there(path):
        return False
    if reason := damage(path):
        cli.say(reason)
    return reason is None


def is_there(path: Path) -> bool:
    """Whether a result has both its files, whatever they hold."""
    return path.exists() and path.with_suffix(".json").exists()


def damage(path: Path) -> str | None:
    """What is wrong with a result, or None."""
    try:
        _checked(path)
    except PaperError as error:
        return str(error)
    return None


def _checked(path: Path) -> dict[str, Any]:
    record = read_record(path)
    try:
        with path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    if got != record["sha256"]:
        raise _damaged(path, f"expected the sha256 {record['sha256']} of its record, got {got}")
    return record


def _csv(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, lineterminator="\n", na_rep=_MISSING)


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _unreadable(path: Path, what: str, error: Exception) -> PaperError:
    if isinstance(error, FileNotFoundError):
        return PaperError(f"{path}: expected {what}, got none (No such file). Run the step that makes it.")
    return _damaged(path, f"expected {what}, got something that cannot be read ({error})")


def _damaged(path: Path, reason: str) -> PaperError:
    return PaperError(f"{path}: {reason}. Delete it and run again.")
