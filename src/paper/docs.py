"""Fill README.md and docs/ from the tables, claims and figures of the paper's preset: python -m paper.docs.

Some pages are written from the template of their name in `workflow/templates`. In other pages the text between a
marker <!-- NAME --> and the next <!-- end --> is written by the macro NAME of `parts.md.j2`. Figures and their tables
are copied to `docs/figures`. With --check nothing is written; exit status 1 if a file is out of date.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from paper import cli, config, dashboard, forest, plan, plotting, report, results, workflow
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS
from paper.experiments.practice import BASELINE, LABELS, candidates, gain
from paper.verdicts import NO, WORDS, YES, counted

PRESET = config.PAPER
TEMPLATES = Path("workflow/templates")
FIGURES = Path("docs/figures")
FOREST = "forest"  # the figure of all gains
SOURCES = FIGURES / "sources.json"  # a checksum of what each figure was drawn from
CLAIMS = Path("docs/claims.json")  # all claims with their numbers
DASHBOARD = Path("docs/dashboard.html")  # tools/site/hooks.py puts it into the site
_WRITTEN = ("artifact", "claims", "errata", "gallery", "history", "letter", "reproduction")
WRITTEN = tuple(Path(f"docs/{name}.md") for name in _WRITTEN)
SHARED = ("ff54c7c6a6bb", "0bb4d3f72a1f", "6f287ba537e3")  # commits before `shared_gpu` whose runs shared the GPU
_FILLED = ("library", "pipeline", "related-tools", "scaling", "when-to-use")
FILLED = (Path("README.md"), *(Path("docs") / f"{name}.md" for name in _FILLED))
MARKS = {"mixed": "🟡", "undecided in some cases": "🟡"}
MARKS |= {words[YES]: "🟢" for words in WORDS.values()} | {words[NO]: "🔴" for words in WORDS.values()}
OPEN = "⚪"
LONG_COMMIT = 40  # characters of a commit that is not abbreviated
LONG = 120  # characters of a finding that is cut short


class Facts:
    """What the templates print, from the files that the workflow made at the paper's preset in a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "results" / PRESET
        self.config = config.read(root, PRESET)
        self.plan = plan.plan(self.config)
        self.experiments = {name: found for name, found in EXPERIMENTS.items() if name in self.plan.asked}
        self.counted = counted

    @cached_property
    def claims(self) -> list[dict[str, Any]]:
        """Every claim with its verdict."""
        return results.read_json(self.results / "claims.json")

    def claim(self, id: str) -> dict[str, Any]:
        """The claim with this id."""
        return next(claim for claim in self.claims if claim["id"] == id)

    def claims_of(self, experiment: str) -> list[dict[str, Any]]:
        """The claims of an experiment."""
        return [claim for claim in self.claims if claim["experiment"] == experiment]

    def short(self, text: str) -> str:
        """A finding without remarks in brackets, and cut at a semicolon if it is long."""
        first, *more = re.sub(r" \([^()]*\)", "", text).split("; ")
        while more and len(f"{first}; {more[0]}") <= LONG:
            first = f"{first}; {more.pop(0)}"
        return first

    def counts(self) -> dict[str, list[int]]:
        """Number of claims by kind and answer."""
        return dashboard.counts(self.claims)

    def anchor(self, heading: str) -> str:
        """The name under which a code host and the site link to a heading."""
        return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")

    @cached_property
    def provenance(self) -> dict[str, dict[str, Any]]:
        """Provenance of every recorded run, by key."""
        return {key: results.read_provenance(self.results / f"{key}.csv") for key in self.plan.specs}

    def mark(self, verdict: str) -> str:
        """A verdict with a colored mark: green if right, red if wrong, yellow if both, white if open."""
        return f"{MARKS.get(verdict, OPEN)} {verdict}"

    @cached_property
    def records(self) -> dict[str, int]:
        """Facts about all recorded results, counted: of the plan or not, and what their provenance lacks."""
        paths = [path for stage in ("train", "measure") for path in (self.results / stage).glob("*/**/*.json")]
        found = [results.read_json(path) for path in paths]
        unplanned = {path.relative_to(self.results).with_suffix("").as_posix() for path in paths} - set(self.plan.specs)
        return {
            "all": len(found),
            "trained": sum(entry["spec"]["stage"] == "train" for entry in found),
            "not_reported": len(unplanned),
            "abbreviated": sum(len(entry.get("commit") or "") < LONG_COMMIT for entry in found),
            "without_shared_gpu": sum("shared_gpu" not in entry for entry in found),
        }

    def caption(self, experiment: str) -> str:
        """The caption of an experiment's figure."""
        return EXPERIMENTS[experiment].described(self.config.plain[experiment])

    def cost(self, experiment: str | None = None) -> pd.DataFrame:
        """Time of all runs, or of one experiment, by hardware and stage; columns hardware, stage, runs, seconds."""
        keys = list(self.provenance) if experiment is None else self.plan.asked[experiment]
        found = [self.provenance[key] for key in keys]
        rows = [(p["hardware"], p["spec"]["stage"], p["seconds"]) for p in found]
        groups = pd.DataFrame(rows, columns=["hardware", "stage", "seconds"]).groupby(["hardware", "stage"])["seconds"]
        return pd.DataFrame({"runs": groups.size(), "seconds": groups.sum()}).reset_index()

    def gpu_minutes(self, paper: bool, shared: bool) -> float:
        """Minutes of the runs that shared the GPU, or had it alone; `paper`: only those of its figures and tables."""
        theirs = [name for name in self.plan.asked if EXPERIMENTS[name].where != "ours"]
        asked = {key for name in theirs for key in self._without_added_seeds(name)}
        found = [p for key, p in self.provenance.items() if key in asked or not paper]
        chosen = [p for p in found if not p["hardware"].startswith("CPU") and _shared_gpu(p) == shared]
        return sum(p["seconds"] for p in chosen) / 60

    def _without_added_seeds(self, experiment: str) -> list[str]:
        """Keys of an experiment's runs, without the seeds that only some methods have."""
        added = {seed for more in self.config.plain[experiment].get("more_seeds", ()) for seed in more["seeds"]}
        return [key for key in self.plan.asked[experiment] if self.provenance[key]["spec"].get("seed") not in added]

    def seeds(self, experiment: str, method: str) -> int:
        """Number of seeds of a method in the runs of an experiment."""
        specs = [self.plan.specs[key] for key in self.plan.asked[experiment]]
        return len({spec["seed"] for spec in specs if spec["method"] == method})

    def times(self, experiment: str) -> str:
        """Time that an experiment took, in words."""
        rows = self.cost(experiment).groupby("hardware")[["runs", "seconds"]].sum()
        parts = []
        for name, row in rows.iterrows():
            took = f"{row.seconds:.0f} s" if row.seconds < 120 else f"{row.seconds / 60:.1f} min"
            parts.append(f"{row.runs:.0f} run{'s' if row.runs > 1 else ''} in {took} on {name}")
        precisions = sorted({self.provenance[key].get("precision", "") for key in self.plan.asked[experiment]} - {""})
        shared = any(_shared_gpu(self.provenance[key]) for key in self.plan.asked[experiment])
        remarks = [*precisions, *["some runs shared the GPU, and each counts in full"] * shared]
        return "; ".join(parts) + (f" ({', '.join(remarks)})" if remarks else "")

    def benchmark(self, name: str) -> Any:
        """The record of a benchmark."""
        return results.read_json(self.root / "benchmarks/records" / f"{name}.json")

    def practice(self) -> list[dict[str, Any]]:
        """Gains of `practice` in words: one row per network and budget, methods as columns."""
        table = results.read_table(self.results / "aggregate/practice.csv")
        rows = []
        for (network, epochs), found in table[table["panel"] == "best"].groupby(["network", "epochs"], sort=False):
            gains = {row.method: gain(row).words for row in found.itertuples()}
            accuracy = found.set_index("method")["accuracy"][BASELINE]
            rows.append({**gains, "network": LABELS.get(network, network), "epochs": epochs, "accuracy": accuracy})
        return rows

    def candidates(self) -> list[dict[str, Any]]:
        """What the rule of docs/hypotheses.md says of each candidate for the library's default."""
        return candidates(results.read_table(self.results / "aggregate/practice.csv"))

    def inequality(self) -> list[list[Any]]:
        """Networks, their units, and their sigma in each form that was measured."""
        found = pd.DataFrame(self.benchmark("inequality")["rows"])
        table = found.pivot_table(index=["network", "units"], columns="form", values="sigma", sort=False)
        return [[*name, *(f"{x:.2f}" if x == x else "no mapping" for x in row)] for name, row in table.iterrows()]

    def zoo(self) -> str:
        """The first table of docs/zoo.md: counts by family."""
        lines = (self.root / "docs/zoo.md").read_text("utf-8").splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("|"))
        return "\n".join(lines[first : lines.index("", first)])


def _shared_gpu(provenance: Mapping[str, Any]) -> bool:
    """Whether a recorded run shared the GPU with others."""
    if "shared_gpu" in provenance:
        return provenance["shared_gpu"]
    return (provenance["commit"] or "")[:12] in SHARED


def pages(facts: Facts) -> dict[Path, str]:
    """The up-to-date text of every page."""
    # Markdown, not HTML: nothing is escaped. The templates are ours.
    environment = jinja2.Environment(  # noqa: S701
        loader=jinja2.FileSystemLoader(facts.root / TEMPLATES), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals["facts"] = facts
    found = {page: environment.get_template(f"{page.name}.j2").render() for page in WRITTEN}
    found[DASHBOARD] = dashboard.page(
        environment.overlay(autoescape=True),
        facts.claims,
        {name: results.read_table(facts.results / f"aggregate/{name}.csv") for name in facts.experiments},
        lambda name: f"figures/{name}.png",
        lambda name: f"gallery.html#{facts.anchor(facts.experiments[name].title)}",
        PRESET,
    )
    parts: Any = environment.get_template("parts.md.j2").module
    for page in FILLED:
        found[page] = _filled(page, results.read_bytes(facts.root / page).decode("utf-8"), parts)
    return found


def _filled(page: Path, text: str, parts: Any) -> str:
    def fill(found: re.Match[str]) -> str:
        macro = getattr(parts, found[1], None)
        if macro is None:
            raise PaperError(f"{page}: expected the name of a macro of parts.md.j2 as a marker, got {found[1]!r}.")
        return f"<!-- {found[1]} -->\n\n{str(macro()).strip()}\n\n<!-- end -->"

    if text.count("<!-- end -->") != len(re.findall(r"<!-- (?!end)\w+ -->", text)):
        raise PaperError(f"{page}: expected a marker <!-- end --> after each other marker.")
    return re.sub(r"<!-- (?!end)(\w+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def tables(facts: Facts) -> dict[Path, str]:
    """The table of each figure as CSV with six digits, without the curves by epoch."""
    read = {name: results.read_table(facts.results / f"aggregate/{name}.csv") for name in facts.experiments}
    return {FIGURES / f"{name}.csv": report.written(report.short(table)) for name, table in read.items()}


def sources(facts: Facts, texts: Mapping[Path, str]) -> dict[str, str]:
    """By figure, a checksum of its short table, settings, note, and of the code that draws it.

    Smoothed curves, which the short table lacks, differ between processors in their last digits.
    """

    def code(*names: str) -> str:
        return "".join((facts.root / "src/paper" / name).read_text("utf-8") for name in (*names, "plotting.py"))

    found = {}
    for name in facts.experiments:
        settings = json.dumps(facts.config.plain[name], sort_keys=True) + workflow.note(
            PRESET, facts.config.plain[name]
        )
        drawn = f"{texts[FIGURES / f'{name}.csv']}{settings}{code('methods.py', *workflow.modules(name))}"
        found[name] = hashlib.sha256(drawn.encode()).hexdigest()
    found[FOREST] = hashlib.sha256((json.dumps(forest.numbers(facts.claims)) + code("forest.py")).encode()).hexdigest()
    return found


def rounded(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Claims whose numbers have nine digits: processors differ in the last of all."""
    return json.loads(json.dumps(claims), parse_float=lambda text: float(f"{float(text):.9g}"))


def draw_forest(facts: Facts) -> None:
    """Draw the figure of all gains, which no experiment has, beside theirs."""
    top = facts.config.top.figures
    with plotting.theme(top.font_size):
        drawn = plotting.pictures(forest.draw(facts.claims), "", top.dpi)
    for suffix, content in drawn.items():
        results.write_bytes(facts.root / f"figures/{PRESET}/{FOREST}.{suffix}", content)


def main() -> None:
    """Read the command line; write, or check, pages, figures and tables."""
    parser = argparse.ArgumentParser(prog="python -m paper.docs", description=__doc__, formatter_class=cli.Paragraphs)
    words = "checkout with config.yaml (default: this one)"
    parser.add_argument("--folder", type=Path, default=cli.CHECKOUT, help=words)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something is out of date")
    given = parser.parse_args()
    facts = Facts(given.folder)
    texts = pages(facts) | tables(facts)
    texts[CLAIMS] = json.dumps(rounded(facts.claims), indent=1, ensure_ascii=False) + "\n"
    drawn = sources(facts, texts)
    texts[SOURCES] = json.dumps(drawn, indent=1, sort_keys=True) + "\n"
    there = {path: (facts.root / path).read_text("utf-8") for path in texts if (facts.root / path).exists()}
    old_texts = [path for path, text in texts.items() if there.get(path) != text]
    known = json.loads(there.get(SOURCES, "{}"))
    old_figures = [
        FIGURES / f"{name}.{suffix}"
        for name, checksum in drawn.items()
        for suffix in ("png", "pdf")
        if known.get(name) != checksum or not (facts.root / FIGURES / f"{name}.{suffix}").exists()
    ]
    if given.check:
        if wrong := [*old_texts, *old_figures]:
            cli.say(f"out of date, run `make docs`: {', '.join(map(str, wrong))}")
            sys.exit(1)
        return
    if any(path.stem == FOREST for path in old_figures):
        draw_forest(facts)
    for path in old_figures:
        figure = facts.root / "figures" / PRESET / path.name
        content = report.few_colours(figure) if path.suffix == ".png" else results.read_bytes(figure)
        results.write_bytes(facts.root / path, content)
    for path in (facts.root / FIGURES).iterdir():
        if path.stem not in (*facts.experiments, FOREST, SOURCES.stem):
            path.unlink()
    for path in old_texts:
        results.write_text(facts.root / path, texts[path])


if __name__ == "__main__":
    cli.run(main)
