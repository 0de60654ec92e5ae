"""Augmentation of images on their device, by random numbers drawn before each epoch."""

import math

import torch
from torch import Tensor
from torch.nn import functional

PADDING = 4
DRAWS = (2 * PADDING + 1, 2 * PADDING + 1, 2)  # number of possible rows, columns and flips of an image


def flip_and_crop(images: Tensor, draws: Tensor, channels: int) -> Tensor:
    """Random flips, and crops after padding with black pixels.

    Args:
        images: (B, channels, side, side), or flat.
        draws: (B, 3): first row and first column of the crop, and whether it is flipped.
        channels: channels of an image.
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
