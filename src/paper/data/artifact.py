"""The file that holds a data set: a dict of four uint8 tensors, checked by digest at every load, before and after."""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paper import sidecar
from paper.cli import shown
from paper.data.disk import write
from paper.data.identity import ARRAYS, Arrays, Identity, check, find
from paper.errors import PaperError


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, all uint8.

    Attributes:
        train_images: (count, channels, height, width), or (count, height, width) for grey images.
        train_labels: (count,).
        test_images: as `train_images`.
        test_labels: as `train_labels`.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def describe(identity: Identity, source: str, sha256: str) -> dict[str, Any]:
    """The record of a file that holds a data set.

    Args:
        identity: the data set.
        source: where it came from.
        sha256: of the file.
    """
    return {
        "dataset": identity.name,
        "source": shown(source),
        "sha256": sha256,
        "digests": {key: array.sha256 for key, array in identity.arrays.items()},
        "shapes": {key: list(array.shape) for key, array in identity.arrays.items()},
    }


def save(path: Path, arrays: Arrays, identity: Identity, source: str, way_out: str) -> dict[str, Any]:
    """Writes the arrays to `path` and the record beside it, whole or not at all; gives the record."""
    # Through memory: torch hides the reason when a write fails, such as a full disk.
    buffer = io.BytesIO()
    torch.save({name: torch.tensor(arrays[name]) for name in ARRAYS}, buffer)
    record = describe(identity, source, hashlib.sha256(buffer.getbuffer()).hexdigest())
    write(path, buffer.getbuffer(), record, way_out)
    return record


def read(path: Path, identity: Identity, way_out: str) -> tuple[Dataset, str]:
    """The data set in the file `path`, and the file's sha256; see `load`."""
    data = _bytes(path, identity, way_out)
    sha256 = hashlib.sha256(data).hexdigest()
    if (expected := sidecar.recorded(path, way_out)) is not None:
        sidecar.check(path, expected, sha256, way_out)
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes the reader fail in any way
        raise _unreadable(path, identity, error, way_out) from error
    if not isinstance(content, dict) or set(content) != set(ARRAYS) or not all(map(_plain, content.values())):
        raise PaperError(f"{identity.name}: {path}: expected the uint8 tensors {', '.join(ARRAYS)}. {way_out}")
    check({name: content[name].numpy() for name in ARRAYS}, identity, f"file {path}", way_out)
    return Dataset(**content), sha256


def _bytes(path: Path, identity: Identity, way_out: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise PaperError(
            f"{identity.name}: expected the file {path}, got none. Make it with `python -m paper.data {identity.name}`."
        ) from error
    except OSError as error:
        raise _unreadable(path, identity, error, way_out) from error


def _unreadable(path: Path, identity: Identity, error: Exception, way_out: str) -> PaperError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return PaperError(f"{identity.name}: cannot read {path} ({reason}). {way_out}")


def _plain(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.layout == torch.strided


def load(path: Path, name: str) -> Dataset:
    """Loads a data set that `prepare` made.

    The file's bytes are compared with the sha256 in its record before they are decoded. One without a record is left
    to torch's reader of plain tensors. Either way the pixels must be the data set's.

    Args:
        path: the file.
        name: name of the data set, one of `DATASETS`.

    Returns:
        The four tensors.

    Raises:
        PaperError: if the file is not there, is damaged, or its bytes are not the data set.
    """
    way_out = f"{sidecar.WAY_OUT} Snakemake does so by itself when it starts; `python -m paper.data {name}` does too."
    return read(Path(path), find(name), way_out)[0]
