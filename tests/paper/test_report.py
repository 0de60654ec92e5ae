"""Pages of the report: they hold what they should, well-formed, and no text can break out of them."""

import base64
import importlib
import json
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import yaml

from paper import report, store
from paper.config import check, load
from paper.plan import ITEMS, runs

ROOT = Path(__file__).parents[2]

PIXELS = bytes(range(256))
NASTY = "<script>alert(\"&\")</script> | 'x' <i>"
VOID = {"meta", "img", "br"}
SPEC = {"stage": "measure", "item": "toy", "part": "all", "version": 1, "settings": {}}
CELL = {"stage": "train", "task": "classify", "network": "mlp_3x500", "method": "pathcond", "lr": 0.001}
RECORD = {"spec": SPEC, "seconds": 12.345, "hardware": "CPU", "torch": "2.10", "commit": None}
SETTINGS = {"lr": 0.02, "starts": [[1, 2, 3]], "note": NASTY}


def claim(verdict="reproduced", **other):
    texts = {"claim": "faster", "paper": "all", "ours": "2 of 3", "rule": "all: reproduced", "item": "toy"}
    return {**texts, "source": "paper", "verdict": verdict, **other}


class Page(HTMLParser):
    """A page, refused where a tag is left open or closed out of turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.images, self.rows, self.classes = [], [], "", [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        if tag == "img":
            self.images.append(attributes["src"])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "span":
            self.classes.append(attributes["class"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open[-1:] in (["td"], ["th"], ["span"]):
            self.rows[-1][-1] += data


@pytest.fixture
def figure(tmp_path):
    path = tmp_path / "figure.png"
    path.write_bytes(PIXELS)
    return path


def item_page(figure, item="toy", table=None, claims=(), records=(RECORD,)):
    table = pd.DataFrame({"a": [1]}) if table is None else table
    return Page(report.item_page(item, figure, table, list(claims), list(records), SETTINGS))


@pytest.mark.parametrize("item", [item for item in ITEMS if find_spec(f"paper.figures.{item}")])
def test_the_page_of_an_item_has_all_its_parts(figure, item):
    page = item_page(figure, item, claims=[claim("partly", claim="slower")])
    assert page.tags.count("h1") == 1
    assert ITEMS[item].title in page.text
    assert f"What is drawn at the paper's scale ({ITEMS[item].place}): " in page.text
    assert importlib.import_module(f"paper.figures.{item}").PAPER in page.text
    assert page.images == [f"data:image/png;base64,{base64.b64encode(PIXELS).decode()}"]
    assert ["slower", "all", "2 of 3", "partly", "all: reproduced"] in page.rows
    assert ["toy all", "12.3", "CPU", "2.10", "", ""] in page.rows
    assert "starts:\n- [1, 2, 3]\n" in page.text
    assert yaml.safe_load(page.text.split("Settings")[1].split("Runs")[0]) == SETTINGS


def test_numbers_are_shown_where_they_are_few(figure):
    table = pd.DataFrame(
        {"name": ["x", ""], "value": [1 / 3, float("nan")], "n": [10_000_000, 2], "yes": [True, False]}
    )
    page = item_page(figure, table=table)
    assert page.rows[-3:] == [
        ["name", "value", "n", "yes"], ["x", "0.333333", "10000000", "True"], ["", "", "2", "False"],
    ]  # fmt: skip
    assert "Numbers" in page.text
    assert "Numbers" in item_page(figure, table=pd.DataFrame({"a": range(200)})).text
    assert "Numbers" not in item_page(figure, table=pd.DataFrame({"a": range(201)})).text


def test_no_text_breaks_out_of_a_page(figure):
    bad = claim(claim=NASTY, paper=NASTY, ours=NASTY, rule=NASTY, item=NASTY, verdict=NASTY)
    record = {**RECORD, "hardware": NASTY, "commit": NASTY}
    pages = [
        item_page(figure, table=pd.DataFrame({NASTY: [NASTY]}), claims=[bad], records=[record]),
        Page(report.claims_page([bad])),
        Page(report.configuration_page({NASTY: NASTY})),
        Page(report.runtimes_page([record])),
    ]
    for page in pages:
        assert not {"script", "i"} & set(page.tags)
        assert NASTY in page.text or yaml.safe_dump({NASTY: NASTY}) in page.text
    assert [NASTY] * 6 in pages[1].rows
    assert [NASTY] in pages[0].rows


def test_the_page_of_claims_counts_and_marks_them():
    verdicts = ["reproduced", "partly", "not reproduced", "not run at this scale", "reproduced"]
    page = Page(report.claims_page([claim(verdict, item=f"item{n}") for n, verdict in enumerate(verdicts)]))
    assert "5 claims of the paper: 2 reproduced, 1 partly, 1 not reproduced, 1 not run at this scale." in page.text
    assert page.classes == ["reproduced", "partly", "not", "unrun", "reproduced"]
    head, *rows = page.rows
    assert head == ["claim", "paper", "ours", "verdict", "rule", "item"]
    assert [row[3] for row in rows] == verdicts
    assert [row[5] for row in rows] == [f"item{n}" for n in range(5)]


def test_every_mark_has_a_style():
    for mark in {*report._CLASSES.values(), "unrun"}:
        assert f".{mark} {{" in report.claims_page([claim()])


def test_the_page_of_the_configuration_is_the_configuration():
    config = {"scale": "tiny", "scales": {"tiny": {"toy": {"lr": 0.02, "seeds": [0, 1], "text": "a & b"}}}}
    page = Page(report.configuration_page(config))
    assert yaml.safe_load(page.text.rpartition("Configuration")[2]) == config


def test_the_page_of_runtimes_adds_them_up():
    page = Page(report.runtimes_page([RECORD, {**RECORD, "spec": CELL, "seconds": 100.0, "commit": "abc"}]))
    assert "2 runs, 112 s together." in page.text
    assert [row[1] for row in page.rows] == ["seconds", "12.3", "100.0"]
    assert [row[0] for row in page.rows] == ["run", "toy all", "classify mlp_3x500 pathcond-lr0.001"]
    assert page.rows[2][-1] == "abc"


def test_the_program_writes_every_page(tmp_path, monkeypatch, figure):
    monkeypatch.chdir(tmp_path)
    config = check({**load(ROOT / "config.yaml"), "scale": "tiny"}, ROOT / "workflow/schemas/config.schema.yaml")
    results = Path("results/tiny")
    for name, spec in runs(config).items():
        store.write_json(results / f"{name}.json", {**RECORD, "spec": spec})
    for item in ITEMS:
        store.write_table(results / "aggregate" / f"{item}.csv", pd.DataFrame({"seed": [7]}))
        store.write_text(Path("figures/tiny", f"{item}.png"), "a picture")
    store.write_json(results / "claims.json", [claim(item=item) for item in ITEMS])
    monkeypatch.setattr(sys, "argv", ["paper.report", json.dumps(config), "--output", "pages"])
    report.main()
    pages = {path.stem: Page(path.read_text("utf-8")) for path in Path("pages").iterdir()}
    assert set(pages) == {*ITEMS, "claims", "configuration", "runtimes"}
    assert all(ITEMS[item].title in pages[item].text for item in ITEMS)
    assert f"{len(ITEMS)} claims of the paper: {len(ITEMS)} reproduced." in pages["claims"].text
    assert f"{len(runs(config))} runs" in pages["runtimes"].text
