"""Run notebooks and store what they print and draw: python tools/notebooks.py docs/tutorials/*.ipynb.

Cells are plain Python that prints and calls `plt.show()`, so they run here without Jupyter and in Jupyter alike.
"""

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def run(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Execute the code cells of a notebook in order, in one namespace.

    Args:
        cells: the notebook's cells.

    Returns:
        For each cell its outputs, in the notebook format: printed text, then pictures.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for number, cell in enumerate(cells):
        found.append([])
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        show, plt.show = plt.show, lambda: None  # figures are taken from the list of open ones
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)  # noqa: S102 - our own text
        finally:
            plt.show = show
        if text := printed.getvalue():
            found[-1].append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
        for figure in map(plt.figure, plt.get_fignums()):
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=80, bbox_inches="tight")
            data = {"image/png": base64.b64encode(content.getvalue()).decode()}
            found[-1].append({"output_type": "display_data", "data": data, "metadata": {}})
        plt.close("all")
    return found


def main() -> None:
    """Run each notebook that is named and write its outputs."""
    for path in map(Path, sys.argv[1:]):
        notebook = json.loads(path.read_text("utf-8"))
        outputs = run(notebook["cells"])
        code = [(cell, found) for cell, found in zip(notebook["cells"], outputs, strict=True) if "outputs" in cell]
        for count, (cell, found) in enumerate(code, start=1):
            cell["outputs"], cell["execution_count"] = found, count
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
