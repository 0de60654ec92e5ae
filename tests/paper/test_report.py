"""Pages of the report: their content, and text that is escaped."""

import base64
import html
import re
from pathlib import Path

import pandas as pd
import pytest

from paper import report, results, runs
from paper.experiments import EXPERIMENTS
from paper.workflow import Workflow

ROOT = Path(__file__).parents[2]
PIXELS = bytes(range(256))
NASTY = "<script>alert(\"&\")</script> | 'x' <i>"
PROVENANCE = {"seconds": 12.345, "hardware": NASTY, "torch": "2.10", "python": "3.11", "commit": None, "parameters": 7}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """All pages of the tiny preset, from made-up tables and claims."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        flow = Workflow(ROOT, {"preset": "tiny"})
        for spec in flow.plan("tiny").specs.values():
            path = runs.result_path(Path("results"), spec)
            results.write_result(path, pd.DataFrame({"a": [1]}), spec, PROVENANCE)
        claims = []
        for name in EXPERIMENTS:
            results.write_table(Path(f"results/tiny/aggregate/{name}.csv"), pd.DataFrame({"a": [1 / 3], "b": [NASTY]}))
            for suffix in ("png", "pdf"):
                results.write_bytes(Path(f"figures/tiny/{name}.{suffix}"), PIXELS)
            texts = dict.fromkeys(("claim", "paper", "ours", "estimate", "rule"), NASTY)
            claims.append({**texts, "experiment": name, "kind": "paper", "verdict": "not judged at this preset"})
        results.write_json(Path("results/tiny/claims.json"), claims)
        return dict(report.pages(flow, "tiny"))


def test_the_page_of_an_experiment_has_all_its_parts(pages):
    assert list(pages) == [*EXPERIMENTS, "claims", "configuration", "runtimes"]
    picture = base64.b64encode(PIXELS).decode()
    for name, experiment in EXPERIMENTS.items():
        files = (f'src="data:image/png;base64,{picture}"', f'download="{name}.pdf"', f'download="{name}.csv"')
        for part in (html.escape(experiment.title), "Not judged at this preset", *files, "<td>0.333333</td>"):
            assert part in pages[name], part


def test_no_text_breaks_out_of_a_page(pages):
    for text in pages.values():
        assert "<script>" not in text
        assert "<i>" not in text
    assert html.escape(NASTY) in pages["claims"].replace("&#34;", "&quot;").replace("&#39;", "&#x27;")


def test_the_configuration_and_the_runtimes(pages):
    settings = {"preset": "tiny", "experiments.mlp_depth.batch": "32", "experiments.mlp_depth.seeds": "0, 1"}
    for name, value in settings.items():
        assert re.search(rf"<t[dh][^>]*>{name}</t[dh]>\s*<td[^>]*>{value}<", pages["configuration"]), name
    assert re.search(r"\d+ runs", pages["runtimes"])
