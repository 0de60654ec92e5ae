"""The tutorials run, and print what is stored in them, up to 10% in numbers."""

import importlib.util
import json
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
pytestmark = pytest.mark.site


def words(outputs):
    """The printed words of a cell, without the line that reports times."""
    lines = [line for output in outputs for line in output.get("text", ()) if not line.startswith("time ")]
    return re.findall(r"[-+\d.e]*\d|[^\s\d]+", "".join(lines))


def close(said, stored):
    try:
        return float(said) == pytest.approx(float(stored), rel=0.1, abs=0.03)
    except ValueError:
        return said == stored


@pytest.mark.filterwarnings("ignore")  # of the packages that notebooks use
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs(path):
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "tools/notebooks.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    cells = json.loads(path.read_text())["cells"]
    pictures = 0
    for cell, outputs in zip(cells, tool.run(cells), strict=True):
        stored = cell.get("outputs", [])
        assert [output["output_type"] for output in outputs] == [output["output_type"] for output in stored]
        said, expected = words(outputs), words(stored)
        assert len(said) == len(expected)
        wrong = [pair for pair in zip(said, expected, strict=True) if not close(*pair)]
        assert not wrong, f"{path.name}: run `python tools/notebooks.py {path.relative_to(ROOT)}`"
        pictures += sum("data" in output for output in outputs)
    assert pictures


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_is_a_valid_notebook(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 200_000
    for cell in notebook.cells:
        if any("data" in output for output in cell.get("outputs", ())):
            assert len(cell.metadata["alt"]) > 20, "a picture needs a description"
