"""The images a run sees, on its device: one uint8 tensor a part, normalised where they are used."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper import data, models
from paper.errors import PaperError
from paper.normalise import factors


@dataclass(frozen=True)
class Part:
    """Images (N, ...) uint8 and labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Sets:
    """Train, test and, where there is one, validation part; an image x enters a network as x * scale + shift."""

    parts: dict[str, Part]
    scale: Tensor
    shift: Tensor

    @property
    def train(self) -> Part:
        """The part that is trained on."""
        return self.parts["train"]


def load(cell: Mapping[str, Any], path: Path, device: torch.device) -> Sets:
    """Read what a cell asks for: `images` of the train set, `validation` more of it, `test_images` of the test set.

    Raises:
        PaperError: the data set has fewer images than asked for, or a batch is too small for BatchNorm.
    """
    given = data.load(path, cell["dataset"])
    train, held, test = cell["images"], cell["validation"], cell["test_images"]
    for name, asked, there in (
        ("images and validation", train + held, len(given.train_images)),
        ("test_images", test, len(given.test_images)),
    ):
        if asked > there:
            raise PaperError(f"{name}: expected at most {there} of {cell['dataset']}, got {asked}.")
    _check_last_batch(cell)
    parts = {"train": _part(given.train_images[:train], given.train_labels[:train], cell["model"], device)}
    if held:
        end = train + held
        parts["validation"] = _part(given.train_images[train:end], given.train_labels[train:end], cell["model"], device)
    parts["test"] = _part(given.test_images[:test], given.test_labels[:test], cell["model"], device)
    channels = 1 if given.train_images.ndim == 3 else given.train_images.shape[1]
    scale, shift = (_shaped(t, channels, cell["model"]).to(device) for t in factors(cell["dataset"]))
    return Sets(parts, scale, shift)


def _check_last_batch(cell: Mapping[str, Any]) -> None:
    normed = cell["model"]["kind"] == "mlp" and cell["model"].get("batchnorm", True)
    last = cell["images"] % cell["batch"] or cell["batch"]
    if normed and last == 1:
        raise PaperError(
            f"images: {cell['images']} in batches of {cell['batch']} leave one image by itself, of which BatchNorm has "
            "no variance. Take one image more or fewer, or other batches."
        )


def _part(images: Tensor, labels: Tensor, model: Mapping[str, Any], device: torch.device) -> Part:
    images = images[:, None] if images.ndim == 3 else images
    return Part(models.fit_images(images, model).contiguous().to(device), labels.long().to(device))


def _shaped(values: Tensor, channels: int, model: Mapping[str, Any]) -> Tensor:
    shape = models.input_shape(model)
    if len(shape) == 3:
        return values.view(channels, 1, 1)
    return values.repeat_interleave(shape[0] // channels)
