"""The wheel: built from the checkout, installed into an empty environment, it holds the library alone and works."""

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build/docs"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TRY = """
import importlib.util, sys, torch, pathcond
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
assert pathcond.rescale_(model, torch.ones(1, 3)).moved == 8
assert importlib.util.find_spec("paper") is None
assert pathcond.__file__.startswith(sys.prefix), pathcond.__file__
print(pathcond.__version__)
"""
pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(not TOOLS.exists(), reason="needs setuptools of build/docs (make test-site installs it)"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built in a copy of the tracked files: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith(("src/", "pyproject.toml", "README.md", "LICENSE")) and (ROOT / name).exists():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run(
        [sys.executable, "-c", build],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(TOOLS)}, check=True, capture_output=True,
    )  # fmt: skip
    (found,) = (folder / "dist").glob("*.whl")
    return found


def test_wheel_holds_the_library_alone(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        metadata = message_from_bytes(content.read(f"pathcond-{VERSION}.dist-info/METADATA"))
    assert {name.partition("/")[0] for name in names} == {"pathcond", f"pathcond-{VERSION}.dist-info"}
    assert {"pathcond/py.typed", "pathcond/rules/linear.py", "pathcond/rescale.py"} <= set(names)
    assert metadata["Requires-Python"] == ">=3.11"
    assert [line for line in metadata.get_all("Requires-Dist") if "extra" not in line] == ["torch>=2.6"]


def test_wheel_works_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True, capture_output=True
    )
    (packages,) = (tmp_path / "empty/lib").glob("python*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))  # too large to install
    tried = subprocess.run([python, "-I", "-c", TRY], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.strip() == VERSION
