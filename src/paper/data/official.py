"""A program of its own: torchvision downloads one data set into a folder. `python official.py NAME FOLDER`.

In a process apart it can be stopped when the network hangs, and its bars and warnings stay off the screen.
"""

import socket
import sys
import tarfile

SECONDS = 5.0


def download(name: str, folder: str) -> None:
    """Downloads and unpacks the official archives, in torchvision's layout."""
    from torchvision import datasets

    socket.setdefaulttimeout(SECONDS)
    if hasattr(tarfile, "data_filter"):  # torchvision unpacks all it fetched: nothing may lead out of the folder
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    {"cifar10": datasets.CIFAR10, "mnist": datasets.MNIST}[name](folder, download=True)


if __name__ == "__main__":
    download(*sys.argv[1:])
