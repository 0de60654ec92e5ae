"""Profiles: their keys are Snakemake's."""

from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

from tests.workflow.tree import ROOT

PROFILES = sorted((ROOT / "profiles").iterdir())


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_keys_are_known(profile: Path):
    known = {option.removeprefix("--") for option in get_argument_parser()._option_string_actions}
    content = yaml.safe_load((profile / "config.yaml").read_text())
    assert {key for key in set(content) - known if not key.startswith("slurm-")} == set()
    assert "rerun-triggers" not in content, "Snakemake's own"
    assert "nolock" not in content
