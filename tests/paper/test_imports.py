"""Files that a table, figure, claim or page depends on."""

import subprocess
import sys

import pytest

from paper.imports import code
from paper.plan import ITEMS


def test_a_figure_depends_on_itself_and_the_style():
    found = code("paper.figures.__main__", "paper.figures.toy")
    assert {f"src/paper/figures/{name}.py" for name in ("__main__", "style", "toy")} <= set(found)
    assert not [path for path in found if "regimes" in path or "measure" in path or "store" in path]


def test_what_is_imported_further_down_counts():
    assert "src/paper/figures/timing.py" in code("paper.figures.timing_depth")
    assert "src/paper/claims/trained.py" in code("paper.claims.cifar_nv_lrs")
    assert "src/paper/table_1.py" in code("paper.claims.architectures")
    assert "src/paper/curves.py" in code("paper.aggregate")


@pytest.mark.parametrize("item", ITEMS)
def test_nothing_that_is_loaded_is_missed(item):
    """What Python really imports, against what is read off the files."""
    for stage in ("figures", "claims"):
        program = (
            f"import sys, paper.{stage}.{item}; "
            f"print(*(m for m in sys.modules if m.startswith(('paper.{stage}.', 'paper.table_1'))))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        loaded = {f"src/{name.replace('.', '/')}.py" for name in done.stdout.split()}
        assert loaded <= set(code(f"paper.{stage}.{item}"))
