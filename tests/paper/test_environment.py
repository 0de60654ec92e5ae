"""The environments of conda and pip agree with each other, with the package, and with what the code imports."""

import ast
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
(PIP,) = (part["pip"] for part in CONDA["dependencies"] if isinstance(part, dict))
# Modules whose package has another name; triton is torch's own dependency where there are GPUs.
PACKAGES = {"PIL": "pillow", "yaml": "pyyaml", "triton": "torch"}


def pins(lines):
    """Version by package; every line must be a pin."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        (pin,) = requirement.specifier
        assert pin.operator == "==", line
        assert canonicalize_name(requirement.name) not in found, line
        found[canonicalize_name(requirement.name)] = pin.version
    return found


LINES = (line.partition("#")[0].strip() for line in (ROOT / "requirements/all.txt").read_text().splitlines())
REQUIREMENTS = pins(filter(None, LINES))


def packages_of(folder):
    """Packages that the modules of a folder import, anywhere in them, without Python's and ours."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and "optional_package" in map(ast.unparse, (node.func, *node.args)):
                names = [ast.literal_eval(part) for part in node.args if isinstance(part, ast.Constant)]
                found |= {name.partition(".")[0] for name in names[:1]}
    found -= sys.stdlib_module_names | {"paper", "pathcond"}
    return {canonicalize_name(PACKAGES.get(name, name)) for name in found}


def test_condas_environment_has_the_same_pins_and_all_that_the_workflow_imports():
    conda, packages = pins(PIP), packages_of(ROOT / "src/paper")
    assert conda == {name: REQUIREMENTS.get(name) for name in conda}
    assert {"torch", "pandas", "pyyaml"} <= packages
    assert packages | {"snakemake"} <= set(conda), packages - set(conda)


def test_the_library_imports_what_the_package_asks_for_alone():
    optional = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    asked = {canonicalize_name(Requirement(line).name) for line in (*PROJECT["dependencies"], *optional)}
    assert packages_of(ROOT / "src/pathcond") == asked
