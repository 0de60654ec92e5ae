"""The command `python -m paper.training`: the same bytes after any interruption, and clear errors."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paper import results
from paper.results import index_of
from paper.runs import key, result_path
from paper.training.batched_mlps import BatchedTrainer
from paper.training.runner import Checkpoint
from tests.bad_input.command import Place as Folder
from tests.paper.training.reference import CONV, FLAT, make_spec

# On one worker: they share what is trained undisturbed.
pytestmark = pytest.mark.xdist_group("train command")

ROOT = Path(__file__).parents[3]
SHORT = [
    make_spec(FLAT, "pathcond"),
    make_spec(FLAT, "enorm"),
    make_spec({"kind": "autoencoder", "inputs": 192, "compression": 4}, "pathcond"),
    make_spec(CONV, "pathcond", validation=16),
]
LONG = make_spec(FLAT, "pathcond", epochs=75, images=256, batch=32)
STOPPED = "time is up; the same command resumes from the checkpoints\n"


class Place:
    """A folder to train in."""

    def __init__(self, folder, images):
        self.folder, self.results, self.checkpoints = folder, folder / "results", folder / "checkpoints"
        self.images = images
        folder.mkdir(exist_ok=True)

    def words(self, specs, *more):
        (self.folder / "specs.json").write_text(json.dumps(specs))
        folders = ["--results", self.results, "--data", self.images, "--checkpoints", self.checkpoints]
        return [*map(str, (self.folder / "specs.json", *folders, "--device", "cpu", *more))]

    def begin(self, specs, *more):
        """Start the command in the background."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "paper.training", *self.words(specs, *more)]
        return subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)  # noqa: S603

    def run(self, specs, *more):
        """Messages of the command, which must succeed."""
        job = self.begin(specs, *more)
        said = job.communicate(timeout=600)[1]
        assert job.returncode == 0, said
        return said

    def content(self, spec):
        return (self.results / "tiny" / f"{key(spec)}.csv").read_bytes()

    def kept(self):
        return sorted((path.name, path.stat().st_ino) for path in self.checkpoints.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def images(generated):
    return generated.parent


@pytest.fixture
def place(images, tmp_path):
    return Place(tmp_path, images)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Call the program in this process, on one thread as in the others; returns its exit status and its messages."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield functools.partial(Folder(tmp_path, monkeypatch, capsys).call, "training")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    """Short specs trained by one command in a process of its own; returns a function to the bytes of their tables."""
    found = Place(tmp_path_factory.mktemp("undisturbed"), images)
    found.run(SHORT, "--save-every", "0")
    assert not found.kept()
    return found.content


def test_the_same_command_gives_the_same_bytes(images, tmp_path, call, undisturbed):
    every, one = (Place(tmp_path / name, images) for name in ("every", "one"))
    assert call(*every.words(SHORT))[0] == 0
    assert call(*one.words(SHORT[1]))[0] == 0
    assert all(every.content(spec) == undisturbed(spec) for spec in SHORT)
    assert one.content(SHORT[1]) == undisturbed(SHORT[1])
    assert not every.kept()


def test_the_number_of_threads_is_not_the_machines(place, call, monkeypatch):
    """Another number rounds wide networks differently."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # torch then uses all cores
    for spec, more, threads in ((SHORT[0], (), 1), (SHORT[1], ("--threads", "2"), 2)):
        torch.set_num_threads(2)
        assert call(*place.words([spec], *more))[0] == 0
        assert results.read_provenance(result_path(place.results, spec))["threads"] == threads


@pytest.mark.slow
def test_it_resumes_after_signals_and_a_time_limit(place, images, tmp_path, call):
    assert call(*place.words([LONG], "--time-limit", "0")) == (75, STOPPED)
    before = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        job, end = place.begin([LONG], "--save-every", "0"), time.monotonic() + 600
        while not (news := [found for found in place.kept() if found[0].endswith(".pt")]) or news == before:
            assert job.poll() is None, job.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.002)
        job.send_signal(number)
        said = job.communicate(timeout=600)[1]
        assert job.returncode == 75, said
        assert said.endswith(STOPPED)
        assert "Traceback" not in said
        before = place.kept()
    status, said = call(*place.words([LONG], "--time-limit", "0.2"))
    assert (status, said.endswith(STOPPED)) == (75, True)
    assert len(before) == 1
    assert place.kept() != before
    assert not place.results.exists()
    status, said = call(*place.words([LONG]))
    assert status == 0
    assert int(said.split("epoch ")[1].split("/")[0]) > 1
    assert not place.kept()
    undisturbed = Place(tmp_path / "undisturbed", images)
    undisturbed.run([LONG])
    assert place.content(LONG) == undisturbed.content(LONG)


@pytest.mark.slow
def test_several_processes_share_the_runs(place, undisturbed):
    said = place.run(SHORT, "--workers", "2")
    assert all(place.content(spec) == undisturbed(spec) for spec in SHORT)
    assert not place.kept()
    trained = [line for line in said.splitlines() if " s on CPU" in line]
    assert len(trained) == len(SHORT), "each run is trained once"


def test_it_resumes_after_ctrl_c(place, call, monkeypatch, undisturbed):
    inner, calls = Checkpoint.write, []

    def write(checkpoint, state):
        inner(checkpoint, state)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", write)
        status, said = call(*place.words(SHORT[:1], "--save-every", "0"))
    assert status == 130
    assert said.endswith("\nstopped; the same command resumes from the last checkpoints\n")
    assert len(place.kept()) == 1
    assert call(*place.words(SHORT[:1]))[0] == 0
    assert place.content(SHORT[0]) == undisturbed(SHORT[0])


def test_specs_come_as_text_or_files_and_are_picked_by_name(place, call):
    toy = {"stage": "measure", "preset": "tiny", "experiment": "toy", "part": "all", "version": 1, "settings": {}}
    status, _ = call(json.dumps(SHORT[2]), json.dumps(toy), *place.words(SHORT[:2], "--match", "enorm"))
    assert status == 0
    assert [path.name for path in place.results.rglob("*.csv")] == [f"{key(SHORT[1])}.csv".rpartition("/")[2]]
    status, said = call(json.dumps(SHORT[2]), *place.words(SHORT[:2]))
    assert status == 0
    assert "1 of 3 runs exist and are reused\n" in said
    assert len(list(place.results.rglob("*.csv"))) == 3


@pytest.mark.parametrize("kind", ["csv", "json", "index", "checkpoint"])
def test_a_folder_in_the_way_is_refused_before_training(kind, place, call, monkeypatch):
    monkeypatch.setattr(BatchedTrainer, "epoch", None)
    table, index = result_path(place.results, SHORT[0]), place.results / "index.json"
    kept = Checkpoint(place.checkpoints, SHORT[0]).path
    way = {"csv": table, "json": table.with_suffix(".json"), "index": index, "checkpoint": kept}[kind]
    way.mkdir(parents=True)
    status, said = call(*place.words(SHORT[:1], "--index", index))
    assert status == 2
    assert said == f"error: {way}: expected a file or nothing, got a folder. Move it elsewhere, or remove it.\n"


def test_an_index_lists_all_runs_and_needs_no_torch_where_they_exist(place, call):
    index = place.results / "index.json"
    words = place.words(SHORT[:2], "--index", index)
    assert call(*words)[0] == 0
    assert json.loads(index.read_text()) == index_of(place.results, SHORT[:2])
    index.unlink()
    code = f"import sys; sys.argv[1:] = {words!r}; from paper.training.__main__ import main; main(); "
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(index.read_text())) == 2
