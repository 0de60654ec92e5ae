"""Results on disk: a table and its provenance, written completely or not at all, and checked when they are read.

A result is two files, `KEY.csv` and `KEY.json`. The JSON file holds the settings, the checksum of the table, and how it
was computed: hardware, versions, commit, wall time. The key ends in a digest of the settings, so that a file that
exists under its key is reused, whatever its time stamp.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paper import cli
from paper.cli import PaperError
from paper.lazy import pd
from paper.runs import Spec, digest, key, result_path

_MISSING = "nan"  # how a missing value is written; an empty cell is empty text
RECOMPUTE = "Delete it and run again."


# Files, written completely or not at all


_WAYS_OUT = {errno.ENOSPC: "Free some space.", errno.EISDIR: "A folder of this name is in the way: remove it."}


def part(path: Path) -> Path:
    """The file beside `path` that holds its new content until that is complete."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that replaces it when the block succeeds, and vanishes when it fails.

    A killed process leaves it behind; the next one that writes `path` replaces it. A second writer waits.
    """
    new = part(path)
    try:
        with _locked(new) as file:
            try:
                yield new
                os.fsync(file)
                os.replace(new, path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "Choose another folder.")
        raise PaperError(f"cannot write {path}: {error.strerror or error}. {way_out}") from error


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The open, empty file at `path`, which no other process writes."""
    for left in reversed(range(10_000)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process removed the empty folder in between
            if not left:  # or it takes no files, as /proc
                raise
            continue
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):  # else the writer before us renamed it
                os.truncate(file, 0)
                yield file
                return
        finally:
            os.close(file)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def check_folder(path: Path, access: int = os.W_OK) -> None:
    """Raise if a path is no folder in which files can be written (or read: `os.R_OK`), before hours are spent."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, access)):
        raise PaperError(
            f"cannot write {path}: {there} is not a folder that may be written. Move it, or choose another."
        )


def check_free(paths: Iterable[Path]) -> None:
    """Raise if a folder has the name of one of these files."""
    for path in paths:
        if path.is_dir():
            raise PaperError(f"{path}: expected a file or nothing, got a folder. Move it elsewhere, or remove it.")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, completely or not at all."""
    with replacing(path) as new:
        new.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON."""
    write_text(path, _json(value))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV; numbers are read back exactly."""
    write_text(path, _csv(table))


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


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote; text columns keep empty cells as empty text."""
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[_MISSING])
    except (OSError, ValueError) as error:
        raise _unreadable(path, "a table", error) from error


@contextmanager
def of_experiment(path: Path, table: pd.DataFrame) -> Iterator[None]:
    """Wraps code that draws or judges an experiment's table: a missing row or column is a PaperError with the file."""
    from pandas.errors import UndefinedVariableError

    try:
        if table.empty:
            raise KeyError("any row")
        yield
    except (KeyError, UndefinedVariableError) as error:
        raise _damaged(path, f"expected the table of this experiment, got one without {error}") from error


# Results: a table and its provenance


def write_result(path: Path, table: pd.DataFrame, spec: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Write a result: the table, then its provenance (the spec, how it was computed, checksums) beside it."""
    text = _csv(table)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    content = json.loads(json.dumps({**provenance, "spec": spec, "rows": text.count("\n") - 1, "sha256": sha256}))
    # Both files are complete on disk before either replaces its predecessor.
    with replacing(path) as new, replacing(path.with_suffix(".json")) as beside:
        beside.write_text(_json({**content, "checksum": _checksum(content)}), "utf-8")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def read_result(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Table and provenance of a result; a PaperError if a file is missing, changed, or not what its key says."""
    provenance = check(path)
    return read_table(path), provenance


def read_provenance(path: Path) -> dict[str, Any]:
    """The provenance of a result; a PaperError if it is missing, was changed, or belongs to other settings."""
    name = path.with_suffix(".json").name
    try:
        provenance = json.loads(path.with_suffix(".json").read_bytes())
        checksum, expected, _ = provenance.pop("checksum", None), digest(provenance["spec"]), provenance["sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"its provenance {name} is missing or not readable") from error
    if not path.stem.endswith(f"-{expected}"):
        raise _damaged(path, f"the settings in {name} have the digest {expected}, which is not the one of its name")
    if checksum != _checksum(provenance):
        raise _damaged(path, f"its provenance {name} was changed (its checksum is wrong or missing)")
    return provenance


def check(path: Path) -> dict[str, Any]:
    """Check both files of a result; returns its provenance, or raises a PaperError if one is missing or damaged."""
    provenance = read_provenance(path)
    try:
        with path.open("rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    if got != provenance["sha256"]:
        raise _damaged(path, f"expected the sha256 {provenance['sha256']} of its provenance, got {got}")
    return provenance


def exists(path: Path) -> bool:
    """Whether both files of a result exist; their content is not checked."""
    return path.exists() and path.with_suffix(".json").exists()


def is_complete(path: Path, since: float = 0.0) -> bool:
    """Whether a result exists, is undamaged and was written since a time; a damaged one is logged."""
    if not exists(path) or path.stat().st_mtime < since:
        return False
    if reason := damage(path):
        cli.say(reason)
    return reason is None


def damage(path: Path) -> str | None:
    """What is wrong with a result, or None."""
    try:
        check(path)
    except PaperError as error:
        return str(error)
    return None


def problem(path: Path, spec: Mapping[str, Any]) -> str | None:
    """Why a result cannot be used for a spec: it is missing, damaged, or lacks rows; None if it can."""
    if not exists(path):
        return f"{path}: missing."
    if reason := damage(path):
        return reason
    lacking = missing_rows(read_provenance(path), spec) if "rows" in spec else None
    return f"{path}: lacks the rows {lacking}." if lacking else None


def due(folder: Path, specs: Iterable[Spec], again: float = 0.0) -> list[Spec]:
    """Runs whose results are missing, damaged or incomplete, or were written before a time."""

    def is_due(path: Path, spec: Spec) -> bool:
        return problem(path, spec) is not None or path.stat().st_mtime < again

    return [spec for spec in specs if is_due(result_path(folder, spec), spec)]


def missing_rows(provenance: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Rows that a spec asks for and a result does not have yet."""
    found = provenance["spec"].get("rows", {})
    lacking = {
        name: [v for v in values if v not in found.get(name, ())] for name, values in spec.get("rows", {}).items()
    }
    return {name: values for name, values in lacking.items() if values}


def index_of(folder: Path, specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Checksums of results by key, after checking each of them."""
    return {key(spec): check(result_path(folder, spec))["sha256"] for spec in specs}


def recorded_sha256(path: Path) -> str | None:
    """The sha256 in the JSON file beside a file; None if there is none."""
    try:
        return json.loads(path.with_suffix(".json").read_bytes()).get("sha256")
    except (OSError, ValueError, AttributeError):
        return None


def _csv(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, lineterminator="\n", na_rep=_MISSING)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _checksum(provenance: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()


def _unreadable(path: Path, what: str, error: Exception) -> PaperError:
    if isinstance(error, FileNotFoundError):
        return PaperError(f"{path}: expected {what}, got none (No such file). Run the step that makes it.")
    return _damaged(path, f"expected {what}, got something that cannot be read ({error})")


def _damaged(path: Path, reason: str) -> PaperError:
    return PaperError(f"{path}: {reason}. {RECOMPUTE}")
