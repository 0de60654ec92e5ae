"""Pages of the report: the dashboard, one per experiment, the claims, the configuration, runtimes; and their tables.

python -m paper.report --preset PRESET --output FOLDER

The report is one file that holds each page and each table, so figures have few colors and tables are short
(:func:`short`). The full ones are under `figures` and `results`. No page repeats a file that the report has anyway.
"""

import argparse
import base64
import functools
import html
import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from paper import cli, dashboard, results
from paper.dashboard import MARKS
from paper.experiments import EXPERIMENTS
from paper.verdicts import counted
from paper.workflow import Workflow

TEMPLATES = Path("workflow/templates")
FACTS = ("hardware", "torch", "python", "commit")  # of the runs in the table of runtimes
LONGEST_TABLE = 200  # rows that a page shows
LONGEST_FILE = 2000  # rows of a CSV file in the report; of longer tables it has every n-th row
COLOURS = 64
# The report opens on the dashboard, above Snakemake's menu, which puts it into a script: no tag may stay as it is.
LANDING = """<style>.dashboard {{ position: fixed; inset: 0; z-index: 1000; background: #fff; }}
.dashboard iframe {{ width: 100%; height: 100%; border: 0; }}
.dashboard button {{ position: absolute; top: .6rem; right: 1.4rem; padding: .3rem .8rem; border-radius: .3rem;
background: #1e293b; color: #fff; }}</style>
<div class="dashboard"><iframe title="Dashboard" srcdoc='{}'></iframe>
<button type="button" onclick="this.parentNode.remove()">All files and settings</button></div>
"""


def pages(flow: Workflow) -> Iterator[tuple[str, str]]:
    """Name and text of every file of a preset: the page and the short table of each experiment, then other pages."""
    folder, drawn = flow.results / flow.preset, Path("figures") / flow.preset
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(flow.folder / TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["marks"] = MARKS
    template = environment.get_template("page.html.j2")
    plan, chosen = flow.plan, flow.config
    claims = results.read_json(folder / "claims.json")
    # Pictures are made smaller while the tables are read and written.
    webp = functools.partial(few_colours, kind="webp", lossless=True)
    pictures = ThreadPoolExecutor().map(webp, [drawn / f"{name}.png" for name in EXPERIMENTS])
    tables, shown = {}, {}
    provenance = {key: results.read_provenance(folder / f"{key}.csv") for key in plan.specs}
    for (name, experiment), picture in zip(EXPERIMENTS.items(), pictures, strict=True):
        full = folder / f"aggregate/{name}.csv"
        tables[name], shown[name] = results.read_table(full), base64.b64encode(picture).decode()
        table = short(tables[name])
        yield f"{name}.csv", written(table.iloc[:: -(-len(table) // LONGEST_FILE) or 1])
        rows = table.itertuples(index=False) if len(table) <= LONGEST_TABLE else ()
        text = template.render(
            kind="experiment",
            name=name,
            title=experiment.title,
            place="Ours" if experiment.where == "ours" else f"{experiment.where} of the paper",
            caption=flow.caption(name),
            picture=shown[name],
            full=full.as_posix(),
            claims=[claim for claim in claims if claim["experiment"] == name],
            judged=flow.judged(name),
            settings=list(flat(chosen.plain[name])),
            cost=cost(provenance[key] for key in plan.asked[name]),
            columns=list(table.columns),
            numbers=[[_cell(value) for value in row] for row in rows],
        )
        yield f"{name}.html", text
    page = dashboard.page(
        environment, claims, tables, lambda name: f"data:image/webp;base64,{shown[name]}", None, flow.preset
    )
    yield "dashboard.html", page
    yield "landing.html", LANDING.format(html.escape(page, quote=False).replace("'", "&#39;"))
    text = template.render(kind="claims", title="Claims and verdicts", claims=claims, counted=counted(claims))
    yield "claims.html", text
    top = chosen.top.model_dump(mode="json", exclude={"setups", "experiments"})
    settings = [*flat(top), *flat({"experiments": chosen.plain})]
    text = template.render(kind="configuration", title="Configuration", settings=settings)
    yield "configuration.html", text
    facts = (
        ((key.rpartition("/")[0], *(str(entry.get(name) or "") for name in FACTS)), entry["seconds"])
        for key, entry in provenance.items()
    )
    text = template.render(
        kind="runtimes",
        title="Runtimes",
        runs=len(provenance),
        seconds=sum(entry["seconds"] for entry in provenance.values()),
        cost=cost(provenance.values()),
        rows=_summed(facts),
        folder=folder.as_posix(),
    )
    yield "runtimes.html", text


def short(table: pd.DataFrame) -> pd.DataFrame:
    """The table of an experiment without the curves by epoch, and without columns that are then empty."""
    rows = table[table["epoch"].isna()] if "epoch" in table else table
    return rows.dropna(axis="columns", how="all")


def written(table: pd.DataFrame) -> str:
    """A short table as CSV with six digits."""
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def few_colours(figure: Path, kind: str = "png", **options: Any) -> bytes:
    """A figure with few colors: as PNG a third of its size, as lossless WebP a quarter."""
    from PIL import Image

    content = io.BytesIO()
    with Image.open(figure) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    (few.convert("RGB") if kind == "webp" else few).save(content, kind, optimize=True, **options)
    return content.getvalue()


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names and values."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(map(_cell, value)) or "none"
        else:
            yield f"{prefix}{name}", cli.shown(_cell(value))


def cost(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Stage, hardware, number of runs and seconds."""
    return sorted(_summed(((entry["spec"]["stage"], entry["hardware"]), entry["seconds"]) for entry in found))


def _summed(runs: Iterable[tuple[tuple[str, ...], float]]) -> list[tuple[str, ...]]:
    """Facts that runs share, the number of these runs, and their seconds."""
    table = pd.DataFrame(runs, columns=["group", "seconds"]).groupby("group", sort=False)["seconds"]
    return [(*group, str(len(seconds)), f"{seconds.sum():.1f}") for group, seconds in table]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_cell, value)) + "]"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(entry)}" for name, entry in value.items())
    return str(value)


def main() -> None:
    """Read the command line, write the pages and the short tables."""
    parser = argparse.ArgumentParser(prog="python -m paper.report", description=__doc__)
    cli.add_config_options(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder of the pages and tables")
    given = parser.parse_args()
    flow = Workflow(given.folder, given.preset, cli.read_object(given.over, "--over"))
    for name, text in pages(flow):
        results.write_text(given.output / name, text)


if __name__ == "__main__":
    cli.run(main)
