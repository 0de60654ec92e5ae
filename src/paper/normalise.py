"""Mean and standard deviation by which the images of a data set are normalised."""

import torch
from torch import Tensor

from paper.errors import PaperError

MOMENTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "mnist": ((0.1307,), (0.3081,)),
    "generated": ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
}


def factors(dataset: str) -> tuple[Tensor, Tensor]:
    """Scale and shift by channel, so that a byte x becomes x * scale + shift = (x / 255 - mean) / deviation."""
    if dataset not in MOMENTS:
        raise PaperError(f"dataset: expected one of {', '.join(MOMENTS)}, got {dataset!r}.")
    mean, deviation = (torch.tensor(values) for values in MOMENTS[dataset])
    return 1 / (255 * deviation), -mean / deviation
