"""Pages and tables of the report: their content, their size, and text that is escaped."""

import base64
import html
import io
import re
from pathlib import Path

import markupsafe
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paper import report, results, runs
from paper.experiments import EXPERIMENTS
from paper.workflow import Workflow

ROOT = Path(__file__).parents[2]
DRAWN = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)  # thousands of colors
NASTY = "<script>alert(\"&\")</script> | 'x' <i>"
EPOCHS = 200
CURVES = pd.DataFrame({"panel": ["cell", *["curve"] * EPOCHS], "a": [1 / 3, *[2 / 3] * EPOCHS], "b": NASTY,
                       "epoch": [float("nan"), *range(EPOCHS)], "loss": [float("nan"), *[1 / 7] * EPOCHS]})  # fmt: skip
PROVENANCE = {"seconds": 12.345, "hardware": NASTY, "torch": "2.10", "python": "3.11", "commit": None, "parameters": 7}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """All files of the tiny preset, from made-up tables and claims."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        flow = Workflow(ROOT, "tiny", {})
        for spec in flow.plan.specs.values():
            path = runs.result_path(Path("results"), spec)
            results.write_result(path, pd.DataFrame({"a": [1]}), spec, PROVENANCE)
        claims = []
        for name in EXPERIMENTS:
            results.write_table(Path(f"results/tiny/aggregate/{name}.csv"), CURVES)
            results.write_bytes(Path(f"figures/tiny/{name}.pdf"), b"PDF")
            Image.fromarray(DRAWN).save(f"figures/tiny/{name}.png")
            texts = dict.fromkeys(("claim", "paper", "ours", "estimate", "rule"), NASTY)
            claims.append({**texts, "experiment": name, "kind": "paper", "verdict": "not judged at this preset"})
        results.write_json(Path("results/tiny/claims.json"), claims)
        return dict(report.pages(flow))


def test_the_page_of_an_experiment_has_all_its_parts(pages):
    tables = [(f"{name}.csv", f"{name}.html") for name in EXPERIMENTS]
    more = ("dashboard", "landing", "claims", "configuration", "runtimes")
    assert list(pages) == [*sum(tables, ()), *(f"{name}.html" for name in more)]
    for name, experiment in EXPERIMENTS.items():
        page = pages[f"{name}.html"]
        full = f"<code>results/tiny/aggregate/{name}.csv</code>"
        title = markupsafe.escape(experiment.title)
        for part in (title, "Not judged at this preset", full, "<td>0.333333</td>"):
            assert part in page, part
        (drawn,) = re.findall(r'src="data:image/webp;base64,([^"]+)"', page)
        with Image.open(io.BytesIO(base64.b64decode(drawn))) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        assert pixels.shape == DRAWN.shape
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) <= report.COLOURS
        table = pd.read_csv(io.StringIO(pages[f"{name}.csv"]))
        assert table.to_dict("list") == {"panel": ["cell"], "a": [0.333333], "b": [NASTY]}, "without the curves"
    assert re.search(r">experiments.mlp_depth.seeds</t[dh]>\s*<td[^>]*>0, 1<", pages["configuration.html"])
    assert re.search(r"\d+ runs", pages["runtimes.html"])


def test_the_dashboard_is_escaped_inside_the_landing_page(pages):
    """Snakemake puts the landing page into a script, which a closing tag would end."""
    (inside,) = re.findall(r"srcdoc='([^']*)'", pages["landing.html"])
    assert "<" not in inside
    assert html.unescape(inside) == pages["dashboard.html"]


def test_no_text_breaks_out_of_a_page(pages):
    for text in (text for name, text in pages.items() if name.endswith(".html")):
        assert "<script>alert" not in text
        assert "<i>" not in text
    assert html.escape(NASTY) in pages["claims.html"].replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
