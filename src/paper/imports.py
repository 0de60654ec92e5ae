"""Which of our files a program depends on, read off its import statements; edits of these redo what it made."""

import ast
from pathlib import Path

# Modules that shape tables, figures, claims and pages. Others are plumbing, or have versions of their own.
SHAPING = ("paper.aggregate", "paper.claims", "paper.curves", "paper.figures", "paper.report", "paper.table_1")


def code(*modules: str, folder: Path = Path("src")) -> list[str]:
    """Files of these modules and of the shaping modules they import, directly or not.

    Args:
        modules: dotted names, such as ``paper.figures.toy``.
        folder: what the names are relative to.

    Returns:
        Paths below `folder`, sorted.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(name, folder)
        if path is None or name in found or not name.startswith(SHAPING):
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return sorted(path.as_posix() for path in found.values())


def _file(name: str, folder: Path) -> Path | None:
    path = folder.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None
