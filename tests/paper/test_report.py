"""Pages of the report: their content, well-formed HTML, and escaped text."""

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from paper import report, results, runs
from paper.experiments import EXPERIMENTS
from paper.workflow import Workflow

ROOT = Path(__file__).parents[2]
PIXELS = bytes(range(256))
NASTY = "<script>alert(\"&\")</script> | 'x' <i>"
VOID = {"meta", "img", "br"}
PROVENANCE = {"seconds": 12.345, "hardware": NASTY, "torch": "2.10", "python": "3.11", "commit": None, "parameters": 7}


class Page(HTMLParser):
    """A page, refused where a tag is left open or closed out of order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.links, self.rows = [], [], "", {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        if tag in ("img", "a"):
            self.links[attributes.get("download", tag)] = attributes.get("src") or attributes.get("href")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open[-1:] in (["td"], ["th"], ["span"]) and self.rows:
            self.rows[-1][-1] += data


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
        return {name: Page(text) for name, text in report.pages(flow, "tiny")}


def test_the_page_of_an_experiment_has_all_its_parts(pages):
    picture = base64.b64encode(PIXELS).decode()
    for name, experiment in EXPERIMENTS.items():
        page = pages[name]
        assert experiment.title in page.text
        assert "Not judged at this preset" in page.text
        assert page.links["img"] == f"data:image/png;base64,{picture}"
        assert page.links[f"{name}.pdf"] == f"data:application/pdf;base64,{picture}"
        assert base64.b64decode(page.links[f"{name}.csv"].partition(",")[2]).startswith(b"a,b\n")
        assert ["0.333333", NASTY] in page.rows


def test_no_text_breaks_out_of_a_page(pages):
    assert list(pages) == [*EXPERIMENTS, "claims", "configuration", "runtimes"]
    for page in pages.values():
        assert not {"script", "i"} & set(page.tags)
    assert [NASTY, NASTY, NASTY, NASTY, "not judged at this preset", NASTY, "toy"] in pages["claims"].rows


def test_the_configuration_and_the_runtimes(pages):
    rows = dict(pages["configuration"].rows)
    assert rows["preset"] == "tiny"
    assert rows["experiments.mlp_depth.batch"] == "32"
    assert json.loads(f"[{rows['experiments.mlp_depth.seeds']}]") == [0, 1]
    assert f"{len(pages['runtimes'].rows) - 1 - 3} runs" in pages["runtimes"].text
