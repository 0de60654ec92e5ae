"""The data sets of the paper, known by the digests of their pixels, whatever source delivered them."""

from paper.data.artifact import Dataset, load
from paper.data.cache import prepare
from paper.data.identity import DATASETS

__all__ = ["DATASETS", "Dataset", "load", "prepare"]
