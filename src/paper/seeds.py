"""Random numbers by (seed, purpose): all methods share those of a seed; purposes have separate streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from paper.lazy import torch

PURPOSES = ("init", "order", "input", "widths", "augmentation", "unequal")


def number(seed: int, purpose: str, *names: object) -> int:
    """A 63-bit number from a seed, a purpose and other values that separate streams, such as a depth."""
    if purpose not in PURPOSES:
        raise ValueError(f"purpose: expected one of {', '.join(PURPOSES)}, got {purpose!r}")
    text = "/".join(map(str, (seed, purpose, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *names: object) -> torch.Generator:
    """A generator on the CPU whose stream depends on the arguments alone."""
    return torch.Generator().manual_seed(number(seed, purpose, *names))


@contextmanager
def seeded(seed: int, purpose: str, *names: object) -> Iterator[None]:
    """Torch's own generator, which initializes layers, seeded within the block; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, purpose, *names))
        yield
