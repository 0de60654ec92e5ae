"""Runs: what the experiments ask for, under which keys, and which runs one job computes.

A run is one seed of a training (task, network, method, learning rate) or one part of a measurement. Its spec holds
every setting that its numbers depend on. Its key is its path: readable fields, then a digest of the spec. So a run
exists once, every experiment that needs it reads the same numbers, and a changed setting gives a new key.
Neither torch nor pandas nor pydantic is imported here: the workflow reads this module each time it starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper.cli import PaperError
from paper.methods import describe

if TYPE_CHECKING:
    from paper.config import Config
    from paper.experiments.base import Experiment

TRAINING_VERSION = 1  # raised by hand when the numbers of training change; tests/paper/test_golden.py detects a change
Spec = dict[str, Any]

MEASURING_JOBS = 4  # most jobs of one measured experiment
FULLY_CONNECTED = ("mlp", "autoencoder")
CONVOLUTIONAL = ("cifar_nv", "resnet18_c")
TASKS = {"autoencoder": "reconstruct", "gpt": "predict_next"}  # of kinds of networks that do not classify
# Optional settings of training: a spec has them only if they are given; without them training is the paper's.
OPTIONAL = ("schedule", "augmentation", "precision", "clip", "train_metrics", "seeding", "unequal")


# Specs and keys


def key(spec: Mapping[str, Any]) -> str:
    """The key of a run: stage, readable fields, and the digest of everything that its numbers depend on."""
    if spec["stage"] == "measure":
        return f"measure/{spec['experiment']}/{spec['part']}-{digest(spec)}"
    readable = f"{spec['task']}/{spec['network']}/{spec['method']}-lr{float(spec['lr']):g}-seed{spec['seed']}"
    return f"train/{readable}-{digest(spec)}"


def digest(value: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of a spec without its preset and rows; 1 and 1.0 are the same number."""
    content = {name: entry for name, entry in value.items() if name not in ("preset", "rows")}
    text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _canonical(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return value


def result_path(results: Path, spec: Mapping[str, Any]) -> Path:
    """The table of a run, below the folder that holds the presets' folders."""
    return results / spec["preset"] / f"{key(spec)}.csv"


def index_of(folder: Path, specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Checksums of results by key, after checking each of them."""
    from paper import results

    return {key(spec): results.check(result_path(folder, spec))["sha256"] for spec in specs}


def task(model: Mapping[str, Any]) -> str:
    """What a network is trained to do: classify images, reconstruct them, or predict the next character of a text."""
    return TASKS.get(model["kind"], "classify")


def training_specs(grid: Mapping[str, Any], preset: str, sweeps: int | None = None) -> Iterator[Spec]:
    """One spec per method, learning rate and seed of a training grid, a dictionary of :func:`paper.settings.grids`.

    `sweeps` is for methods that rescale by sweeps of coordinate descent; None: the method's own number.
    """
    model, more = grid["model"], grid.get("more_seeds") or {"methods": (), "seeds": ()}
    optional = {name: grid[name] for name in OPTIONAL if grid.get(name) is not None}
    for method in grid["methods"]:
        rescaling = describe(method)
        if rescaling.get("rescale") and grid.get("clamp") is not None:
            rescaling = {**rescaling, "clamp": grid["clamp"]}
        if rescaling.get("solver") == "sweeps" and sweeps is not None:
            rescaling = {**rescaling, "sweeps": sweeps}
        for lr in grid["lrs"]:
            longer = (one["epochs"] for one in grid.get("longer", ()) if float(one["lr"]) == float(lr))
            epochs = next(longer, grid["epochs"])
            for seed in [*grid["seeds"], *(more["seeds"] if method in more["methods"] else ())]:
                yield {
                    "stage": "train",
                    "preset": preset,
                    "version": TRAINING_VERSION,
                    "task": task(model),
                    "network": grid["network"],
                    "model": model,
                    "method": method,
                    "rescaling": rescaling,
                    "optimiser": grid["optimiser"],
                    "lr": lr,
                    "epochs": epochs,
                    **{name: grid[name] for name in ("dataset", "images", "validation", "test_images", "batch")},
                    **optional,
                    "seed": seed,
                }


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


# Start weights and rescalings, which runs share


def start(spec: Mapping[str, Any]) -> Spec:
    """What identifies the start weights of a run: network, model and seed, and how it is used."""
    return {name: spec[name] for name in ("preset", "network", "model", "seed", "seeding", "unequal") if name in spec}


def start_path(results: Path, spec: Mapping[str, Any]) -> Path:
    """The start weights of a run, which all methods share."""
    name = f"seed{spec['seed']}-{digest(start(spec))}.safetensors"
    return results / spec["preset"] / "init" / spec["network"] / name


def scales_path(results: Path, spec: Mapping[str, Any]) -> Path:
    """The rescaling of a run's start weights, which all learning rates share."""
    name = f"seed{spec['seed']}-{digest({**start(spec), 'rescaling': spec['rescaling']})}.safetensors"
    return results / spec["preset"] / "rescale" / spec["network"] / spec["method"] / name


def has_scales(spec: Mapping[str, Any]) -> bool:
    """Whether the rescaling of a run's start weights can be saved ahead: it needs no images."""
    return bool(spec["rescaling"].get("rescale")) and spec["rescaling"].get("statistics") != "input"


def family(spec: Mapping[str, Any]) -> str:
    """Networks whose start weights, and rescalings, one job computes: kind and activation."""
    activation = spec["model"].get("activation", "relu")
    return spec["model"]["kind"] + ("" if activation == "relu" else f"_{activation}")


# All runs of a preset


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


def plan(config: Config, experiments: Mapping[str, Experiment]) -> Plan:
    """Expand a checked configuration into its runs."""
    own: dict[str, dict[str, Spec]] = {}
    missing: dict[str, list[dict[str, Any]]] = {}
    for name, experiment in experiments.items():
        specs = list(_specs(experiment, config.settings[name], config.preset, config.sweeps))
        own[name] = {key(spec): spec for spec in specs if not _matches(spec, config.missing)}
        missing[name] = [entry for entry in config.missing if any(_matches(spec, [entry]) for spec in specs)]
    asked = {
        name: list(dict.fromkeys(k for source in (name, *experiment.also) for k in own[source]))
        for name, experiment in experiments.items()
    }
    specs = {name: spec for found in own.values() for name, spec in found.items()}
    alone = {name for name, experiment in experiments.items() if experiment.exclusive}
    batches = _batches(own, specs, config.runs_per_job.model_dump(), alone)
    return Plan(config.preset, specs, asked, missing, {(b.stage, b.name): b for b in batches})


def slice_of(config: Config, experiment: str, experiments: Mapping[str, Experiment]) -> dict[str, Any]:
    """The part of a configuration that the table of an experiment depends on."""
    names = (experiment, *experiments[experiment].also)
    return {
        "preset": config.preset,
        "sweeps": config.sweeps,
        "missing": config.missing,
        "settings": {name: config.plain[name] for name in names},
    }


def specs_of(given: Mapping[str, Any], experiment: str, experiments: Mapping[str, Experiment]) -> list[Spec]:
    """The runs that an experiment's table is made of, in the order of the settings; `given` comes from `slice_of`."""
    found: dict[str, Spec] = {}
    for name in (experiment, *experiments[experiment].also):
        settings = experiments[name].settings.model_validate(given["settings"][name])
        for spec in _specs(experiments[name], settings, given["preset"], given["sweeps"]):
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


def packed(specs: Sequence[Spec]) -> str:
    """Specs as short JSON for a command line: common fields once, then the fields that differ."""
    if not specs:
        return json.dumps({"shared": {}, "runs": []})
    first = specs[0]
    shared = {k: v for k, v in first.items() if all(k in spec and spec[k] == v for spec in specs)}
    runs = [{k: v for k, v in spec.items() if k not in shared} for spec in specs]
    return json.dumps({"shared": shared, "runs": runs}, sort_keys=True, separators=(",", ":"))


def read_specs(texts: Sequence[str], stage: str, match: str = "") -> list[Spec]:
    """Specs of a stage from a command line: JSON text or files, of one spec, a list, or what `packed` wrote.

    Specs of the other stage, and those whose key does not contain `match`, are skipped.
    """
    specs = [spec for text in texts for spec in _read(text) if spec["stage"] == stage]
    if not specs:
        found = f"expected runs to {stage}, got none. `make specs` writes those of both stages."
        raise PaperError(f"{texts[0]:.60}: {found}")
    found = [spec for spec in specs if match in key(spec)]
    if match and not found:
        raise PaperError(f"--match: expected part of a key of the {len(specs)} {stage} runs given, got {match!r}.")
    return found


def _read(text: str) -> Iterator[Spec]:
    try:
        content = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except OSError as error:
        raise PaperError(f"cannot read the specs {text:.200}: {error.strerror}. `make specs` writes them.") from error
    except ValueError as error:
        raise PaperError(f"{text[:60]}: expected JSON, got something else ({error}).") from error
    if isinstance(content, dict) and content.keys() == {"shared", "runs"}:
        content = [{**content["shared"], **run} for run in content["runs"]]
    for spec in content if isinstance(content, list) else [content]:
        try:
            if spec["stage"] in ("measure", "train") and spec["preset"] and key(spec):
                yield spec
                continue
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            pass
        raise PaperError(f"{text[:60]}: expected specs as `make specs` writes them, got {spec!r:.200}.")


def check_specs(specs: Iterable[Spec]) -> None:
    """Refuse the first spec that is of another version, has unsafe names or impossible settings; lists its mistakes."""
    try:
        from paper.config import check_spec
    except ModuleNotFoundError as error:  # on a machine without pydantic, specs were checked by `make specs`
        if error.name not in ("pydantic", "yaml"):
            raise
        for spec in specs:
            if spec["stage"] == "train" and spec.get("version") != TRAINING_VERSION:
                text = f"expected version {TRAINING_VERSION} of this code, got {spec.get('version')}"
                raise PaperError(f"{key(spec)}: {text}. Write the specs again (`make specs`).") from error
        return
    for spec in specs:
        check_spec(spec)


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
    import argparse

    from paper import config, results  # not needed on machines that only read specs
    from paper.experiments import EXPERIMENTS

    parser = argparse.ArgumentParser(prog="python -m paper.runs", description=main.__doc__)
    config.add_options(parser)
    parser.add_argument("--experiments", nargs="+", choices=tuple(EXPERIMENTS), default=(), metavar="NAME",
                        help="only the runs of these experiments")  # fmt: skip
    parser.add_argument("--queue", nargs="*", metavar="NAME", help="the runs of queue.yaml, or only of these blocks")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.queue is not None:
        chosen = config.read(given.folder, given.preset)
        specs = [spec for grid in config.read_queue(given.folder, chosen, given.queue)
                 for spec in training_specs(grid, chosen.preset, chosen.sweeps)]  # fmt: skip
        check_specs(specs)
        results.write_json(given.output, list({key(spec): spec for spec in specs}.values()))
        return
    found = plan(config.read(given.folder, given.preset), EXPERIMENTS)
    wanted = dict.fromkeys(name for experiment in given.experiments or found.asked for name in found.asked[experiment])
    results.write_json(given.output, [found.specs[name] for name in wanted])


if __name__ == "__main__":
    from paper import cli

    cli.run(main)
