"""All runs of a preset: what the experiments ask for, which jobs compute them, and what they cost.

`python -m paper.plan --output FILE` writes their specs, for a machine without Snakemake.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper import cli, config, results
from paper.cli import PaperError
from paper.config import Config
from paper.experiments import EXPERIMENTS
from paper.experiments.base import Experiment
from paper.runs import CONVOLUTIONAL, FULLY_CONNECTED, Spec, digest, family, key, training_specs

MEASURING_JOBS = 4  # most jobs of one measured experiment


@dataclass(frozen=True)
class Batch:
    """Runs that one job computes."""

    stage: str  # train or measure
    name: str  # of the job's index file: the experiments that need the runs, and a digest of all keys
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Every run of a preset."""

    preset: str
    specs: Mapping[str, Spec]  # by key
    asked: Mapping[str, list[str]]  # keys by experiment, with those of the experiments that it reads too
    batches: Mapping[tuple[str, str], Batch]  # the jobs, by (stage, name)

    def batches_of(self, experiment: str) -> list[Batch]:
        """The jobs whose results an experiment's table is made of."""
        wanted = set(self.asked[experiment])
        return [batch for batch in self.batches.values() if not wanted.isdisjoint(batch.keys)]

    def runs_of(self, stage: str, batch: str) -> list[Spec]:
        """The runs of a job."""
        if (stage, batch) not in self.batches:
            expected = f"a batch of the preset {self.preset} at these settings"
            raise PaperError(f"batch: expected {expected}, got {batch}. `snakemake -n` lists the jobs.")
        return [self.specs[name] for name in self.batches[stage, batch].keys]

    def training(self, family_name: str | None = None) -> dict[str, Spec]:
        """Specs of the training runs, or of those of one family of networks, by key."""
        found = {name: spec for name, spec in self.specs.items() if spec["stage"] == "train"}
        return {name: spec for name, spec in found.items() if family_name in (None, family(spec))}


def plan(config: Config) -> Plan:
    """Expand a checked configuration into its runs."""
    own = {name: _own(config, name) for name in EXPERIMENTS}
    asked = {
        name: list(dict.fromkeys(k for source in (name, *experiment.also) for k in own[source]))
        for name, experiment in EXPERIMENTS.items()
    }
    specs = {name: spec for found in own.values() for name, spec in found.items()}
    alone = {name for name, experiment in EXPERIMENTS.items() if experiment.exclusive}
    batches = list(_batches(own, specs, config.top.runs_per_job.model_dump(), alone))
    return Plan(config.preset, specs, asked, {(b.stage, b.name): b for b in batches})


def slice_of(config: Config, experiment: str) -> dict[str, Any]:
    """The part of a configuration that the table of an experiment depends on."""
    names = (experiment, *EXPERIMENTS[experiment].also)
    return {
        "preset": config.preset,
        "sweeps": config.top.sweeps,
        "settings": {name: config.plain[name] for name in names},
    }


def specs_of(config: Config, experiment: str) -> list[Spec]:
    """The runs that the table of an experiment is made of."""
    sources = (experiment, *EXPERIMENTS[experiment].also)
    return list({k: spec for source in sources for k, spec in _own(config, source).items()}.values())


def _own(config: Config, name: str) -> dict[str, Spec]:
    """The runs of an experiment by key, without those of others that its table reads."""
    experiment, settings = EXPERIMENTS[name], config.settings[name]
    if experiment.grids is None:
        found = measurement_specs(experiment, settings, config.preset)
    else:
        grids = experiment.grids(settings)
        found = [spec for grid in grids for spec in training_specs(grid, config.preset, config.top.sweeps)]
        _refuse_mixed(experiment, found)
    return {key(spec): spec for spec in found}


_FREE = {"method", "rescaling", "lr", "seed"}  # in which all runs of a network may differ


def _refuse_mixed(experiment: Experiment, specs: Iterable[Spec]) -> None:
    """Raise a PaperError if a table would mix runs of one network that differ in a setting that it does not show."""
    seen: dict[tuple, Spec] = {}
    for spec in specs:
        network = (spec["network"], spec["epochs"], *(spec.get(name) for name in experiment.distinct))
        for runs, free in ((network, _FREE), ((*network, spec["method"]), _FREE - {"rescaling"})):
            other = seen.setdefault(runs, spec)
            if differ := [name for name in {**other, **spec} if name not in free and other.get(name) != spec.get(name)]:
                expected = f"the same {', '.join(differ)} in all runs of {network[0]} with {network[1]} epochs"
                (one, first), (two, second) = (([s.get(n) for n in differ], key(s)) for s in (other, spec))
                way_out = "Give the blocks that ask for them the same settings."
                raise PaperError(
                    f"experiments.{experiment.name}: expected {expected}, got {one} in {first} and {two} in {second}: "
                    f"the table would mix them. {way_out}"
                )


def _batches(
    own: Mapping[str, Mapping[str, Spec]], specs: Mapping[str, Spec], sizes: Mapping[str, int], alone: Container[str]
) -> Iterator[Batch]:
    """Group runs by the experiments of the paper that need them, else by ours; split groups by number and by cost.

    So the jobs of the paper's experiments compute no other runs, and yet runs of one shape are in few jobs: on a GPU
    those of a job train together. The paper's convolutional networks take few runs per job, so that a cluster can
    spread them. An experiment in `alone`, which has the machine for itself, is one job.
    """
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name, spec in specs.items():
        asking = [e for e, found in own.items() if name in found]
        experiments = "+".join([e for e in asking if EXPERIMENTS[e].where != "ours"] or asking)
        size = sizes["measured"]
        if spec["stage"] == "train":
            kind = spec["model"]["kind"]
            paper = "fully_connected" if kind in FULLY_CONNECTED else "convolutional" if kind in CONVOLUTIONAL else None
            size = sizes[paper or "common"]
        groups.setdefault((spec["stage"], experiments, size), []).append(name)
    for (stage, experiments, size), names in groups.items():
        if stage == "train":
            names.sort(key=lambda name: (specs[name]["network"], specs[name]["epochs"]))
        # Jobs of equal size; four are enough to spread the parts of a measurement.
        jobs = 1 if experiments in alone else -(-len(names) // size)
        step = -(-len(names) // (jobs if stage == "train" else min(jobs, MEASURING_JOBS)))
        for keys in _split(names, step, [gpu_seconds(specs[name]) for name in names]):
            content = digest({"runs": [[name, specs[name].get("rows")] for name in sorted(keys)]})
            yield Batch(stage, f"{experiments}-{content}", tuple(keys))


def _split(names: Sequence[str], most: int, seconds: Sequence[float]) -> Iterator[list[str]]:
    """Consecutive runs: at most so many, and no more than LONGEST_JOB seconds unless one run alone takes longer."""
    found, total = list[str](), 0.0
    for name, cost in zip(names, seconds, strict=True):
        if found and (len(found) == most or total + cost > LONGEST_JOB):
            yield found
            found, total = [], 0.0
        found.append(name)
        total += cost
    yield found


def measurement_specs(experiment: Experiment, settings: Any, preset: str) -> Iterator[Spec]:
    """One spec per part of a measured experiment.

    The list that an experiment's `rows` names does not enter the key, so a part that lacks rows is completed instead of
    computed again.
    """
    for part, chosen in experiment.all_parts(settings):
        spec = {
            "stage": "measure",
            "preset": preset,
            "experiment": experiment.name,
            "version": experiment.version,
            "part": part,
            "settings": {name: value for name, value in chosen.items() if name != experiment.rows},
        }
        yield spec if experiment.rows is None else {**spec, "rows": {experiment.rows: list(chosen[experiment.rows])}}


# Cost

# Seconds of training on a million images: a run on an H200, beside others where they train in one batch; a CPU core.
COST = {
    "mlp": (0.37, 720), "autoencoder": (0.18, 270), "cifar_nv": (28, 220_000), "resnet18_c": (28, 200_000),
    "vgg11": (71, 11_000), "resnet18": (135, 42_000), "mobilenetv2": (230, 4_200), "vit_tiny": (175, 35_000),
    "gpt": (308, 114_000),
}  # fmt: skip
OTHER_NETWORKS = (150, 30_000)
LONGEST_JOB = 900.0  # seconds on an H200


def gpu_seconds(spec: Mapping[str, Any]) -> float:
    """Seconds of a training run on an H200, roughly; 0 for a measurement."""
    return _millions(spec) * COST.get(spec["model"]["kind"], OTHER_NETWORKS)[0] if spec["stage"] == "train" else 0.0


def cpu_seconds(spec: Mapping[str, Any]) -> float:
    """Seconds of a training run on one core of a CPU, roughly."""
    return _millions(spec) * COST.get(spec["model"]["kind"], OTHER_NETWORKS)[1]


def _millions(spec: Mapping[str, Any]) -> float:
    return spec["images"] * spec["epochs"] / 1e6


def refusal(specs: Sequence[Spec]) -> str:
    """The message when training cannot run because there is no GPU: what it would cost, and what to do."""
    count = f"{len(specs)} run{'s are' if len(specs) > 1 else ' is'}"
    networks = ", ".join(dict.fromkeys(spec["network"] for spec in specs))
    gpu, cpu = (_duration(sum(map(cost, specs))) for cost in (gpu_seconds, cpu_seconds))
    return (
        f"{count} to be trained ({networks:.120}), and there is no GPU here. They would take about {gpu} on an H200, "
        f"{cpu} on a CPU core. You can:\n"
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


# Indices: what a job writes, with the checksums of its runs; those of the paper's preset are committed


def index_path(folder: Path, preset: str, batch: Batch) -> Path:
    """The file that lists a batch's results."""
    return folder / preset / batch.stage / f"{batch.name}.json"


def write_indices(folder: Path, plan: Plan) -> list[str]:
    """Write the index of every batch whose runs exist, and delete all others; returns the keys of missing runs."""
    missing, kept = list[str](), set[Path]()
    for batch in plan.batches.values():
        specs = [plan.specs[name] for name in batch.keys]
        if absent := results.due(folder, specs):
            missing += map(key, absent)
            continue
        path = index_path(folder, plan.preset, batch)
        results.write_json(path, results.index_of(folder, specs))
        kept.add(path)
    for stage in ("train", "measure"):
        for path in set((folder / plan.preset / stage).glob("*.json")) - kept:
            path.unlink()
    return missing


# Command lines


def read(given: argparse.Namespace) -> Plan:
    """The plan of the configuration that a command line names."""
    return plan(config.read(given.folder, given.preset, cli.read_object(given.over, "--over")))


def batch_specs(given: argparse.Namespace, stage: str) -> list[Spec]:
    """The runs of the batch that a command line names."""
    return read(given).runs_of(stage, given.batch)


def main() -> None:
    """Write the specs of a preset's runs as a JSON list (--output), or the indices of its recorded runs (--indices)."""
    parser = argparse.ArgumentParser(prog="python -m paper.plan", description=main.__doc__)
    cli.add_config_options(parser)
    parser.add_argument("--experiments", nargs="+", choices=tuple(EXPERIMENTS), default=(), metavar="NAME",
                        help="only the runs of these experiments")  # fmt: skip
    parser.add_argument("--queue", nargs="*", metavar="NAME", help="the runs of the queue, or only of these blocks")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--output", type=Path, help="file for the specs")
    task.add_argument("--indices", action="store_true", help="write the indices of complete batches, delete others")
    given = parser.parse_args()
    if given.queue is not None:
        if given.experiments or given.indices:
            raise PaperError("--queue: expected --output alone, got --experiments or --indices too. Leave one out.")
        chosen = config.read(given.folder, given.preset, cli.read_object(given.over, "--over"))
        specs = [spec for grid in config.read_queue(given.folder, chosen, given.queue)
                 for spec in training_specs(grid, chosen.preset, chosen.top.sweeps)]  # fmt: skip
        results.write_json(given.output, list({key(spec): spec for spec in specs}.values()))
        return
    found = read(given)
    if given.indices:
        if missing := write_indices(given.folder / "results", found):
            lines = "\n".join(f"  {name}" for name in missing[:20])
            cli.say(f"{len(missing)} runs are missing or damaged; their batches have no index:\n{lines}")
        return
    wanted = dict.fromkeys(name for experiment in given.experiments or found.asked for name in found.asked[experiment])
    results.write_json(given.output, [found.specs[name] for name in wanted])


if __name__ == "__main__":
    cli.run(main)
