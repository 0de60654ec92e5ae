"""A pretend cluster for all tests here, and what an undisturbed run gives."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, lacking


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = lacking()
    if reason:
        pytest.skip(reason)
    # A folder of short name that every user may enter: Slurm and munge ask for both.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    started = Cluster(folder)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated"))
    try:
        started.start()
        yield started
    finally:
        started.stop()
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder)
