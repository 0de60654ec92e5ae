"""The configuration, checked: every mistake is reported before anything runs.

`config.yaml` is the paper's protocol; `config/PRESET.yaml` overrides it with smaller values. An experiment's block may
name a `setup`, whose settings it shares with others. The models of the blocks are in `paper.experiments`.
"""

from __future__ import annotations

import copy
import difflib
import json
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from paper import settings as fields
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS

PAPER = "paper"
Json = Any


# Models


class Data(fields.Block):
    """Where data sets come from: a folder in torchvision's layout that is tried first."""

    directory: str | None


class Figures(fields.Block):
    """Look of the figures: dots per inch of the PNG files, and font size in points."""

    dpi: int = Field(ge=50, le=1200)
    font_size: float = Field(ge=5, le=20)


class RunsPerJob(fields.Block):
    """How many runs one job computes at most: the paper's two kinds of networks, other networks, measurements."""

    fully_connected: fields.PositiveInt
    convolutional: fields.PositiveInt
    common: fields.PositiveInt
    measured: fields.PositiveInt


class Top(fields.Block):
    """The configuration without what is inside the experiments' blocks."""

    preset: str
    device: Literal["auto", "cpu", "cuda"]
    data: Data
    figures: Figures
    sweeps: fields.PositiveInt
    runs_per_job: RunsPerJob
    networks: dict[fields.Name, fields.Network]
    setups: dict[fields.Name, dict[str, Any]]
    experiments: dict[str, dict[str, Any]]


class _Named(fields.Block):
    network: fields.Name


@dataclass(frozen=True)
class Config:
    """A checked configuration: everything but the experiments' blocks, and the settings of each experiment."""

    top: Top
    settings: Mapping[str, BaseModel]

    @property
    def preset(self) -> str:
        """Name of the preset."""
        return self.top.preset

    @cached_property
    def plain(self) -> dict[str, dict[str, Any]]:
        """Settings of each experiment as plain dictionaries."""
        return {name: fields.plain(settings) for name, settings in self.settings.items()}


# Reading


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the faster loader, if PyYAML was built with it


class _Loader(_Safe):
    """YAML that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue
            if name.value in seen:
                line = name.start_mark.line + 1
                raise PaperError(f"line {line}: key {name.value!r} is given twice in one block; keep one of them.")
            seen.add(name.value)
        return super().construct_mapping(node, deep)


def load(path: Path) -> dict[str, Json]:
    """Read a YAML file; a key given twice or a syntax error is reported with its line."""
    try:
        content = yaml.load(path.read_text("utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise PaperError(f"cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PaperError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    except PaperError as error:
        raise PaperError(f"{path}, {error}") from error
    if not isinstance(content, dict):
        raise PaperError(f"{path}: expected keys and values, got {type(content).__name__}.")
    return content


def merged(base: Json, over: Json) -> Json:
    """Nested dictionaries merged; any other value of `over` replaces that of `base`."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return copy.deepcopy(over)
    return {
        **base,
        **{name: merged(base[name], value) if name in base else copy.deepcopy(value) for name, value in over.items()},
    }


def presets(folder: Path) -> list[str]:
    """The presets of a checkout: `paper`, and one per file in config/."""
    return [PAPER, *sorted(path.stem for path in (folder / "config").glob("*.yaml"))]


def refuse_overlays(folder: Path, files: Sequence[Path | str], preset: Json) -> None:
    """Raise a PaperError if the file of a preset is given as a configuration, which would be taken for the paper's."""
    for path in map(Path, files):
        if path.resolve().parent == (folder / "config").resolve() and path.stem != preset:
            raise PaperError(f"--configfile: {path} belongs to a preset. Choose it by --config preset={path.stem}.")


def of_preset(folder: Path, preset: Json = None) -> dict[str, Json]:
    """What the files of a checkout say for a preset; None: the one in config.yaml."""
    base, known = load(folder / "config.yaml"), presets(folder)
    chosen = base.get("preset") if preset is None else preset
    if chosen not in known:
        raise PaperError(f"preset: expected one of {', '.join(known)}, got {chosen!r}{_near(str(chosen), known)}")
    overlay = {} if chosen == PAPER else load(folder / "config" / f"{chosen}.yaml")
    return {**merged(base, overlay), "preset": chosen}


def read(folder: Path, preset: str | None = None, over: Mapping[str, Json] | None = None) -> Config:
    """The checked configuration of a preset; a PaperError lists every mistake.

    Args:
        folder: the checkout, with config.yaml.
        preset: name of the preset; None: the one in config.yaml.
        over: values that override those of the preset.
    """
    return check(merged(of_preset(folder, preset), over or {}))


def overrides(folder: Path, given: Mapping[str, Json], explicit: Mapping[str, Json]) -> dict[str, Json]:
    """What differs from the files of a checkout in a configuration that Snakemake has merged.

    The preset has precedence over values that are those of config.yaml, such as those of a copy of that file, unless
    they are `explicit`: given on the command line.
    """
    over = merged(difference(load(folder / "config.yaml"), given), explicit)
    return difference(of_preset(folder, given.get("preset")), over)


def difference(base: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    """The values of nested dictionaries that differ from those of `base`, or are not there."""
    found = {}
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(name), Mapping):
            if inner := difference(base[name], value):
                found[name] = inner
        elif name not in base or base[name] != value:
            found[name] = value
    return found


def read_queue(folder: Path, chosen: Config, names: Sequence[str] = ()) -> Iterator[dict[str, Json]]:
    """Training grids of workflow/queue.yaml, which no experiment asks for yet; only of these blocks, if any."""
    path = folder / "workflow/queue.yaml"
    blocks, content = load(path), {"setups": chosen.top.setups}
    for name in names or blocks:
        if name not in blocks:
            raise PaperError(f"{path}: no block {name!r}{_hint(name, list(blocks))}")
        if not isinstance(blocks[name], Mapping):
            raise PaperError(f"{path}: {name}: expected keys and values, got {blocks[name]!r:.80}.")
        block = _with_setup(blocks[name], f"{path}: {name}", content)
        named = {"network": block.pop("network")} if "network" in block else {}
        kind = fields.DepthGrid if "hidden_layers" in block else fields.TrainingGrid
        kind = fields.CompressionGrid if "compressions" in block else kind
        # A setup may have settings that only figures use, such as smoothing.
        kept = {key: value for key, value in block.items() if key in kind.model_fields or key in blocks[name]}
        try:
            if named:
                _Named.model_validate(named)
            found = [{**fields.named_by_optimiser(grid), **named} for grid in fields.grids(kind.model_validate(kept))]
        except ValidationError as error:
            raise PaperError("\n".join(explain(error, {**kept, **named}, kind, f"{path}: {name}"))) from error
        if named and len(found) > 1:
            got = f"expected none for a block of {len(found)} networks, got {named['network']!r}"
            raise PaperError(f"{path}: {name}.network: {got}. Leave it out, or make a block of each.")
        yield from found


def check(content: Mapping[str, Json]) -> Config:
    """Check a configuration; a PaperError lists every mistake by its dotted path, with what was expected and a hint."""
    mistakes: list[str] = []
    top, settings = None, dict[str, BaseModel]()
    try:
        top = Top.model_validate(content)
    except ValidationError as error:
        mistakes += explain(error, content, Top)
    given = content.get("experiments")
    blocks: Mapping[str, Json] = given if isinstance(given, Mapping) else {}
    for name in blocks:
        if name not in EXPERIMENTS:
            mistakes.append(f"experiments: unknown key {name!r}{_hint(str(name), list(EXPERIMENTS))}")
    if isinstance(given, Mapping) and (absent := [name for name in EXPERIMENTS if name not in blocks]):
        mistakes.append(f"experiments: expected the keys {', '.join(absent)}, which are not there.")
    for name, experiment in EXPERIMENTS.items():
        if not isinstance(blocks.get(name), Mapping):
            continue
        block: Json = None
        try:
            block = _resolved(blocks[name], f"experiments.{name}", content, experiment.settings)
            settings[name] = experiment.settings.model_validate(block)
        except ValidationError as error:
            mistakes += explain(error, block, experiment.settings, f"experiments.{name}")
        except PaperError as error:
            mistakes.append(str(error))
    if top is not None and not mistakes:
        return Config(top, settings)
    found = list(dict.fromkeys(mistakes))
    lines = "\n".join(f"  {text}" for text in found)
    raise PaperError(f"the configuration has {len(found)} mistake{'s' * (len(found) > 1)}:\n{lines}")


def _resolved(block: Mapping[str, Json], where: str, content: Mapping[str, Json], model: type[BaseModel]) -> Json:
    """A block with the settings of its setup, and with the networks that it names."""
    block = {
        name: _with_setup(value, f"{where}.{name}", content) if isinstance(value, Mapping) else value
        for name, value in block.items()
    }
    block = _with_setup(block, where, content)
    names, networks = block.get("networks"), content.get("networks")
    entry = model.model_fields.get("networks")
    is_table = entry is not None and typing.get_origin(entry.annotation) is dict
    if is_table and isinstance(names, list) and isinstance(networks, Mapping):
        for name in names:
            if name not in list(networks):
                raise PaperError(f"{where}.networks: no network {name!r}{_hint(str(name), list(networks))}")
        block["networks"] = {name: networks[name] for name in names}
    return block


def _with_setup(block: Mapping[str, Json], where: str, content: Mapping[str, Json]) -> dict[str, Json]:
    if "setup" not in block:
        return dict(block)
    setups, name = content.get("setups"), block["setup"]
    if name not in (known := list(setups) if isinstance(setups, Mapping) else []):
        raise PaperError(f"{where}.setup: expected one of {', '.join(known)}, got {name!r}{_near(str(name), known)}")
    return merged(content["setups"][name], {key: value for key, value in block.items() if key != "setup"})


# Messages


def explain(error: ValidationError, content: Json, model: type[BaseModel], where: str = "") -> list[str]:
    """Every mistake that pydantic found in the content, as "dotted.path: expected this, got that; hint"."""
    found = []
    schema, missing = model.model_json_schema(), dict[str, list[str]]()
    for entry in error.errors():
        path = _place(content, entry["loc"])
        if entry["type"] == "missing":
            missing.setdefault(_dotted(where, path), []).append(str(entry["loc"][-1]))
        elif entry["type"] == "extra_forbidden":
            known = _keys(schema, entry["loc"][:-1], schema.get("$defs", {}))
            near = _near(path[-1], [*known, *["setup"] * bool(where)], "; config/schema.json lists the keys.")
            found.append(f"{_dotted(where, path[:-1])}: unknown key {path[-1]!r}{near}")
        else:
            found.append(f"{_dotted(where, path)}: {_reason(entry)}")
    for place, names in missing.items():
        keys, are = ("keys", "are") if len(names) > 1 else ("key", "is")
        found.append(f"{place}: expected the {keys} {', '.join(names)}, which {are} not there.")
    return found


def _reason(entry: Any) -> str:
    given, context = entry["input"], entry.get("ctx", {})
    text = f"{given!r:.80}"
    if entry["type"] == "value_error":
        return f"{context['error']}."
    if entry["type"] in ("literal_error", "union_tag_invalid"):
        words = str(context.get("expected", context.get("expected_tags", ""))).replace("'", "").replace(" or ", ", ")
        got = context.get("tag", given)
        return f"expected one of {words}, got {got!r}{_near(str(got), words.split(', '))}"
    if entry["type"] == "too_short":
        return f"expected at least {context['min_length']} entries, got {text}."
    for name, words in _LIMITS.items():
        if name in context:
            return f"expected {words} {context[name]:g}, got {text}."
    if isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
        return f"expected JSON, got {text}, which is not valid: check its brackets and quotes."
    words = next((words for name, words in _KINDS.items() if entry["type"].startswith(name)), None)
    if words is None:
        return f"{entry['msg']}, got {text}."
    return f"expected {words}, got {text} ({type(given).__name__})."


_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_KINDS = {
    "string_pattern": "a name such as mlp_2x16",
    "int": "an integer", "float": "a number", "finite_number": "a finite number", "bool": "true or false",
    "list": "a list", "dict": "keys and values", "model": "keys and values", "string": "text",
    "union_tag_not_found": "the key that says its kind",
}  # fmt: skip


def _dotted(where: str, path: list[str]) -> str:
    return ".".join([*([where] if where else []), *path]) or "(top level)"


def _near(got: str, known: list[str], otherwise: str = ".") -> str:
    near = difflib.get_close_matches(got, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else otherwise


def _hint(got: str, known: list[str]) -> str:
    return _near(got, known, f"; expected one of {', '.join(sorted(known))}.")


def _place(content: Json, path: Sequence[str | int]) -> list[str]:
    """The place of a mistake in the content: pydantic's path without the names of alternatives that it adds."""
    kept = []
    for name in path:
        try:
            content = content[name]
        except (KeyError, IndexError, TypeError):
            continue
        kept.append(str(name))
    return kept


def _keys(block: Json, path: Sequence[str | int], defs: Json) -> list[str]:
    """The keys of the block at pydantic's path of a mistake, in a JSON Schema."""
    if "$ref" in block:
        return _keys(defs[block["$ref"].rpartition("/")[2]], path, defs)
    if not path:
        return list(block.get("properties", ()))
    kinds = {kind: {"$ref": name} for kind, name in block.get("discriminator", {}).get("mapping", {}).items()}
    steps = [{**block.get("properties", {}), **kinds}.get(path[0]), block.get("items")]
    steps += [block.get("additionalProperties"), *block.get("patternProperties", {}).values()]
    inner = [_keys(step, path[1:], defs) for step in steps if isinstance(step, dict)]
    return sum(inner or [_keys(one, path, defs) for one in block.get("anyOf", ())], [])


# The configuration for editors


def schema() -> dict[str, Json]:
    """A JSON Schema of config.yaml: names, types and limits; blocks may leave out what their setup gives."""
    found = Top.model_json_schema()
    kinds = dict[str, Json]()
    for name, experiment in EXPERIMENTS.items():
        block = experiment.settings.model_json_schema()
        found["$defs"] |= {key: _partial(value) for key, value in block.pop("$defs", {}).items()}
        kinds[name] = _partial(block)
    found["properties"]["experiments"] = {"type": "object", "additionalProperties": False, "properties": kinds}
    return found


def _partial(block: dict[str, Json]) -> dict[str, Json]:
    """The schema of a block whose keys may come from a setup, which it names."""
    if "properties" not in block:
        return block
    properties = {**block["properties"], "setup": {"type": "string"}}
    return {**{key: value for key, value in block.items() if key != "required"}, "properties": properties}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1, sort_keys=True) + "\n")
