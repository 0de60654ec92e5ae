"""Preparing and loading data sets: generated data, the cache, damage, concurrency, the command line."""

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from paper.data import DATASETS, Dataset, load, prepare
from paper.data.__main__ import main
from paper.data.disk import cache_folder
from paper.data.generated import generate
from paper.data.identity import ARRAYS, digest
from paper.data.progress import Progress, Terminal
from paper.errors import PaperError
from tests.data_files import LOCKS, identity_of, quiet, small_arrays, write_layout
from tests.faults.harm import leave_half


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHCOND_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def directory(tmp_path, monkeypatch, cache):
    """A user's folder that holds both sets, small, and identities to match."""
    for name in ("cifar10", "mnist"):
        arrays = small_arrays(name)
        monkeypatch.setitem(DATASETS, name, identity_of(name, arrays))
        write_layout(name, tmp_path / "mine", arrays)
    return tmp_path / "mine"


def equal(data: Dataset, arrays) -> bool:
    return all(np.array_equal(getattr(data, key).numpy(), arrays[key]) for key in ARRAYS)


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()} - LOCKS if folder.exists() else set()


def test_generated_is_the_same_everywhere(tmp_path):
    record = prepare("generated", tmp_path / "g.pt", say=quiet)
    data = load(tmp_path / "g.pt", "generated")
    assert record["digests"] == {key: digest(getattr(data, key).numpy()) for key in ARRAYS}
    assert record["digests"]["train_images"] == "dad9154952dec58bb388bb42f7d169535bd4cdd720ee88dbe056c417fe30a3e6"
    assert record["shapes"]["test_images"] == [160, 3, 8, 8]
    assert record["source"] == "arithmetic"
    assert {tensor.dtype for tensor in vars(data).values()} == {torch.uint8}


def test_generated_can_be_learned():
    arrays = {key: array.astype(float) for key, array in generate().items()}
    images = arrays["train_images"]
    means = np.stack([images[arrays["train_labels"] == label].mean(0) for label in range(10)])
    distance = ((arrays["test_images"][:, None] - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == arrays["test_labels"]).mean() > 0.9


def test_generated_is_not_cached(tmp_path, cache):
    prepare("generated", tmp_path / "out" / "g.pt", say=quiet)
    assert not cache.exists()
    assert leftovers(tmp_path / "out") == {"g.pt", "g.json"}


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_second_time_comes_from_the_cache(name, tmp_path, directory, cache):
    first = prepare(name, tmp_path / "out" / "1.pt", directory, quiet)
    second = prepare(name, tmp_path / "out" / "2.pt", say=quiet)
    assert first["source"] == f"the directory {directory}"
    assert second == first | {"source": "the cache"}
    assert equal(load(tmp_path / "out" / "2.pt", name), small_arrays(name))
    assert os.path.samefile(cache / f"{name}.pt", tmp_path / "out" / "2.pt")
    assert leftovers(cache) == {f"{name}.pt", f"{name}.json"}


def test_preparing_over_its_own_output(tmp_path, directory, cache):
    for _ in range(2):
        prepare("mnist", tmp_path / "out" / "mnist.pt", directory, quiet)
        prepare("mnist", cache / "mnist.pt", directory, quiet)
    assert leftovers(tmp_path / "out") == leftovers(cache) == {"mnist.pt", "mnist.json"}


def test_the_file_is_the_same_whatever_made_it(tmp_path, directory, cache):
    prepare("mnist", tmp_path / "1.pt", directory, quiet)
    (cache / "mnist.pt").unlink()
    prepare("mnist", tmp_path / "2.pt", directory, quiet)
    assert (tmp_path / "1.pt").read_bytes() == (tmp_path / "2.pt").read_bytes()


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PATHCOND_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "pathcond"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/pathcond")
    monkeypatch.setenv("PATHCOND_DATA", "~/data")
    assert cache_folder() == tmp_path / "data"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_bytes(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["train_images"][0, 0, 0] ^= 1
    torch.save(content, path)


def other_shape(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    torch.save(content | {"train_images": content["train_images"][1:]}, path)


DAMAGE = {
    "flipped bit": flip,
    "other bytes": other_bytes,
    "other shape": other_shape,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a tensor"),
    "another object": lambda path: torch.save([1, 2], path),
    "missing tensor": lambda path: torch.save({"train_images": torch.zeros(1)}, path),
    "other type": lambda path: torch.save(dict.fromkeys(ARRAYS, torch.zeros(1, dtype=torch.bfloat16)), path),
}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_seen_and_a_damaged_cache_made_anew(damage, recorded, tmp_path, directory, cache):
    prepare("mnist", tmp_path / "mnist.pt", directory, quiet)
    DAMAGE[damage](cache / "mnist.pt")
    if not recorded:  # as in a cache from before there were records
        (cache / "mnist.json").unlink()
    with pytest.raises(
        PaperError, match=r"cache/mnist\.pt.*Delete the file and run again.*`python -m paper.data mnist`"
    ):
        load(cache / "mnist.pt", "mnist")
    lines = []
    prepare("mnist", tmp_path / "mnist.pt", directory, lines.append)
    assert "removed and made anew" in lines[0]
    assert equal(load(tmp_path / "mnist.pt", "mnist"), small_arrays("mnist"))


def test_other_bytes_name_array_and_both_digests(tmp_path, directory):
    path = tmp_path / "mnist.pt"
    prepare("mnist", path, directory, quiet)
    other_bytes(path)
    path.with_suffix(".json").unlink()
    found = digest(torch.load(path, weights_only=True)["train_images"].numpy())
    with pytest.raises(PaperError) as raised:
        load(path, "mnist")
    expected = DATASETS["mnist"].arrays["train_images"].sha256
    assert all(part in str(raised.value) for part in ("train_images", str(path), expected, found))


@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 100)])
def test_a_file_is_compared_with_its_record_before_it_is_decoded(damage, tmp_path, monkeypatch):
    path = tmp_path / "g.pt"
    expected = prepare("generated", path, say=quiet)["sha256"]
    assert expected == hashlib.sha256(path.read_bytes()).hexdigest()
    damage(path)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(PaperError) as raised:
        load(path, "generated")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"{path}: expected the sha256 {expected} of its record, got {found}. Delete the file" in str(raised.value)


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    prepare("generated", tmp_path / "g.pt", say=quiet)
    (tmp_path / "g.json").write_text("{")
    with pytest.raises(PaperError, match=r"g\.pt: its record g\.json cannot be read .*Delete the file and run again"):
        load(tmp_path / "g.pt", "generated")


def test_load_without_file_or_with_unknown_name(tmp_path):
    with pytest.raises(PaperError, match="python -m paper.data mnist"):
        load(tmp_path / "none.pt", "mnist")
    with pytest.raises(PaperError, match="one of cifar10, mnist, generated, got 'cifar'. Did you mean cifar10"):
        load(tmp_path / "none.pt", "cifar")


def test_many_at_once_fetch_once(tmp_path, directory):
    lines, errors = [], []

    def work(number: int) -> None:
        try:
            prepare("cifar10", tmp_path / "out" / f"{number % 2}.pt", directory, lines.append)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum("trying" in line for line in lines) == 1
    assert leftovers(tmp_path / "out") == {"0.pt", "0.json", "1.pt", "1.json"}
    assert equal(load(tmp_path / "out" / "0.pt", "cifar10"), small_arrays("cifar10"))


def test_what_a_killed_run_left_is_removed(tmp_path, directory, cache):
    (cache / "mnist.abc.tmp" / "npm").mkdir(parents=True)
    (cache / "mnist.abc.tmp" / "npm" / "part").write_bytes(b"1")
    leave_half(cache / "mnist.pt")
    (cache / "cifar10.abc.tmp").mkdir()
    prepare("mnist", tmp_path / "mnist.pt", directory, quiet)
    assert {path.name for path in cache.iterdir()} - LOCKS == {"mnist.pt", "mnist.json", "cifar10.abc.tmp"}


def test_command_line(tmp_path, directory, capsys):
    words = ["mnist", "generated", "--output", str(tmp_path / "out"), "--directory", str(directory)]
    assert main(words) == 0
    assert leftovers(tmp_path / "out") == {"mnist.pt", "mnist.json", "generated.pt", "generated.json"}
    record = json.loads((tmp_path / "out" / "mnist.json").read_text())
    assert record["dataset"] == "mnist"
    assert record["digests"]["train_images"] == DATASETS["mnist"].arrays["train_images"].sha256
    assert f"mnist: in {tmp_path}/out/mnist.pt, from the directory" in capsys.readouterr().err


def test_command_line_checks_names_first(tmp_path, capsys):
    assert main(["generated", "minst", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said == "error: data set: expected one of cifar10, mnist, generated, got 'minst'. Did you mean mnist?\n"
    assert not (tmp_path / "out").exists()


def test_command_line_interrupted(tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("paper.data.__main__.prepare", interrupt)
    assert main(["generated", "--output", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_as_programs_at_once(tmp_path):
    """Two processes with one output; and torchvision is not imported where it is not needed."""
    code = (
        "import sys; from paper.data.__main__ import main; status = main(sys.argv[1:]); "
        "sys.exit(status or ('torchvision' in sys.modules))"
    )
    command = [sys.executable, "-c", code, "generated", "--output", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PATHCOND_DATA": str(tmp_path / "cache")}
    programs = [subprocess.Popen(command, env=environment) for _ in range(2)]  # noqa: S603
    assert [program.wait(60) for program in programs] == [0, 0]
    assert leftovers(tmp_path) == {"generated.pt", "generated.json"}
    assert equal(load(tmp_path / "generated.pt", "generated"), generate())


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_overwritten_at_a_terminal():
    screen = Screen()
    progress = Progress("cifar10", 139_000_000, Terminal(screen))
    for done in (0, 45_000_000, 45_000_001, 278_000_000):
        progress.update(done)
    assert screen.getvalue() == "cifar10: 0 of 139 MB\rcifar10: 45 of 139 MB\rcifar10: 139 of 139 MB\n"


def test_a_line_after_progress_starts_afresh():
    screen = Screen()
    say = Terminal(screen)
    say("\rlong progress")
    say("short")
    assert screen.getvalue() == "long progress\rshort        \n"


def test_progress_is_a_line_each_tenth_in_a_log():
    lines = []
    progress = Progress("mnist", 10_000_000, lines.append)
    for done in range(0, 12_000_000, 250_000):
        progress.update(done)
    assert lines == [f"mnist: {done} of 10 MB" for done in range(1, 11)]
