"""Profiles: their keys are Snakemake's; what cluster jobs ask for comes from profiles/slurm alone."""

import re
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

from tests.workflow.tree import ROOT

PROFILES = sorted((ROOT / "profiles").iterdir())
CLUSTER = ("mem_mb", "runtime", "slurm_", "partition", "account")


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_keys_are_known(profile: Path):
    known = {option.removeprefix("--") for option in get_argument_parser()._option_string_actions}
    content = yaml.safe_load((profile / "config.yaml").read_text())
    assert {key for key in set(content) - known if not key.startswith("slurm-")} == set()
    assert "rerun-triggers" not in content, "Snakemake's own"
    assert "nolock" not in content


def test_rules_hold_no_cluster_values():
    """A site sets them in a profile, where its default-resources reach sbatch."""
    for path in [ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")]:
        text = path.read_text()
        assert not [word for word in CLUSTER if re.search(rf"\b{word}(?!s)", text)], path
