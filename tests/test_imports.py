"""Imports of our own modules form no circle, those for type checking included."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
           for path in SOURCE.rglob("*.py")}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports when it is imported, or for type checking; not those inside functions."""
    waiting: list[ast.AST] = list(ast.parse(path.read_text()).body)
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found |= {f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in MODULES else str(node.module)
                      for a in node.names}  # fmt: skip
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found & set(MODULES)


def test_no_circle():
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}
    assert "paper.runs" in graph["paper.results"]
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)  # CycleError names a circle
