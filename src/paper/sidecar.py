"""The record beside a data file: its sha256 tells whether the file is as it was written, before anything decodes it."""

import hashlib
import json
from pathlib import Path

from paper.errors import PaperError

WAY_OUT = "Delete the file and run again."


def record_of(path: Path) -> Path:
    """Where the record of a data file is."""
    return path.with_suffix(".json")


def recorded(path: Path, way_out: str = WAY_OUT) -> str | None:
    """The sha256 in the record of a data file; None if there is no record, or one without."""
    try:
        record = json.loads(record_of(path).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PaperError(f"{path}: its record {record_of(path).name} cannot be read ({error}). {way_out}") from error
    return record.get("sha256") if isinstance(record, dict) else None


def check(path: Path, expected: str, got: str, way_out: str = WAY_OUT) -> None:
    """Raise unless the file's sha256 is the one of its record."""
    if got != expected:
        raise PaperError(f"{path}: expected the sha256 {expected} of its record, got {got}. {way_out}")


def damage(path: Path) -> str | None:
    """What is wrong with a data file, or None; nothing is decoded, and without a record it counts as damaged."""
    try:
        expected = recorded(path)
        if expected is None:
            return f"{path}: expected its sha256 in the record {record_of(path).name}, got none. {WAY_OUT}"
        with path.open("rb") as file:
            check(path, expected, hashlib.file_digest(file, "sha256").hexdigest())
    except PaperError as error:
        return str(error)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror}). {WAY_OUT}"
    return None
