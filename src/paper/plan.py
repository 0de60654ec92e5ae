"""All runs of a preset: what the experiments ask for, which jobs compute them, and what they cost.

`python -m paper.plan --output FILE` writes their specs, for a machine without Snakemake.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper import cli, config, results
from paper.config import Config
from paper.experiments import EXPERIMENTS
from paper.experiments.base import Experiment
from paper.runs import CONVOLUTIONAL, FULLY_CONNECTED, Spec, family, key, training_specs

MEASURING_JOBS = 4  # most jobs of one measured experiment


@dataclass(frozen=True)
class Batch:
    """Runs that one job computes."""

    stage: str  # train or measure
    name: str  # of the job's index file
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Every run of a preset."""

    preset: str
    specs: Mapping[str, Spec]  # by key
    asked: Mapping[str, list[str]]  # keys by experiment, with those of the experiments that it reads too
    missing: Mapping[str, list[dict[str, Any]]]  # network, method and lr of runs that are left out, by experiment
    batches: Mapping[tuple[str, str], Batch]  # the jobs, by (stage, name)

    def batches_of(self, experiment: str) -> list[Batch]:
        """The jobs whose results an experiment's table is made of."""
        wanted = set(self.asked[experiment])
        return [batch for batch in self.batches.values() if not wanted.isdisjoint(batch.keys)]

    def training(self, family_name: str | None = None) -> dict[str, Spec]:
        """Specs of the training runs, or of those of one family of networks, by key."""
        found = {name: spec for name, spec in self.specs.items() if spec["stage"] == "train"}
        return {name: spec for name, spec in found.items() if family_name in (None, family(spec))}


def plan(config: Config) -> Plan:
    """Expand a checked configuration into its runs."""
    own: dict[str, dict[str, Spec]] = {}
    missing: dict[str, list[dict[str, Any]]] = {}
    for name, experiment in EXPERIMENTS.items():
        specs = list(_specs(experiment, config.settings[name], config.preset, config.sweeps))
        own[name] = {key(spec): spec for spec in specs if not _matches(spec, config.missing)}
        missing[name] = [entry for entry in config.missing if any(_matches(spec, [entry]) for spec in specs)]
    asked = {
        name: list(dict.fromkeys(k for source in (name, *experiment.also) for k in own[source]))
        for name, experiment in EXPERIMENTS.items()
    }
    specs = {name: spec for found in own.values() for name, spec in found.items()}
    alone = {name for name, experiment in EXPERIMENTS.items() if experiment.exclusive}
    batches = _batches(own, specs, config.runs_per_job.model_dump(), alone)
    return Plan(config.preset, specs, asked, missing, {(b.stage, b.name): b for b in batches})


def slice_of(config: Config, experiment: str) -> dict[str, Any]:
    """The part of a configuration that the table of an experiment depends on."""
    names = (experiment, *EXPERIMENTS[experiment].also)
    return {
        "preset": config.preset,
        "sweeps": config.sweeps,
        "missing": config.missing,
        "settings": {name: config.plain[name] for name in names},
    }


def specs_of(given: Mapping[str, Any], experiment: str) -> list[Spec]:
    """The runs that an experiment's table is made of, in the order of the settings; `given` comes from `slice_of`."""
    found: dict[str, Spec] = {}
    for name in (experiment, *EXPERIMENTS[experiment].also):
        settings = EXPERIMENTS[name].settings.model_validate(given["settings"][name])
        for spec in _specs(EXPERIMENTS[name], settings, given["preset"], given["sweeps"]):
            if not _matches(spec, given["missing"]):
                found[key(spec)] = spec
    return list(found.values())


def _specs(experiment: Experiment, settings: Any, preset: str, sweeps: int) -> Iterator[Spec]:
    if experiment.grids is None:
        yield from measurement_specs(experiment, settings, preset)
        return
    for grid in experiment.grids(settings):
        yield from training_specs(grid, preset, sweeps)


def _matches(spec: Spec, patterns: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a training run is one of those that the configuration lists as missing."""
    if spec["stage"] != "train":
        return False
    return any(all(spec[name] == value for name, value in pattern.items()) for pattern in patterns)


def _batches(
    own: Mapping[str, Mapping[str, Spec]], specs: Mapping[str, Spec], sizes: Mapping[str, int], alone: Container[str]
) -> list[Batch]:
    """Group runs by the set of experiments that need them, then split each group by size.

    So the jobs of an experiment compute no other runs, and a new run changes only the jobs of its own experiments. On a
    GPU, runs of one shape in a job train together; the paper's convolutional networks take few runs per job, so that a
    cluster can spread them. An experiment in `alone`, which has the machine for itself, is one job.
    """
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name, spec in specs.items():
        experiments = "+".join(e for e, found in own.items() if name in found)
        size = sizes["measured"]
        if spec["stage"] == "train":
            kind = spec["model"]["kind"]
            paper = "fully_connected" if kind in FULLY_CONNECTED else "convolutional" if kind in CONVOLUTIONAL else None
            size = sizes[paper or "common"]
        groups.setdefault((spec["stage"], experiments, size), []).append(name)
    found = []
    for (stage, experiments, size), names in groups.items():
        shape = {name: (specs[name]["network"], specs[name]["epochs"]) for name in names if stage == "train"}
        ordered = sorted(names, key=lambda name: shape.get(name, ("", 0)))
        # Jobs of equal size; four are enough to spread the parts of a measurement.
        jobs = 1 if experiments in alone else -(-len(names) // size)
        step = -(-len(names) // (jobs if stage == "train" else min(jobs, MEASURING_JOBS)))
        number = sum(1 for batch in found if batch.stage == stage and batch.name.rpartition("-")[0] == experiments)
        for first in range(0, len(ordered), step):
            found.append(Batch(stage, f"{experiments}-{number:02d}", tuple(ordered[first : first + step])))
            number += 1
    return found


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


def flops(spec: Mapping[str, Any]) -> float:
    """Floating-point operations of a training run, roughly: forward and backward pass of every image and epoch."""
    return 6.0 * multiplications(spec["model"]) * spec["images"] * spec["epochs"]


# Multiplications of one forward pass on 32 x 32 pixels, at width 1.
MULTIPLICATIONS = {
    "vgg11": 1.53e8, "resnet18": 5.6e8, "mobilenetv2": 1.4e7, "efficientnet_b0": 1.6e7, "convnext_zepto": 2.4e7,
    "vit_tiny": 1.16e8, "mixer": 8.6e7,
}  # fmt: skip


def multiplications(model: Mapping[str, Any]) -> float:
    """Multiplications of one forward pass on one example."""
    if model["kind"] == "mlp":
        widths = [model["inputs"], *model["hidden"], model["outputs"]]
        return float(sum(n * m for n, m in zip(widths, widths[1:], strict=False)))
    if model["kind"] == "autoencoder":
        outer, inner = model["inputs"] // model["compression"], model["inputs"] // model["compression"] ** 2
        return 2.0 * (model["inputs"] * outer + outer * inner)
    if model["kind"] == "gpt":
        width, context = model["width"], model["context"]
        per_token = model["layers"] * (12 * width**2 + 2 * width * context) + width * model["vocabulary"]
        return float(context * per_token)
    width, side = model.get("width", 1.0), model["image"]
    if model["kind"] in MULTIPLICATIONS:
        return MULTIPLICATIONS[model["kind"]] * width**2 * (side / 32) ** 2
    if model["kind"] == "cifar_nv":
        a, b, c = 128 * width, 256 * width, 320 * width
        first, second = 9 * (3 * a + 2 * a * a) * side**2, 9 * (a * b + 2 * b * b) * (side / 2) ** 2
        return first + second + (9 * b * c + c * c + 10 * c) * (side / 4) ** 2
    total, before = 9 * 3 * 64 * width * side**2, 64 * width
    for stage, channels in enumerate((64 * width, 128 * width, 256 * width, 512 * width)):
        total += (10 * before * channels + 9 * channels**2 + 28 * channels**2) * (side / 2**stage) ** 2
        before = channels
    return total


def main() -> None:
    """Write the specs of a preset's runs as a JSON list, for a machine without Snakemake."""
    parser = argparse.ArgumentParser(prog="python -m paper.plan", description=main.__doc__)
    config.add_options(parser)
    parser.add_argument("--experiments", nargs="+", choices=tuple(EXPERIMENTS), default=(), metavar="NAME",
                        help="only the runs of these experiments")  # fmt: skip
    parser.add_argument("--queue", nargs="*", metavar="NAME", help="runs of workflow/queue.yaml, all or only these")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.queue is not None:
        chosen = config.read(given.folder, given.preset)
        specs = [spec for grid in config.read_queue(given.folder, chosen, given.queue)
                 for spec in training_specs(grid, chosen.preset, chosen.sweeps)]  # fmt: skip
        config.check_specs(specs)
        results.write_json(given.output, list({key(spec): spec for spec in specs}.values()))
        return
    found = plan(config.read(given.folder, given.preset))
    wanted = dict.fromkeys(name for experiment in given.experiments or found.asked for name in found.asked[experiment])
    results.write_json(given.output, [found.specs[name] for name in wanted])


if __name__ == "__main__":
    cli.run(main)
