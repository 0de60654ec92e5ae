"""The file that holds a data set: a dict of four uint8 tensors, checked by digest at every load."""

import io
from dataclasses import dataclass
from pathlib import Path

import torch

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


def save(path: Path, arrays: Arrays, way_out: str) -> None:
    """Writes the arrays to `path`, whole or not at all."""
    # Through memory: torch hides the reason when a write fails, such as a full disk.
    buffer = io.BytesIO()
    torch.save({name: torch.tensor(arrays[name]) for name in ARRAYS}, buffer)
    write(path, buffer.getbuffer(), way_out)


def read(path: Path, identity: Identity) -> Dataset:
    """The data set in the file `path`; see `load`."""
    way_out = "Delete the file and run again."
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise PaperError(
            f"{identity.name}: expected the file {path}, got none. Make it with `python -m paper.data {identity.name}`."
        ) from error
    except Exception as error:  # a damaged file makes the reader fail in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise PaperError(f"{identity.name}: cannot read {path} ({reason}). {way_out}") from error
    if not isinstance(content, dict) or set(content) != set(ARRAYS) or not all(map(_plain, content.values())):
        raise PaperError(f"{identity.name}: {path}: expected the uint8 tensors {', '.join(ARRAYS)}. {way_out}")
    check({name: content[name].numpy() for name in ARRAYS}, identity, f"file {path}", way_out)
    return Dataset(**content)


def _plain(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.layout == torch.strided


def load(path: Path, name: str) -> Dataset:
    """Loads a data set that `prepare` made.

    Args:
        path: the file.
        name: name of the data set, one of `DATASETS`.

    Returns:
        The four tensors.

    Raises:
        PaperError: if the file is not there, is damaged, or its bytes are not the data set.
    """
    return read(Path(path), find(name))
