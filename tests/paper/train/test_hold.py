"""Processes take turns at a cell; a killed one does not keep others from it."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from paper.plan import key
from paper.train.hold import holding
from tests.faults.harm import ROOT
from tests.paper.train.plain import MLP, cell

ONE, TWO, THREE = (cell(MLP, lr=lr) for lr in (0.1, 0.2, 0.3))
_HOLDER = """
import json, sys, time
from pathlib import Path
from paper.train.hold import holding
with holding(Path(sys.argv[1]), json.loads(sys.argv[2]), lambda: True) as held:
    print(held, flush=True)
    time.sleep(600 if held else 0)
"""


@contextmanager
def another(folder, *cells, held=True):
    """Another process that holds cells until it is killed, or does not wait for them."""
    words = [sys.executable, "-c", _HOLDER, str(folder), json.dumps(cells)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{held}\n"
        yield process
        process.kill()


def never() -> bool:
    return False


def test_cells_of_others_are_free(tmp_path, capsys):
    with another(tmp_path, ONE, THREE), holding(tmp_path, [TWO], never) as held:
        assert held
        assert (tmp_path / ".lock").exists()
    with holding(tmp_path, [ONE, THREE], never) as held:  # the killed process holds nothing
        assert held
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_a_cell_is_waited_for(tmp_path, capsys):
    asked = []
    with another(tmp_path, ONE) as holder:

        def stop() -> bool:
            asked.append(1)
            if len(asked) == 2:
                holder.kill()
            return False

        with holding(tmp_path, [TWO, ONE], stop) as held:
            assert held
            assert len(asked) >= 2
            with another(tmp_path, ONE, held=False):
                pass
    assert capsys.readouterr().err == f"{key(ONE)}: another process trains it; waiting for that one to end\n"


def test_giving_up_leaves_the_holder_alone(tmp_path):
    with another(tmp_path, ONE):
        for _ in range(2):
            with holding(tmp_path, [ONE], lambda: True) as held:
                assert not held


def test_the_file_goes_with_its_last_holder_also_after_a_failure(tmp_path):
    with pytest.raises(ZeroDivisionError), holding(tmp_path / "new", [ONE, TWO], never):
        raise ZeroDivisionError
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_removed_in_between_is_not_trusted(tmp_path):
    """A lock on a file that its last holder removed keeps nobody out: the file is opened again."""
    with another(tmp_path, ONE) as holder:

        def remove() -> bool:
            if holder.poll() is None:
                (tmp_path / ".lock").unlink()
                holder.kill()
                holder.wait()
            return False

        with holding(tmp_path, [ONE], remove) as held:
            assert held
            assert (tmp_path / ".lock").exists()


def test_without_locks_it_goes_on(tmp_path):
    (tmp_path / "file").touch()
    with holding(tmp_path / "file" / "checkpoints", [ONE], never) as held:
        assert held
