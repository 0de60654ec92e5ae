"""The command `python -m paper.train`: the same bytes whatever happens to it on the way, and errors one can act on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paper import cli, data, store
from paper.errors import PaperError
from paper.plan import key
from paper.train import __main__ as command
from paper.train import loop
from paper.train.checkpoint import Checkpoint
from paper.train.loop import result_path
from tests.paper.train.plain import CONV, MLP, cell

# On one worker: they share what is trained in the background.
pytestmark = pytest.mark.xdist_group("train command")

ROOT = Path(__file__).parents[3]
FLAT = {**MLP, "inputs": 192}
SHORT = [
    cell(FLAT, "pathcond"),
    cell(FLAT, "enorm"),
    cell({"kind": "autoencoder", "inputs": 192, "compression": 4}, "pathcond"),
    cell(CONV, "pathcond", validation=16),
]
LONG = cell(FLAT, "pathcond", epochs=75, images=256, batch=32)
STOPPED = "time is up: everything is in checkpoints; the same command goes on from there\n"


class Place:
    """A folder to train in."""

    def __init__(self, folder, images):
        self.results, self.checkpoints, self.images = folder / "results", folder / "checkpoints", images
        self.specs = folder / "specs.json"
        folder.mkdir(exist_ok=True)

    def words(self, specs, *more):
        self.specs.write_text(json.dumps(specs))
        folders = ["--results", self.results, "--data", self.images, "--checkpoints", self.checkpoints]
        return [*map(str, (self.specs, *folders, "--device", "cpu", *more))]

    def begin(self, specs, *more, threads="1"):
        """Start the command; it runs on."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": threads}
        words = [sys.executable, "-m", "paper.train", *self.words(specs, *more)]
        return subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)  # noqa: S603

    def run(self, specs, *more):
        """Exit status of the command, and what it said."""
        job = self.begin(specs, *more)
        said = job.communicate(timeout=60)[1]
        return job.returncode, said

    def content(self, spec):
        return (self.results / "tiny" / f"{key(spec)}.csv").read_bytes()

    def kept(self):
        return [path for path in self.checkpoints.rglob("*") if path.is_file()]

    def wait_for_news(self, job, before):
        """Wait until a job has written a checkpoint."""
        end = time.monotonic() + 60
        while self.news() == before:
            assert job.poll() is None, job.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.002)

    def news(self):
        return sorted((path.name, path.stat().st_ino) for path in self.checkpoints.rglob("*lr*.pt"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data.prepare("generated", folder / "generated.pt")
    return folder


@pytest.fixture
def place(images, tmp_path):
    return Place(tmp_path, images)


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the command's program in this process; gives its exit status and what it said."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the other processes

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["paper.train", *map(str, words)])
        try:
            cli.run(command.main)
            status = 0
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        assert out == ""
        return status, err

    yield run
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module", autouse=True)
def background(images, tmp_path_factory):
    """All cells trained undisturbed by one command, while other tests run."""
    found = Place(tmp_path_factory.mktemp("undisturbed"), images)
    job = found.begin([*SHORT, LONG], "--save-every", "0")
    yield found, job
    job.kill()
    job.communicate()


@pytest.fixture
def undisturbed(background):
    """Waits for those cells, and gives the bytes of one."""
    found, job = background

    def content(spec):
        said = job.communicate(timeout=60)[1]
        assert job.returncode == 0, said
        assert not found.kept()
        return found.content(spec)

    return content


def test_the_same_command_gives_the_same_bytes(images, tmp_path, call, undisturbed):
    every, one = (Place(tmp_path / name, images) for name in ("every", "one"))
    assert call(*every.words(SHORT))[0] == 0
    assert call(*one.words(SHORT[1]))[0] == 0
    for spec in SHORT:
        assert every.content(spec) == undisturbed(spec)
    assert one.content(SHORT[1]) == undisturbed(SHORT[1])
    assert not every.kept()
    written = sorted(path.suffix for path in every.results.rglob("*") if path.is_file())
    assert written == [".csv"] * 4 + [".json"] * 4


def test_the_number_of_threads_is_not_the_machines(place, images, tmp_path, call):
    """As wide as the paper's, where another number of threads rounds differently."""
    wide = cell({**FLAT, "hidden": [500, 500]}, "pathcond", images=256, batch=128, epochs=1)
    job = place.begin([wide], threads="")  # which torch takes for as many as there are
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 0, said
    other, third = (Place(tmp_path / name, images) for name in ("one", "two"))
    assert call(*other.words([wide], "--threads", "1"))[0] == 0
    assert call(*third.words([wide], "--threads", "2"))[0] == 0
    assert place.content(wide) == other.content(wide)
    threads = [store.read_record(result_path(p.results, wide))["threads"] for p in (place, other, third)]
    assert threads == [1, 1, 2]


@pytest.mark.slow
def test_killed_again_and_again_it_gives_the_same_bytes(place, undisturbed):
    chance, delays = random.SystemRandom(), []
    for _ in range(2):
        before = place.news()
        job = place.begin([LONG], "--save-every", "0")
        place.wait_for_news(job, before)
        delays.append(chance.uniform(0.0, 0.4))
        time.sleep(delays[-1])
        job.kill()
        job.communicate()
        assert job.returncode == -signal.SIGKILL, delays
    status, said = place.run([LONG], "--save-every", "0")
    assert status == 0, said
    assert place.content(LONG) == undisturbed(LONG), delays
    assert not list(place.checkpoints.iterdir()), delays


def test_stopped_by_a_scheduler_and_by_the_clock_it_goes_on(place, undisturbed, call):
    job = place.begin([LONG], "--save-every", "0")
    place.wait_for_news(job, [])
    job.send_signal(signal.SIGTERM)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 75, said
    assert said.endswith(STOPPED)
    assert "Traceback" not in said
    before = place.news()
    status, said = call(*place.words([LONG], "--time-limit", "0.2"))
    assert status == 75
    assert said.endswith(STOPPED)
    assert len(before) == 1
    assert place.news() != before
    assert not place.results.exists()
    status, said = call(*place.words([LONG]))
    assert status == 0
    assert int(said.split("epoch ")[1].split("/")[0]) > 2
    assert place.content(LONG) == undisturbed(LONG)
    assert not list(place.checkpoints.iterdir())


def test_a_scheduler_may_warn_with_another_signal(place, call, monkeypatch):
    inner = loop._note

    def note(pairs, backend, epoch):
        inner(pairs, backend, epoch)
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(loop, "_note", note)
    status, said = call(*place.words(SHORT[:1]))
    assert (status, said[-len(STOPPED) :]) == (75, STOPPED)
    assert len(place.kept()) == 1


def test_interrupted_by_hand_it_says_so_and_goes_on(place, call, monkeypatch, undisturbed):
    inner, calls = Checkpoint.write, []

    def write(checkpoint, seeds):
        inner(checkpoint, seeds)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", write)
        status, said = call(*place.words(SHORT[:1], "--save-every", "0"))
    assert status == 130
    assert said.endswith("\nstopped: the last checkpoints hold what was done; the same command goes on from there\n")
    assert len(place.kept()) == 1
    assert call(*place.words(SHORT[:1]))[0] == 0
    assert place.content(SHORT[0]) == undisturbed(SHORT[0])


def test_no_time_at_all_is_time_up(place, call):
    assert call(*place.words(SHORT[:1], "--time-limit", "0")) == (75, STOPPED)
    assert not place.kept()


def test_specs_come_as_text_or_files_and_are_picked_by_name(place, call):
    words = place.words(SHORT[:2], "--match", "enorm")
    measure = json.dumps({"stage": "measure", "item": "toy", "part": "all", "version": 1, "settings": {}})
    status, said = call(json.dumps(SHORT[2]), measure, *words)
    assert status == 0
    assert [path.name for path in place.results.rglob("*.csv")] == [f"{key(SHORT[1])}.csv".rpartition("/")[2]]
    assert "rebuild" not in said
    status, said = call(json.dumps(SHORT[2]), *place.words(SHORT[:2]))
    assert status == 0
    assert f"{key(SHORT[1])}: already there\n" in said
    assert len(list(place.results.rglob("*.csv"))) == 3


def test_a_name_that_no_cell_has_is_a_mistake(place, call):
    status, said = call(*place.words(SHORT, "--match", "enrom"))
    assert (status, said) == (2, "error: --match: expected part of a name of the 4 train runs given, got 'enrom'.\n")
    assert not place.results.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("missing.json", "cannot read the specs missing.json: No such file or directory. `make specs` writes them."),
        ("{not json", "{not json: expected JSON, got something else"),
        ('{"stage": "train"}', "expected specs as `make specs` writes them, got {'stage': 'train'}."),
        ('{"network": "mlp"}', "expected specs as `make specs` writes them"),
        (json.dumps({**SHORT[0], "lr": "fast"}), "expected specs as `make specs` writes them"),
        (json.dumps({k: v for k, v in SHORT[0].items() if k != "model"}), "expected model, got none."),
        (json.dumps({**SHORT[0], "dataset": "imagenet"}), "imagenet"),
        (json.dumps({**SHORT[0], "dataset": "mnist", "model": {**FLAT, "inputs": 196}}), "python -m paper.data mnist"),
        (json.dumps({**SHORT[0], "images": 10_000}), "images and validation: expected at most 640 of generated"),
        (json.dumps({**SHORT[0], "model": {"kind": "lstm"}}), "model.kind: expected one of mlp"),
        (json.dumps({**SHORT[0], "model": {**FLAT, "activation": "tanh"}}), "activation: expected one of relu"),
        (json.dumps({**SHORT[0], "model": {**FLAT, "wdth": 3}}), "got wdth."),
        (json.dumps({**SHORT[0], "optimiser": {"name": "lion"}}), "optimiser.name: expected one of sgd, adam, muon"),
    ],
)
def test_a_mistake_is_one_message_and_status_two(text, words, place, call):
    status, said = call(text, *place.words([]))
    assert status == 2
    assert said.startswith("error: ")
    assert words in said
    assert not place.results.exists()


def test_files_that_hold_no_specs_are_refused(place, call):
    for content in ("[1, 2]", '"text"', "[", ""):
        words = place.words([])
        place.specs.write_text(content)
        status, said = call(*words)
        assert status == 2, content
        assert said.startswith("error: ")


def test_a_data_set_that_is_missing_or_damaged_says_what_to_do(place, call, tmp_path):
    place.images = tmp_path / "nowhere"
    status, said = call(*place.words(SHORT[:1]))
    assert status == 2
    assert "python -m paper.data generated" in said
    place.images.mkdir()
    (place.images / "generated.pt").write_bytes(b"no data")
    status, said = call(*place.words(SHORT[:1]))
    assert status == 2
    assert "Delete the file and run again" in said


def test_a_mistake_in_the_shell_has_no_traceback(place):
    status, said = place.run([{**SHORT[0], "test_images": 9999}])
    assert status == 2
    assert said.startswith("error: train/classify/mlp/pathcond-lr0.05-")
    assert ": test_images: expected at most 160 of generated, got 9999. " in said
    assert said.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_named(place, call):
    place.results.parent.mkdir(exist_ok=True)
    place.results.write_text("a file in the way")
    status, said = call(*place.words(SHORT[:1]))
    assert status == 2
    assert "error: cannot write " in said
    with pytest.raises(PaperError):
        store.read_result(place.results / "x.csv")
