"""Pages of the report: one an item, the claims, the configuration, the time everything took.

python -m paper.report CONFIG --output FOLDER
"""

import argparse
import base64
import importlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from paper import cli, store
from paper.claims.rules import counted
from paper.errors import PaperError
from paper.plan import ITEMS, SCALES, key, runs, settings, sources
from paper.recorded import items

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
img { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; }
th { border-bottom: 1px solid #888; } td { border-bottom: 1px solid #ddd; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: 12px; }
.reproduced { color: #00664b; } .partly { color: #8a5a00; } .not { color: #a03c00; } .unrun { color: #666; }
"""
_CLASSES = {"reproduced": "reproduced", "partly": "partly", "not reproduced": "not"}
_LONGEST_TABLE = 200


def item_page(
    item: str, figure: Path, table: pd.DataFrame, claims: list[dict], records: list[dict], chosen: dict
) -> str:
    """The page of an item: figure, what it shows at the paper's scale, what we see, settings, times."""
    entry = ITEMS[item]
    shows = importlib.import_module(f"paper.figures.{item}").PAPER
    picture = base64.b64encode(store.read_bytes(figure)).decode()
    parts = [
        f"<p><b>What is drawn at the paper's scale</b> ({escape(entry.place)}): {escape(shows)}</p>",
        f'<p><img alt="{escape(entry.title)}" src="data:image/png;base64,{picture}"></p>',
        f"<h2>What we see</h2>{_claims_table(claims, item_column=False)}",
        f"<h2>Settings</h2><pre>{escape(yaml.safe_dump(chosen, sort_keys=False, default_flow_style=None))}</pre>",
        f"<h2>Runs</h2>{_runs_table(records)}",
    ]
    if len(table) <= _LONGEST_TABLE:
        rows = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
        parts.append(f"<h2>Numbers</h2>{_table(list(table.columns), rows)}")
    return _page(entry.title, parts)


def claims_page(claims: list[dict]) -> str:
    """The page of all claims, with the rule behind each verdict."""
    return _page("Claims and verdicts", [f"<p>{escape(counted(claims))}</p>", _claims_table(claims, True)])


def configuration_page(config: dict) -> str:
    """The page of every value that was used."""
    text = yaml.safe_dump(config, sort_keys=False, default_flow_style=None, width=110)
    return _page("Configuration", [f"<pre>{escape(cli.shown(text))}</pre>"])


def runtimes_page(records: list[dict]) -> str:
    """The page of the time everything took."""
    total = sum(record["seconds"] for record in records)
    return _page("Runtimes", [f"<p>{len(records)} runs, {total:.0f} s together.</p>", _runs_table(records)])


def _claims_table(claims: list[dict], item_column: bool) -> str:
    head = ["claim", "paper", "ours", "verdict", "rule", *(["item"] if item_column else [])]
    rows = []
    for claim in claims:
        mark = _CLASSES.get(claim["verdict"], "unrun")
        cells = [claim["claim"], claim["paper"], claim["ours"], "", claim["rule"]]
        cells = [escape(text) for text in cells] + ([escape(claim["item"])] if item_column else [])
        cells[3] = f'<span class="{mark}">{escape(claim["verdict"])}</span>'
        rows.append(cells)
    return _table(head, rows, escaped=True)


def _runs_table(records: list[dict]) -> str:
    names = ("hardware", "torch", "python", "commit")
    rows = []
    for record in records:
        _, *fields = key(record["spec"]).rpartition("-")[0].split("/")
        rows.append([" ".join(fields), f"{record['seconds']:.1f}", *(str(record.get(field) or "") for field in names)])
    return _table(["run", "seconds", *names], rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.6g}"
    return str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], escaped: bool = False) -> str:
    def line(tag: str, cells: Sequence[str], done: bool) -> str:
        return "<tr>" + "".join(f"<{tag}>{cell if done else escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line("td", row, escaped) for row in rows)
    return f'<div class="scroll"><table>{line("th", head, False)}{body}</table></div>'


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def write(config: dict, results: Path, figures: Path, output: Path) -> None:
    """Write all pages of a scale.

    Args:
        config: the configuration, checked.
        results: folder of the scale's results.
        figures: folder of the scale's figures.
        output: where the pages go.
    """
    claims, records, pages = store.read_json(results / "claims.json"), {}, {}
    chosen = items(config, results)
    for name in runs(config, chosen):
        records[name] = store.read_json(results / f"{name}.json")
    for item in chosen:
        pages[item] = item_page(
            item,
            figures / f"{item}.png",
            store.read_table(results / "aggregate" / f"{item}.csv"),
            [claim for claim in claims if claim["item"] == item],
            [records[name] for name in sources(config, item)],
            settings(config, item),
        )
    pages["claims"], pages["configuration"] = claims_page(claims), configuration_page(config)
    pages["runtimes"] = runtimes_page(list(records.values()))
    for page, text in pages.items():
        store.write_text(output / f"{page}.html", text)


def main() -> None:
    """Read the command line, write the pages."""
    parser = argparse.ArgumentParser(prog="python -m paper.report", description=__doc__)
    parser.add_argument("config", help="the configuration, checked, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="folder of the pages")
    given = parser.parse_args()
    config = cli.read_object(given.config, "config")
    scale = config.get("scale")
    if scale not in SCALES:
        raise PaperError(f"config: expected a scale, one of {', '.join(SCALES)}, got {scale!r}.")
    write(config, Path("results", scale), Path("figures", scale), given.output)


if __name__ == "__main__":
    cli.run(main)
