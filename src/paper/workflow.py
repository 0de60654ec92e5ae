"""Answers for the rules of the workflow: which jobs there are, what they read, which results are missing or damaged.

Parsing the Snakefile only reads. Results that are forced (`-R`, `-F`) are deleted, and training that cannot run here is
refused, right before the first job starts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from paper import cli, config, plan, results, runs
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS
from paper.plan import Batch, Plan
from paper.runs import Spec
from paper.verdicts import in_words

CPU_FLOPS, GPU_FLOPS = 2e10, 5e13  # per second, of one core and of an H200, as measured with the networks here
COMPUTING = ("download", "init", "rescale", "train", "measure", "measure_time")


class Workflow:
    """The workflow of a checkout, with the values of Snakemake's --config and --configfile.

    `main` is false in a job on a cluster, which parses the Snakefile again, but checks no results.
    """

    def __init__(self, folder: Path, over: Mapping[str, Any], main: bool = True) -> None:
        self.folder, self.over, self.main = folder, over, main
        self.results, self.presets = Path("results"), config.presets(folder)
        self.forced_by_experiment: set[str] = set()  # indices of jobs that `-R EXPERIMENT` forces
        self.outdated: set[str] = set()  # indices whose results were deleted, damaged or replaced
        self.preset = self.config(over.get("preset")).preset
        self.config = cache(self.config)
        self.plan = cache(self.plan)
        self.pending = cache(self.pending)

    def config(self, preset: str | None = None) -> config.Config:
        """The checked configuration of a preset."""
        return config.read(self.folder, preset, self.over)

    def plan(self, preset: str) -> Plan:
        """The runs of a preset."""
        if preset not in self.presets:
            raise PaperError(f"preset: expected one of {', '.join(self.presets)}, got {preset!r}.")
        return plan.plan(self.config(preset))

    # Jobs of the computing stages: each computes the missing results of a batch and writes an index of all of them

    def batch(self, stage: str, wildcards: Any) -> Batch:
        """The batch of a job."""
        return self.plan(wildcards.preset).batches[stage, wildcards.batch]

    def specs(self, stage: str, wildcards: Any) -> str:
        """Specs of a job's runs, for its command line."""
        plan = self.plan(wildcards.preset)
        return runs.packed([plan.specs[key] for key in self.batch(stage, wildcards).keys])

    def starts(self, wildcards: Any, rescaled: bool) -> str:
        """Specs of the runs whose start weights, or rescalings, a job computes: one per start."""
        due = [spec for spec in self._due(wildcards.preset) if runs.family(spec) == wildcards.family]
        specs = due or list(self.plan(wildcards.preset).training(wildcards.family).values())
        if rescaled:
            specs = [spec for spec in specs if runs.has_scales(spec)]
        path = runs.scales_path if rescaled else runs.start_path
        return runs.packed(list({path(self.results, spec): spec for spec in specs}.values()))

    def _due(self, preset: str) -> list[Spec]:
        """Training runs that have no result, or that are forced."""
        plan, found = self.plan(preset), []
        for stage, name in plan.batches:
            if stage == "train":
                keys = plan.batches[stage, name].keys if self.forced else self.pending(preset, stage, name)
                found += [plan.specs[key] for key in keys]
        return found

    def pending(self, preset: str, stage: str, name: str) -> list[str]:
        """Keys of a batch's runs that are missing or damaged."""
        plan, folder = self.plan(preset), self.results / preset
        keys = plan.batches[stage, name].keys
        return [key for key in keys if results.problem(folder / f"{key}.csv", plan.specs[key]) is not None]

    def index(self, preset: str, stage: str, name: str) -> str:
        """The file that lists a job's results with their checksums."""
        return f"results/{preset}/{stage}/{name}.json"

    def indices(self, preset: str, experiment: str) -> list[str]:
        """The jobs whose results an experiment's table is made of."""
        return [self.index(preset, batch.stage, batch.name) for batch in self.plan(preset).batches_of(experiment)]

    def inputs(self, stage: str, wildcards: Any) -> list[str]:
        """What a job of training or measurement reads.

        A job whose results all exist has no inputs, so no time stamp can make Snakemake run it again.
        """
        if not self.main:
            return []
        preset, name = wildcards.preset, wildcards.batch
        plan, batch = self.plan(preset), self.batch(stage, wildcards)
        self._force(stage, preset, batch)
        keys = list(batch.keys) if self.forced else self.pending(preset, stage, name)
        specs = [plan.specs[key] for key in keys]
        datasets = {spec.get("dataset", spec.get("settings", {}).get("dataset")) for spec in specs} - {None}
        found = [f"results/data/{dataset}.pt" for dataset in sorted(datasets)]
        if stage == "train":
            scaled = {runs.family(spec) for spec in specs if runs.has_scales(spec)}
            found += [f"results/{preset}/init/{family}.json" for family in sorted(set(map(runs.family, specs)))]
            found += [f"results/{preset}/rescale/{family}.json" for family in sorted(scaled)]
        if self._outdated(preset, stage, batch):
            self._rerun(self.index(preset, stage, name))
        return found

    def _outdated(self, preset: str, stage: str, batch: Batch) -> bool:
        """Whether a job's index exists but its results were deleted, damaged or replaced since.

        Snakemake itself notices, by the parameters, if other runs are asked for than before.
        """
        path = Path(self.index(preset, stage, batch.name))
        if not path.exists():
            return False
        try:
            found = json.loads(path.read_bytes())
        except ValueError:
            return True
        if set(found) != set(batch.keys):
            return False
        specs = [self.plan(preset).specs[key] for key in batch.keys]
        return bool(self.pending(preset, stage, batch.name)) or found != results.index_of(self.results, specs)

    def all_indices(self, preset: str) -> list[str]:
        """The indices of every job of training and measurement."""
        return [self.index(preset, stage, name) for stage, name in self.plan(preset).batches]

    # Parameters of tables, figures and pages

    def slice(self, preset: str, experiment: str) -> str:
        """The part of the configuration that an experiment's table depends on, as JSON."""
        return json.dumps(plan.slice_of(self.config(preset), experiment), sort_keys=True)

    def overrides(self) -> str:
        """Values of Snakemake's --config and --configfile, as JSON."""
        return json.dumps(dict(self.over), sort_keys=True)

    def without(self, preset: str, experiment: str) -> str:
        """The runs that an experiment would read but the configuration lists as missing, in words."""
        missing = self.plan(preset).missing[experiment]
        return f"without {in_words(missing)}" if missing else ""

    def missing(self, preset: str, experiment: str) -> str:
        """The same runs as JSON: network, method and learning rate."""
        return json.dumps(self.plan(preset).missing[experiment])

    def judged(self, preset: str, experiment: str) -> bool:
        """Whether an experiment's settings are the paper's."""
        mine, papers = self.config(preset), self.config(config.PAPER)
        names = (experiment, *EXPERIMENTS[experiment].also)
        return preset == config.PAPER or all(mine.plain[name] == papers.plain[name] for name in names)

    def note(self, preset: str, experiment: str) -> str:
        """The line printed below a figure: its preset and the amounts of data, training and seeds."""
        return note(preset, self.config(preset).plain[experiment], self.without(preset, experiment))

    def caption(self, preset: str, experiment: str) -> str:
        """The caption of a figure."""
        return EXPERIMENTS[experiment].described(self.config(preset).plain[experiment])

    def category(self, experiment: str) -> str:
        """The entry of an experiment in the report's menu, which is sorted by name: its number in the paper's order."""
        number = list(EXPERIMENTS).index(experiment) + 1
        return f"{number:02d} {EXPERIMENTS[experiment].title} ({EXPERIMENTS[experiment].where})"

    # Forced jobs, known once Snakemake has read its command line

    dag: Any = None
    forced_names: frozenset[str] = frozenset()
    forced_all: bool = False

    def with_command_line(self, workflow: Any) -> Workflow:
        """This object, with what Snakemake's command line forces; `workflow` is Snakemake's."""
        given = workflow.dag_settings
        self.dag, self.forced_all = workflow.dag, given.forceall
        self.forced_names = frozenset([*given.forcerun, *(given.targets if given.forcetargets else ())])
        return self

    @property
    def forced(self) -> bool:
        """Whether a computing stage is forced, so that its jobs, and those that follow, read their inputs again."""
        if self.forced_all or not self.forced_names.isdisjoint(COMPUTING):
            return True
        return any(f"results/{preset}/{stage}/" in name for name in self.forced_names
                   for preset in self.presets for stage in ("init", "rescale", "train", "measure"))  # fmt: skip

    @property
    def forced_files(self) -> set[str]:
        """Files, and names of rules, that the command line forces."""
        return {*self.forced_names, *self.forced_by_experiment}

    def _rerun(self, index: str) -> None:
        """Run a job again although its index exists; of its results only the missing ones are computed."""
        if self.dag is not None:
            self.dag.forcefiles.add(index)
        if not self.forced:
            self.outdated.add(index)

    def _force(self, stage: str, preset: str, batch: Batch) -> None:
        """`-R EXPERIMENT` forces the jobs of that experiment."""
        experiments = batch.name.rpartition("-")[0].split("+")
        if self.dag is not None and not self.forced_names.isdisjoint(experiments):
            index = self.index(preset, stage, batch.name)
            self.dag.forcefiles.add(index)
            self.forced_by_experiment.add(index)

    # Right before the first job

    def before_jobs(self, jobs: Iterable[Any], forced: set[Any], can_train: bool, cores: int) -> None:
        """Refuse training that cannot run here; delete the results of forced jobs, which Snakemake does not know.

        `forced` are those of the jobs about to run that are forced, or follow from a forced one. Training needs a GPU,
        or a configuration that asks for a CPU (`can_train`). Damaged results of the paper's preset are refused too.
        """
        due: dict[str, Spec] = {}
        damaged: list[str] = []
        doomed: list[Path] = []
        for job in jobs:
            rule, wildcards = job.rule.name, job.wildcards
            if rule in ("train", "measure", "measure_time"):
                stage = "train" if rule == "train" else "measure"
                plan, batch = self.plan(wildcards.preset), self.batch(stage, wildcards)
                again = job in forced and self.index(plan.preset, stage, batch.name) not in self.outdated
                keys = batch.keys if again else self.pending(plan.preset, stage, batch.name)
                paths = {key: self.results / plan.preset / f"{key}.csv" for key in keys}
                if stage == "train":
                    due |= {key: plan.specs[key] for key in keys}
                if again:
                    doomed += paths.values()
                elif plan.preset == config.PAPER:
                    damaged += filter(None, (results.damage(path) for path in paths.values() if results.exists(path)))
            elif rule in ("init", "rescale") and job in forced:
                path = runs.start_path if rule == "init" else runs.scales_path
                specs = self.plan(wildcards.preset).training(wildcards.family).values()
                doomed += [path(self.results, spec) for spec in specs if rule == "init" or runs.has_scales(spec)]
        if damaged:
            raise PaperError("\n".join([*damaged, "Or restore what was recorded: git restore results/paper"]))
        if due and not can_train:
            raise PaperError(refusal(list(due.values()), cores))
        for path in doomed:
            results.delete(path)
        self._repair_data({spec["dataset"] for spec in due.values()})

    def _repair_data(self, names: Iterable[str]) -> None:
        """Write damaged data files again, before the jobs that read them."""
        for name in sorted(names):
            path = self.results / "data" / f"{name}.pt"
            if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != results.recorded_sha256(path):
                from paper import data  # imports torch

                cli.say(f"{path}: damaged; it is written again.")
                directory = self.config(self.preset).top.data.directory
                data.prepare(name, path, None if directory is None else Path(directory))


def forced_jobs(dag: Any, jobs: Iterable[Any], files: Iterable[Any] = ()) -> set[Any]:
    """Those of the jobs that the command line forces by rule or by file, or that follow from a forced one.

    Snakemake also calls jobs forced whose last run was interrupted. Those keep the results that they finished.
    """
    found: dict[Any, bool] = {}
    asked = {str(file) for file in files}

    def is_asked(job: Any) -> bool:
        return job.rule in dag.forcerules or not asked.isdisjoint(map(str, job.output))

    def is_forced(job: Any) -> bool:
        if job not in found:
            found[job] = (dag.reason(job).forced and is_asked(job)) or any(
                is_forced(other) for other in dag.dependencies[job] if dag.needrun(other)
            )
        return found[job]

    return {job for job in jobs if is_forced(job)}


def code(stage: str, experiment: str | None = None) -> list[str]:
    """Source files of a cheap stage, which are its inputs: an edit runs the stage again."""
    folder = Path(__file__).parent
    files = ["experiments/__main__.py", *_CODE[stage]]
    if experiment is not None:
        files += _with_imported(folder, f"experiments/{experiment}.py")
    if folder.is_relative_to(Path.cwd()):  # relative, so that Snakemake accepts a moved checkout
        folder = folder.relative_to(Path.cwd())
    return [str(folder / name) for name in files if (folder / name).exists()]


def _with_imported(folder: Path, name: str) -> list[str]:
    """The file of an experiment, and those of the experiments that it imports."""
    found, path = [name], folder / name
    for one, other in _IMPORTED.findall(path.read_text("utf-8")) if path.exists() else ():
        found += _with_imported(folder, f"experiments/{one or other}.py")
    return list(dict.fromkeys(found))


_IMPORTED = re.compile(r"^from paper\.experiments(?:\.(?!base\b)(\w+) import|\s+import (\w+)$)", re.MULTILINE)
_CODE = {
    "aggregate": ["aggregate.py"],
    "figure": ["plotting.py", "methods.py"],
    "claims": ["verdicts.py"],
    "report": ["report.py", "dashboard.py"],
    "docs": ["docs.py", "report.py", "dashboard.py", "forest.py", "experiments/practice.py"],
}


def note(preset: str, settings: Mapping[str, Any], without: str = "") -> str:
    """The line printed below a figure: its preset, the amounts of data, training and seeds, and what is missing.

    Of several training grids, those of one kind of network are described together.
    """
    blocks = [value for value in settings.values() if isinstance(value, Mapping) and "epochs" in value]
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for block in blocks:
        kinds.setdefault(block.get("model", {}).get("kind", ""), []).append(block)
    found = [f"preset: {preset}"]
    for kind, grids in kinds.items() if kinds else [("", [settings])]:
        first, *more = _amounts(grids) or [""]
        found += [f"{kind}: {first}" if len(blocks) > 1 else first, *more]
    return "  ·  ".join([part for part in (*found, without) if part])


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
            found.append(f"{' or '.join(f'{number:,}' for number in numbers)} {text}")
    if values("epochs") and (targets := values("target")):
        found.append(f"target {' or '.join(f'{100 * target:g}' for target in targets)}% train accuracy")
    seeds = [(block.get("seeding"), block.get("precision"), block["seeds"]) for block in blocks if "seeds" in block]
    if seeds:
        same: dict[Any, set[int]] = {}
        for *start, of_block in seeds:
            same.setdefault(tuple(start), set()).update(of_block)
        count = max(map(len, same.values()))
        differ = any(len(of_block) != count for *_, of_block in seeds)
        found.append(f"{'up to ' * differ}{count} seed{'s' * (count > 1)}")
    return found


def refusal(specs: list[Spec], cores: int) -> str:
    """The message when training cannot start here: why, what it would cost, and what to do."""
    total = sum(map(plan.flops, specs))
    count = f"{len(specs)} training run{'s are' if len(specs) > 1 else ' is'}"
    networks = ", ".join(dict.fromkeys(spec["network"] for spec in specs))
    return (
        f"{count} missing ({networks:.120}), and there is no GPU here. They would take about "
        f"{_duration(total / GPU_FLOPS)} on an H200, {_duration(total / CPU_FLOPS / cores)} on this CPU. Ways on:\n"
        "  run on a machine with a GPU, or on a cluster (--workflow-profile profiles/slurm);\n"
        "  --config device=cpu      train here all the same;\n"
        "  --config preset=preview  everything in miniature, in minutes;\n"
        "  undo the change of the settings: the recorded runs are used again."
    )


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} seconds"


def add_sacct(folder: Path) -> None:
    """Let Snakemake's executor find the sacct of profiles/slurm, which answers without an accounting database too."""
    os.environ["PATH"] = f"{folder}/profiles/slurm/bin:{os.environ.get('PATH', os.defpath)}"


def worth_reading(record: logging.LogRecord) -> bool:
    """Whether a line of Snakemake's output is shown: not those about the choice of jobs and the files of a report."""
    return not str(record.msg).startswith(("Select jobs to execute", "Execute ", "Adding "))


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, without importing torch."""
    return shutil.which("nvidia-smi") is not None
