"""CIFAR-10 in two small files, for a machine with a GPU and without network.

    python benchmarks/cifar10_parts.py pack results/data/cifar10.pt FOLDER     # writes FOLDER/cifar10.{1,2}.xz
    python benchmarks/cifar10_parts.py unpack FOLDER results/data/cifar10.pt   # there; paper.training reads it

`python -m paper.data cifar10` writes the first file. A part is about 51 MB (xz of the pixels: 70): the residuals of a
predictor from the pixels to the left and above, red and blue less green, as xz. Checksums of the arrays are compared on
both sides.
"""

import argparse
import hashlib
import lzma
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

SIDE, TEST, TRAIN = 32, 10_000, 50_000
PER_PART = 30_000
SHA256 = {
    "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 4, "lc": 4, "lp": 0, "pb": 0}]
Bytes = NDArray[np.uint8]


def check(arrays: dict[str, Bytes]) -> None:
    """Compare the checksums of complete arrays with the published ones."""
    for name, array in arrays.items():
        if len(array) == (TEST if name.startswith("test") else TRAIN):
            got = hashlib.sha256(array.tobytes()).hexdigest()
            assert got == SHA256[name], f"{name}: expected sha256 {SHA256[name]}, got {got}"


def predict(left: NDArray, above: NDArray, corner: NDArray) -> NDArray:
    """The median of left, above and left + above - corner (the predictor of JPEG-LS), int16."""
    low, high = np.minimum(left, above), np.maximum(left, above)
    return np.clip(left + above - corner, low, high)


def encode(images: Bytes) -> bytes:
    """Residuals of (N, 3, 32, 32) pixels, channel by channel."""
    x = np.zeros((3, len(images), SIDE + 1, SIDE + 1), np.int16)
    x[:, :, 1:, 1:] = images.transpose(1, 0, 2, 3)
    x[:, :, 1:, 0] = x[:, :, :-1, 1]
    residual = x[:, :, 1:, 1:] - predict(x[:, :, 1:, :-1], x[:, :, :-1, 1:], x[:, :, :-1, :-1])
    residual[[0, 2]] -= residual[1]
    return residual.astype(np.uint8).tobytes()


def decode(data: bytes) -> Bytes:
    """The inverse of :func:`encode`, pixel after pixel for all images at once."""
    residual = np.frombuffer(data, np.uint8).reshape(3, -1, SIDE, SIDE).copy()
    residual[[0, 2]] += residual[1]
    residual = np.ascontiguousarray(residual.transpose(2, 3, 0, 1))
    x = np.zeros((SIDE + 1, SIDE + 1, *residual.shape[2:]), np.int16)
    for i in range(SIDE):
        x[i + 1, 0] = x[i, 1]
        for j in range(SIDE):
            x[i + 1, j + 1] = (residual[i, j] + predict(x[i + 1, j], x[i, j + 1], x[i, j])) & 255
    return np.ascontiguousarray(x[1:, 1:].transpose(3, 2, 0, 1)).astype(np.uint8)


def pack(source: Path, folder: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in torch.load(source, weights_only=True).items()}
    check(arrays)
    images = np.concatenate([arrays["test_images"], arrays["train_images"]])
    labels = np.concatenate([arrays["test_labels"], arrays["train_labels"]])
    folder.mkdir(parents=True, exist_ok=True)
    for k, start in enumerate(range(0, len(images), PER_PART), 1):
        part = slice(start, start + PER_PART)
        content = hashlib.sha256(images[part].tobytes()).digest() + labels[part].tobytes() + encode(images[part])
        path = folder / f"cifar10.{k}.xz"
        path.write_bytes(lzma.compress(content, format=lzma.FORMAT_XZ, filters=FILTERS))
        print(f"{path}: {path.stat().st_size:,} bytes", flush=True)


def unpack(folder: Path, output: Path) -> None:
    found: list[tuple[Bytes, Bytes]] = []
    for k in range(1, (TEST + TRAIN) // PER_PART + 1):
        path = folder / f"cifar10.{k}.xz"
        content = lzma.decompress(path.read_bytes())
        digest, labels, images = content[:32], content[32 : 32 + PER_PART], decode(content[32 + PER_PART :])
        assert hashlib.sha256(images.tobytes()).digest() == digest, f"{path}: the checksum of its images differs"
        found.append((images, np.frombuffer(labels, np.uint8)))
    images, labels = (np.concatenate(x) for x in zip(*found, strict=True))
    arrays = {"train_images": images[TEST:], "train_labels": labels[TEST:],
              "test_images": images[:TEST], "test_labels": labels[:TEST]}  # fmt: skip
    check(arrays)
    output.parent.mkdir(parents=True, exist_ok=True)
    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, output)
    print(f"{output}: {TRAIN:,} training and {TEST:,} test images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path, help="pack: the data file; unpack: the folder with the parts")
    parser.add_argument("target", type=Path, help="pack: the folder for the parts; unpack: the data file")
    options = parser.parse_args()
    (pack if options.action == "pack" else unpack)(options.source, options.target)


if __name__ == "__main__":
    main()
