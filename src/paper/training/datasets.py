"""Data splits of a run on its device: images (uint8, normalized and augmented in use), or windows of a text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paper import data, models
from paper.cli import PaperError

# Mean and standard deviation of each channel, by which the images of a data set are normalized.
MOMENTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "mnist": ((0.1307,), (0.3081,)),
    "generated": ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
}
PADDING = 4
DRAWS = (2 * PADDING + 1, 2 * PADDING + 1, 2)  # number of possible rows, columns and flips of an image


@dataclass(frozen=True)
class Split:
    """Images (N, ...) uint8 and labels (N,) int64; of a text, windows (N, T) and the characters that follow, (N, T)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Splits:
    """Train, test and optional validation split; a network sees x * scale + shift of an image, text as it is."""

    by_name: dict[str, Split]
    scale: Tensor
    shift: Tensor

    @property
    def train(self) -> Split:
        """The training split."""
        return self.by_name["train"]


def load(spec: Mapping[str, Any], path: Path, device: torch.device) -> Splits:
    """Load the splits of a spec: `images` and then `validation` of the train set, `test_images` of the test set."""
    dataset = data.load(path, spec["dataset"])
    train, validation, test = spec["images"], spec["validation"], spec["test_images"]
    for name, asked, available in (
        ("images and validation", train + validation, len(dataset.train_images)),
        ("test_images", test, len(dataset.test_images)),
    ):
        if asked > available:
            raise PaperError(f"{name}: expected at most {available} of {spec['dataset']}, got {asked}.")
    splits = {}
    for name, images, labels, part in (
        ("train", dataset.train_images, dataset.train_labels, slice(train)),
        ("validation", dataset.train_images, dataset.train_labels, slice(train, train + validation)),
        ("test", dataset.test_images, dataset.test_labels, slice(test)),
    ):
        if name != "validation" or validation:
            splits[name] = _split(images[part], labels[part], spec["model"], device)
    if spec["model"]["kind"] in models.TEXT:
        return Splits(splits, torch.ones((), device=device), torch.zeros((), device=device))
    channels = 1 if dataset.train_images.ndim == 3 else dataset.train_images.shape[1]
    scale, shift = (per_input(t, channels, spec["model"]).to(device) for t in factors(spec["dataset"]))
    return Splits(splits, scale, shift)


def _split(images: Tensor, labels: Tensor, model: Mapping[str, Any], device: torch.device) -> Split:
    if model["kind"] in models.TEXT:
        images, labels = (t[:, : model["context"]].contiguous() for t in (images, labels))
        return Split(images.to(device), labels.long().to(device))
    images = images[:, None] if images.ndim == 3 else images
    return Split(models.fit_images(images, model).contiguous().to(device), labels.long().to(device))


def factors(dataset: str) -> tuple[Tensor, Tensor]:
    """Scale and shift by channel, so that a byte x becomes x * scale + shift = (x / 255 - mean) / deviation."""
    mean, deviation = (torch.tensor(values) for values in MOMENTS[dataset])
    return 1 / (255 * deviation), -mean / deviation


def per_input(values: Tensor, channels: int, model: Mapping[str, Any]) -> Tensor:
    """Values of the channels, in a shape that multiplies the inputs of a network."""
    shape = models.input_shape(model)
    if len(shape) == 3:
        return values.view(channels, 1, 1)
    return values.repeat_interleave(shape[0] // channels)


def flip_and_crop(images: Tensor, draws: Tensor, channels: int) -> Tensor:
    """Random flips, and crops after padding with black pixels, of images (B, channels, side, side), or flat.

    `draws` (B, 3), drawn before each epoch, hold first row and first column of the crop, and whether it is flipped.
    """
    side = images.shape[-1] if images.ndim == 4 else math.isqrt(images.shape[1] // channels)
    padded = functional.pad(images.view(-1, channels, side, side), [PADDING] * 4)
    steps = torch.arange(side, device=images.device)
    rows = draws[:, 0, None] + steps
    columns = draws[:, 1, None] + torch.where(draws[:, 2, None] > 0, side - 1 - steps, steps)
    number = torch.arange(len(images), device=images.device)
    channel = torch.arange(channels, device=images.device)
    found = padded[number[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None]]
    return found.view(images.shape)
