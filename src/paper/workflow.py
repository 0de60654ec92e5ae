"""Answers for the rules of the workflow: which jobs there are, what they read, and which of them are forced.

Nothing here writes or deletes a file. Jobs look their runs up by the name of their batch, from the same configuration.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from paper import cli, config, plan, results, runs
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS
from paper.runs import Spec

FORCED = "PATHCOND_FORCED"  # tells the jobs of a cluster what the command line of Snakemake forces
USUAL_SECONDS = {"train": 12.0, "measure": 12.0}  # of a job of a small preset; those of other rules take three
TELL_EVERY = 10.0  # seconds
FILES = (".csv", ".html", ".json", ".md", ".pdf", ".png", ".pt", ".settings")  # what the workflow writes
LONGEST_OVERRIDES = 100_000  # bytes; Linux takes 131,071 in one argument


class Workflow:
    """The workflow of a checkout at a configuration: a preset, and values that override those of its files."""

    def __init__(self, folder: Path, preset: str | None, over: Mapping[str, Any]) -> None:
        self.folder, self.over = folder, json.dumps(over, sort_keys=True)
        self.results = Path("results")
        self.config = config.read(folder, preset, over)
        self.plan = plan.plan(self.config)
        self.preset = self.config.preset
        if len(self.over) > LONGEST_OVERRIDES:
            expected = f"at most {LONGEST_OVERRIDES:,} bytes that differ from config.yaml"
            raise PaperError(f"--config: expected {expected}, got {len(self.over):,}. Write them into config.yaml.")

    @classmethod
    def of(cls, folder: Path, given: Mapping[str, Any], explicit: Mapping[str, Any]) -> Workflow:
        """The workflow at the configuration that Snakemake has merged; `explicit` are the values of --config."""
        found = cls(folder, given.get("preset"), config.overrides(folder, given, explicit))
        # Snakemake takes a folder for the file of its name, and fails at a file for a folder with a traceback.
        kept = found.results / found.preset
        stages = [path for path in kept.glob("*") if path.suffix not in FILES]
        for written in (found.results / "data", kept, *stages, Path("figures") / found.preset):
            results.check_folder(written, os.R_OK)  # recorded runs may be protected
            results.check_free(path for path in written.glob("*") if path.suffix in FILES)
        return found

    # Jobs of the computing stages: each computes the missing results of a batch and writes an index of all of them

    def index(self, batch: plan.Batch) -> str:
        """The file that lists a job's results with their checksums."""
        return plan.index_path(self.results, self.preset, batch).as_posix()

    def indices(self, experiment: str | None = None) -> list[str]:
        """The jobs whose results an experiment's table is made of, or all."""
        found = self.plan.batches.values() if experiment is None else self.plan.batches_of(experiment)
        return list(map(self.index, found))

    def inputs(self, stage: str, batch: str) -> list[str]:
        """What a job of training or measurement reads: data, start weights, rescalings."""
        specs = self.plan.runs_of(stage, batch)
        datasets = {spec.get("dataset", spec.get("settings", {}).get("dataset")) for spec in specs} - {None}
        found = [f"results/data/{dataset}.pt" for dataset in sorted(datasets)]
        if stage == "train":
            scaled = {runs.family(spec) for spec in specs if runs.has_scales(spec)}
            found += [self.starts(family, rescaled=False) for family in sorted(set(map(runs.family, specs)))]
            found += [self.starts(family, rescaled=True) for family in sorted(scaled)]
        return found

    @cache  # noqa: B019 - for as long as the process lives; each training job asks
    def starts(self, family: str, rescaled: bool) -> str:
        """Index of the start weights, or rescalings, of a family of networks, with a digest of what it lists.

        The name changes with the content: Snakemake does not look at jobs behind one that runs again and whose outputs
        are ancient to them, so a changed parameter would keep new runs from being trained.
        """
        path = runs.scales_path if rescaled else runs.start_path
        specs = self.plan.training(family).values()
        found = {path(self.results, spec).name for spec in specs if not rescaled or runs.has_scales(spec)}
        digest = runs.digest({"starts": sorted(found)})
        return f"results/{self.preset}/{'rescale' if rescaled else 'init'}/{family}-{digest}.json"

    def work(self, stage: str, batch: str, again: str) -> str:
        """What a job will do, in words."""
        specs = self.plan.runs_of(stage, batch)
        count = len(specs) if again else len(self.missing_runs(specs))
        return f"{count} of {len(specs)} runs are computed" if count else f"all {len(specs)} runs exist"

    def missing_runs(self, specs: Iterable[Spec]) -> list[Spec]:
        """Runs that have no result."""
        return [spec for spec in specs if not results.exists(runs.result_path(self.results, spec))]

    def refuse(self, jobs: Iterable[Any]) -> None:
        """Raise a PaperError if one of these jobs trains; called where there is no GPU to train on."""
        found: list[Spec] = []
        for job in jobs:
            if job.rule.name.endswith("train"):
                specs = self.plan.runs_of("train", job.wildcards.batch)
                found += specs if job.params.again else self.missing_runs(specs)
        if found:
            raise PaperError(plan.refusal(found))

    # Parameters of tables, figures and pages

    def slice(self, experiment: str) -> str:
        """The part of the configuration that an experiment's table depends on, as JSON."""
        return json.dumps(plan.slice_of(self.config, experiment), sort_keys=True)

    @cached_property
    def _papers(self) -> tuple[config.Config, plan.Plan]:
        chosen = config.read(self.folder, config.PAPER)
        return chosen, plan.plan(chosen)

    def judged(self, experiment: str) -> bool:
        """Whether an experiment's settings are the paper's own, those of config.yaml."""
        if self.preset == config.PAPER and self.over == "{}":
            return True
        chosen, papers = self._papers
        names = (experiment, *EXPERIMENTS[experiment].also)
        same = all(self.config.plain[name] == chosen.plain[name] for name in names)
        return same and self.plan.asked[experiment] == papers.asked[experiment]

    def note(self, experiment: str) -> str:
        """The line printed below a figure: its preset and the amounts of data, training and seeds."""
        papers = None if self.preset == config.PAPER else self._papers[0].plain[experiment]
        return note(self.preset, self.config.plain[experiment], papers)

    def caption(self, experiment: str) -> str:
        """The caption of a figure."""
        return EXPERIMENTS[experiment].described(self.config.plain[experiment])

    def category(self, experiment: str) -> str:
        """The entry of an experiment in the report's menu, which is sorted by name: its number in the paper's order."""
        number = list(EXPERIMENTS).index(experiment) + 1
        return f"{number:02d} {EXPERIMENTS[experiment].title} ({EXPERIMENTS[experiment].where})"


def again(workflow: Any, rule: str, output: Sequence[str], now: float = time.time()) -> str:
    """The option of a job that its command line of Snakemake forces (-R, -F, -f), by rule or by file.

    The job then computes what is older than the start of Snakemake, also if it is tried again. A job on a cluster reads
    the Snakefile without that command line; it finds what is forced in its environment. A workflow that imports this
    one as a module may put a prefix before the names of its rules (`as other_*`).
    """
    if workflow.is_main_process:
        given = workflow.dag_settings
        targets = given.targets if given.forcetargets else ()
        forced = {"all": given.forceall, "names": [*map(str, (*given.forcerun, *targets))], "now": now}
        os.environ[FORCED] = json.dumps(forced)
    found = json.loads(os.environ.get(FORCED, "{}"))
    files = set(map(str, output))
    named = (name in files or f"_{name}".endswith(f"_{rule}") for name in found.get("names", ()))
    return f"--again {found['now']}" if found and (found["all"] or any(named)) else ""


def all_made(targets: Iterable[Any]) -> None:
    """Raise a PaperError if a file that was asked for does not exist at the end.

    Where a job of an early stage is forced, Snakemake does not look at the jobs behind those that have it as an ancient
    input, so their files may be missing (seen with 9.27).
    """
    missing = [file for job in targets for file in (job.output or job.input) if not os.path.exists(file)]
    if missing:
        cause = "Snakemake leaves out some jobs behind one that runs again"
        some = f"{len(missing)} files that were asked for are still missing, among them {missing[0]}"
        raise PaperError(f"{some}: {cause}. Run the same command once more, without -R, -f or -F.")


def code(stage: str, experiment: str | None = None) -> list[str]:
    """Source files of a cheap stage, which are its inputs: an edit runs the stage again."""
    folder = Path(__file__).parent
    files = [folder / name for name in ("experiments/__main__.py", "experiments/base.py", "results.py", *_CODE[stage])]
    if experiment is not None:
        files += [folder / name for name in modules(experiment)]
    if stage in _TEMPLATES:
        files += sorted((folder.parents[1] / "workflow/templates").glob(_TEMPLATES[stage]))
    # Relative paths, so that Snakemake accepts a moved checkout.
    here = Path.cwd()
    return [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in files if path.exists()]


def modules(experiment: str) -> list[str]:
    """The file of an experiment, and those of the experiments that it imports, relative to this folder."""
    name = f"experiments/{experiment}.py"
    path, found = Path(__file__).parent / name, [name]
    for one, other in _IMPORTED.findall(path.read_text("utf-8")) if path.exists() else ():
        found += modules(one or other)
    return list(dict.fromkeys(found))


_IMPORTED = re.compile(r"^from paper\.experiments(?:\.(?!base\b)(\w+) import|\s+import (\w+)$)", re.MULTILINE)
_CODE = {
    "aggregate": ["aggregate.py"],
    "figure": ["plotting.py", "methods.py"],
    "claims": ["verdicts.py"],
    "report": ["report.py", "dashboard.py"],
    "docs": ["docs.py", "report.py", "dashboard.py", "forest.py", "experiments/practice.py"],
}
_TEMPLATES = {"report": "*.html.j2", "docs": "*.md.j2"}


def note(preset: str, settings: Mapping[str, Any], papers: Mapping[str, Any] | None = None) -> str:
    """The line printed below a figure: its preset, and the amounts of data, training and seeds.

    Of several training grids, those of one kind of network are described together. Where the settings are not
    `papers`, those of the paper follow.
    """
    found = [f"preset: {preset}", *_described(settings)]
    if papers is not None:
        papers = {key: value for key, value in papers.items() if settings.get(key) is not None}
        theirs = _described(papers)
        if theirs != found[1:]:
            found += [f"in the paper: {theirs[0]}", *theirs[1:]]
        if _networks(papers) != _networks(settings):
            found.append("networks are smaller than in the paper, too small to compare methods")
    return "  ·  ".join(filter(None, found))


def _blocks(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [value for value in settings.values() if isinstance(value, Mapping) and "epochs" in value]


def _networks(settings: Mapping[str, Any]) -> list[Any]:
    return [block.get(name) for block in (settings, *_blocks(settings)) for name in ("model", "networks", "width")]


def _described(settings: Mapping[str, Any]) -> list[str]:
    """The amounts of an experiment, or of each kind of network that its training grids have."""
    blocks = _blocks(settings)
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for block in blocks:
        kinds.setdefault(block.get("model", {}).get("kind", ""), []).append(block)
    same: dict[tuple[str, ...], list[str]] = {}
    for kind, grids in kinds.items() if kinds else [("", [settings])]:
        same.setdefault(tuple(_amounts(grids)), []).append(kind)
    found = []
    for (first, *more), names in [(amounts or ("",), names) for amounts, names in same.items()]:
        found += [f"{', '.join(names)}: {first}" if len(blocks) > 1 else first, *more]
    return found


def _seeds(block: Mapping[str, Any]) -> list[int]:
    """The seeds that all methods of a training grid have."""
    more = block.get("more_seeds", ())
    added = {seed: {name for one in more if seed in one["seeds"] for name in one["methods"]}
             for one in more for seed in one["seeds"]}  # fmt: skip
    shared = (seed for seed, methods in added.items() if methods >= set(block["methods"]))
    return list(dict.fromkeys([*block["seeds"], *shared]))


def _amounts(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Images, epochs, seeds and the like in words; where blocks differ, all their values, but the most seeds alone."""

    def values(name: str) -> list[Any]:
        return sorted({block[name] for block in blocks if name in block})

    longer = {f" ({one['epochs']:,} at lr {one['lr']:g})" for block in blocks for one in block.get("longer", ())}
    found = []
    for name, text in (
        ("images", "images"), ("epochs", f"epochs{''.join(sorted(longer))}"), ("batches", "batches timed"),
        ("draws", "draws"), ("samples", "inputs"), ("repeats", "repeats"),
    ):  # fmt: skip
        if numbers := values(name):
            one = text.replace("batches", "batch") if numbers == [1] else text
            found.append(f"{' or '.join(f'{number:,}' for number in numbers)} {one}")
    if values("epochs") and (targets := values("target")):
        found.append(f"target {' or '.join(f'{100 * target:g}' for target in targets)}% train accuracy")
    seeds = [(block.get("seeding"), block.get("precision"), _seeds(block)) for block in blocks if "seeds" in block]
    if seeds:
        same: dict[Any, set[int]] = {}
        for *start, of_block in seeds:
            same.setdefault(tuple(start), set()).update(of_block)
        count = max(map(len, same.values()))
        differ = any(len(of_block) != count for *_, of_block in seeds)
        found.append(f"{'up to ' * differ}{count} seed{'s' * (count > 1)}")
    return found


class TimeLeft(logging.Handler):
    """After a job, tells about how long the rest takes, from the usual share of each rule in the time.

    Args:
        jobs: the jobs that will run, each with `jobid` and `rule.name`.
    """

    def __init__(self, jobs: Iterable[Any]) -> None:
        super().__init__()
        self.left = {job.jobid: USUAL_SECONDS.get(job.rule.name, 3.0) for job in jobs if job.rule.name != "all"}
        self.total, self.began = sum(self.left.values()), time.monotonic()
        self.told = self.began

    def emit(self, record: logging.LogRecord) -> None:
        """Called with each event of Snakemake."""
        now = time.monotonic()
        share = self.left.pop(getattr(record, "job_id", None), None)
        if share is None or now - self.told < TELL_EVERY or not self.left:
            return
        rest = sum(self.left.values())
        seconds = (now - self.began) * rest / (self.total - rest)
        cli.say(f"about {max(1, round(seconds / 60))} min left" if seconds > 45 else "less than a minute left")
        self.told = now


def add_sacct(folder: Path) -> None:
    """Let Snakemake's executor find the sacct of profiles/slurm, which answers without an accounting database too."""
    os.environ["PATH"] = f"{folder}/profiles/slurm/bin:{os.environ.get('PATH', os.defpath)}"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, without importing torch."""
    return shutil.which("nvidia-smi") is not None
