"""What the workflow finds when it starts: one that is at work already, whole results, damaged ones."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from paper import accept, data, plan, store
from paper.errors import PaperError
from tests.faults.harm import ROOT, cut, flip

SPECS = [
    {"stage": "measure", "scale": "tiny", "item": "toy", "part": "all", "version": version, "settings": {"seeds": [0]}}
    for version in range(4)
]
KEYS = [plan.key(spec) for spec in SPECS]


@pytest.fixture(params=["tiny", "paper"])
def results(request, tmp_path) -> Path:
    """Three results; the second has a damaged table, the third a damaged record."""
    folder = tmp_path / "results" / request.param
    for spec, key in zip(SPECS[:3], KEYS, strict=False):
        store.write_result(folder / f"{key}.csv", pd.DataFrame({"seed": [0], "loss": [0.25]}), spec, {"seconds": 1.5})
    cut(folder / f"{KEYS[1]}.csv")
    flip(folder / f"{KEYS[2]}.json")
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def find(results: Path, mend: bool) -> set[str]:
    return accept.accepted(results.name, KEYS, mend, results.parent, results.parents[1] / "checkpoints")


@pytest.mark.parametrize("results", ["tiny"], indirect=True)
def test_damaged_results_are_deleted_to_be_made_again(results, capsys):
    before = files(results)
    assert find(results, False) == {KEYS[0]}
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in said] == [f"{results / key}.csv" for key in KEYS[1:3]]
    assert all(line.endswith("Delete it and run again.") for line in said)
    assert files(results) == before
    assert find(results, True) == {KEYS[0]}
    said = capsys.readouterr().err.splitlines()
    assert all(line.endswith(". It is deleted and made again.") for line in said)
    assert files(results) == {f"{KEYS[0]}.csv", f"{KEYS[0]}.json"}
    assert find(results, True) == {KEYS[0]}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("results", ["paper"], indirect=True)
@pytest.mark.parametrize("mend", [True, False])
def test_damaged_evidence_stops_the_workflow(results, mend, capsys):
    before = files(results)
    with pytest.raises(PaperError) as caught:
        find(results, mend)
    table, record, way_out = str(caught.value).splitlines()
    assert table.startswith(f"{results / KEYS[1]}.csv: expected the sha256")
    assert record.startswith(f"{results / KEYS[2]}.csv: its record")
    both = " ".join(f"'{results / key}.*'" for key in KEYS[1:3])
    assert way_out == f"Or bring back what was recorded: git restore {both}"
    assert files(results) == before


@pytest.mark.parametrize("results", ["tiny"], indirect=True)
def test_a_checkpoint_that_its_result_outdates_is_deleted(results):
    folder = results.parents[1] / "checkpoints"
    for key in KEYS:
        store.write_bytes(folder / "tiny" / f"{key}.pt", b"state")
    find(results, False)
    assert len(files(folder)) == 4
    find(results, True)
    assert files(folder) == {f"tiny/{key}.pt" for key in KEYS[1:]}


def test_half_a_result_is_due(results, capsys):
    for key, suffix in ((KEYS[0], ".json"), (KEYS[1], ".csv"), (KEYS[2], ".csv")):
        (results / f"{key}{suffix}").unlink()
    assert find(results, True) == set()
    assert capsys.readouterr().err == ""


DAMAGE = {
    "flipped": (flip, "expected the sha256"),
    "cut": (cut, "expected the sha256"),
    "not recorded": (
        lambda path: path.with_suffix(".json").unlink(),
        "expected its sha256 in the record generated.json",
    ),
    "recorded without": (lambda path: path.with_suffix(".json").write_text("{}"), "expected its sha256 in the record"),
    "a damaged record": (lambda path: cut(path.with_suffix(".json")), "its record generated.json cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_data_are_deleted_to_be_made_again(kind, tmp_path, capsys):
    damage, says = DAMAGE[kind]
    path = tmp_path / "generated.pt"
    data.prepare("generated", path, say=lambda _: None)
    whole = path.read_bytes()
    damage(path)
    before = files(tmp_path)
    accept.check_data(path, False)
    said = capsys.readouterr().err
    assert said.startswith(f"{path}: {says}")
    assert said.endswith(". Delete the file and run again.\n")
    assert files(tmp_path) == before
    accept.check_data(path, True)
    assert capsys.readouterr().err == said.replace("Delete the file and run again.", "It is deleted and made again.")
    assert files(tmp_path) == set()
    data.prepare("generated", path, say=lambda _: None)
    assert path.read_bytes() == whole


def test_data_that_are_whole_or_missing_are_left(tmp_path, capsys):
    path = tmp_path / "generated.pt"
    accept.check_data(path, True)
    data.prepare("generated", path, say=lambda _: None)
    accept.check_data(path, True)
    assert files(tmp_path) == {"generated.pt", "generated.json"}
    assert capsys.readouterr().err == ""


def test_damaged_data_that_cannot_be_deleted_are_an_error(tmp_path):
    (tmp_path / "generated.pt").mkdir()
    with pytest.raises(PaperError, match=r"generated\.pt: damaged, and cannot be deleted \(Is a directory\)"):
        accept.check_data(tmp_path / "generated.pt", True)


def test_the_workflow_starts_without_torch():
    code = "import sys, paper.accept; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_only_one_is_at_work_and_a_killed_one_is_not(tmp_path):
    lock = tmp_path / ".snakemake" / "running"
    lock.parent.mkdir()
    code = "import sys, time; from pathlib import Path; from paper.accept import alone; alone(Path(sys.argv[1]));"
    code += "print('mine', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        for _ in range(2):
            with pytest.raises(PaperError) as caught:
                accept.alone(lock)
            assert str(caught.value).startswith(f"{tmp_path}: expected no other Snakemake at work in this folder, got")
            assert f"process {other.pid} on " in str(caught.value)
        other.send_signal(signal.SIGKILL)
    accept.alone(lock)
    assert f"process {os.getpid()} on " in lock.read_text()
    accept._KEPT.pop().close()
