"""A small data set made on the spot by integer arithmetic, so that tests need no download."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from paper.data.identity import Arrays

CLASSES = 10
IMAGE = (3, 8, 8)
TRAIN, TEST = 640, 160


def _bytes(purpose: str, *shape: int) -> NDArray[np.uint8]:
    # A hash's output is fixed by a standard; a random generator's stream may change with its library.
    count = int(np.prod(shape))
    stream = hashlib.shake_256(f"pathcond generated {purpose}".encode()).digest(count)
    return np.frombuffer(stream, np.uint8).reshape(shape)


def _part(purpose: str, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    labels = (np.arange(count) % CLASSES).astype(np.uint8)
    patterns = _bytes("patterns", CLASSES, *IMAGE).astype(np.uint16)
    noise = _bytes(purpose, count, *IMAGE).astype(np.uint16)
    return ((patterns[labels] + 3 * noise) // 4).astype(np.uint8), labels


def generate() -> Arrays:
    """Ten classes, each a fixed random pattern under noise three times as strong; the same bytes everywhere."""
    train_images, train_labels = _part("train", TRAIN)
    test_images, test_labels = _part("test", TEST)
    return {
        "train_images": train_images,
        "train_labels": train_labels,
        "test_images": test_images,
        "test_labels": test_labels,
    }
