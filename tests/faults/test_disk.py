"""Full disks: the error says so, nothing half-written is left, and with room the same command finishes."""

import re
import sys
from pathlib import Path

import pytest
import torch

from paper import cli, data, results
from paper.errors import PaperError
from paper.experiments import __main__ as program
from paper.runs import result_path
from paper.training.runner import Options, train
from tests.faults.harm import fill, small_disk
from tests.faults.small import Small
from tests.faults.test_kills import finish_and_compare
from tests.paper.training.reference import MLP, make_spec

RUN = make_spec({**MLP, "inputs": 192}, "pathcond")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("part", ["results", "checkpoints"])
def test_a_result_and_a_checkpoint(part: str, tmp_path: Path):
    data.prepare("generated", tmp_path / "generated.pt")

    def options(folder: Path) -> Options:
        return Options(folder / "results", tmp_path, folder / "checkpoints", torch.device("cpu"), every=0.0)

    train([RUN], options(tmp_path / "other"))
    place = options(tmp_path)
    with small_disk(tmp_path / part):
        filler = fill(tmp_path / part)
        with pytest.raises(PaperError, match=rf"cannot write .*/{part}/.*: No space left on device\. Free some space"):
            train([RUN], place)
        assert files(tmp_path / part) == {"filler"}
        filler.unlink()
        train([RUN], place)
        made = result_path(place.results, RUN)
        assert results.is_complete(made)
        assert made.read_bytes() == result_path(tmp_path / "other/results", RUN).read_bytes()
        assert files(place.checkpoints) == set()


def test_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """With room for the PDF alone, the PNG fails; neither is ever half there."""
    table, disk = tmp_path / "table.csv", tmp_path / "disk"
    table.write_text("network,parameters,units_table,units_free,paths_paper,log10_paths_paper,paths_all,log10_paths_all\n"
                     "mlp,10,5,5,1.0e+02,2.0,1.0e+02,2.0\n")  # fmt: skip
    monkeypatch.setattr(
        sys, "argv", ["experiments", "figure", "architectures", str(table), "--output", str(disk / "a.pdf")]
    )

    def draw() -> int | str | None:
        try:
            cli.run(program.main)
        except SystemExit as error:
            return error.code
        return 0

    with small_disk(disk):
        assert draw() == 0
        pdf, png = (disk / "a.pdf").read_bytes(), (disk / "a.png").read_bytes()
        (disk / "a.pdf").unlink()
        (disk / "a.png").unlink()
        for room, left in ((0, {"filler"}), (len(pdf) + 4096, {"filler", "a.pdf"})):
            filler = fill(disk, room)
            assert draw() == 2
            assert f"error: cannot write {disk}/a.p" in (said := capsys.readouterr().err)
            assert "No space left on device. Free some space" in said
            assert files(disk) == left
            filler.unlink()
        assert draw() == 0
        assert ((disk / "a.pdf").read_bytes(), (disk / "a.png").read_bytes()) == (pdf, png)


@pytest.mark.faults
def test_a_workflow_on_a_full_disk(fresh: Small, undisturbed: Small):
    """Data, checkpoints, results and figures find no room, one after the other; each time the same command resumes."""
    for part in ("results/data", "results/checkpoints", "results/tiny/train", "figures/tiny"):
        with small_disk(fresh.folder / part):
            fill(fresh.folder / part)
            done = fresh.snakemake()
            assert done.returncode == 1
            assert re.search(rf"error: .*{part}/.*No space left on device", done.stdout), done.stdout[-4000:]
            assert "Traceback" not in done.stdout
            assert files(fresh.folder / part) == {"filler"}
    finish_and_compare(fresh, undisturbed)
