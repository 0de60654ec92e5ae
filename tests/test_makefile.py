"""The Makefile as newcomers meet it: its help, an old Python, a folder with a space in its name."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def make(folder, *arguments):
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S607


def test_help_fits_a_terminal_of_80_columns():
    lines = make(ROOT, "help").stdout.splitlines()
    assert len(lines) > 15
    assert max(map(len, lines)) <= 80


def test_an_old_python_is_refused_with_the_way_out(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    old = folder / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.18\nexit 1\n')
    old.chmod(0o755)
    done = make(folder, "env", "PYTHON=./old")
    assert done.returncode
    assert "Expected Python 3.11 or newer" in done.stderr
    assert "got `Python 3.9.18`" in done.stderr
    assert "make env PYTHON=python3.11" in done.stderr
    assert not (folder / ".venv").exists()
