"""The configuration, checked: every wrong key and value is named before anything runs."""

import argparse
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, ValidationError, validators

from paper import fit
from paper.blocks import NETWORKS
from paper.cells import cells_of
from paper.errors import PaperError

Json = Any


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, where PyYAML was built with it


class _Loader(_Safe):
    """YAML that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                line = key.start_mark.line + 1
                raise PaperError(f"line {line}: key {key.value!r} is given twice in one block; keep one of them.")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: Path) -> dict[str, Json]:
    """Read a YAML file; a key given twice or a slip of the syntax is an error that names the line."""
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a program that reads the configuration; `chosen` understands them."""
    parser.add_argument("--config", type=Path, default=Path("config.yaml"))
    parser.add_argument("--schema", type=Path, default=Path("workflow/schemas/config.schema.yaml"))
    parser.add_argument("--scale", help="instead of the one in the configuration")


def chosen(arguments: argparse.Namespace) -> dict[str, Json]:
    """The configuration that a command line names, checked."""
    given = load(arguments.config)
    return check({**given, "scale": arguments.scale or given.get("scale")}, arguments.schema)


def check(config: Mapping[str, Json], schema_path: Path) -> dict[str, Json]:
    """Check a configuration against the closed schema, and what a schema cannot say.

    Args:
        config: as YAML or the command line gave it; numbers may be text such as ``"1e-3"``.
        schema_path: the JSON schema, as YAML.

    Returns:
        The configuration with every number a number.

    Raises:
        PaperError: names every wrong key and value by its dotted path, with the nearest right key.
    """
    schema = load(schema_path)
    values = _coerce(config, schema, schema)
    errors = list(_validator(schema).iter_errors(values))
    # An object that lacks two keys is two errors of the schema with one explanation.
    found = list(dict.fromkeys(text for error in errors for text in _explain(error)))
    wrong = {tuple(error.absolute_path)[:3] for error in errors}
    found += [text for scale, blocks in _sound(values, wrong) for text in _cross_check(f"scales.{scale}", blocks)]
    if found:
        lines = "\n".join(f"  {text}" for text in found)
        raise PaperError(f"the configuration has {len(found)} mistake{'s' * (len(found) > 1)}:\n{lines}")
    return values


def _validator(schema: Json) -> Draft202012Validator:
    # JSON Schema takes 3.0 for an integer; in a path or a loop it is not one. NaN would pass every bound.
    def is_integer(_: Any, value: Json) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def is_number(_: Any, value: Json) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

    kinds = {"integer": is_integer, "number": is_number}
    checker = Draft202012Validator.TYPE_CHECKER.redefine_many(kinds)
    return validators.extend(Draft202012Validator, type_checker=checker)(schema)


def _coerce(value: Json, schema: Json, root: Json) -> Json:
    """Text that the schema wants as a number or a truth value, made one; everything else as it is."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, Mapping):
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        rest = rest if isinstance(rest, dict) else {}
        return {key: _coerce(v, fields.get(key, rest), root) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_coerce(v, schema.get("items", {}), root) for v in value]
    if isinstance(value, str):
        return _parse(value, schema.get("type"))
    return value


def _parse(text: str, kind: Json) -> Json:
    if kind == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in ("integer", "number") and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        number = float(text)
        if kind == "number":
            return number
        return int(number) if number.is_integer() else text
    return text


def _explain(error: ValidationError) -> Iterator[str]:
    where = ".".join(map(str, error.absolute_path)) or "(top level)"
    schema: Json = error.schema
    given: Json = error.instance
    if error.validator == "additionalProperties":
        known = sorted(schema.get("properties", {}))
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1, 0.5)
                hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(known)}."
                yield f"{where}: unknown key {key!r}{hint}"
    elif error.validator == "required":
        missing = [key for key in schema["required"] if key not in given]
        keys, are = ("keys", "are") if len(missing) > 1 else ("key", "is")
        yield f"{where}: expected the {keys} {', '.join(missing)}, which {are} not there."
    elif error.validator == "enum":
        near = difflib.get_close_matches(str(error.instance), schema["enum"], 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        yield f"{where}: expected one of {', '.join(schema['enum'])}, got {error.instance!r}{hint}"
    elif error.validator == "type":
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield f"{where}: expected {' or '.join(kinds)}, got {error.instance!r} ({type(error.instance).__name__})."
    else:
        yield f"{where}: {_REASONS.get(str(error.validator), error.message)}, got {error.instance!r}.".replace(
            "LIMIT", str(error.validator_value)
        )


_REASONS = {
    "minimum": "expected at least LIMIT",
    "maximum": "expected at most LIMIT",
    "exclusiveMinimum": "expected more than LIMIT",
    "exclusiveMaximum": "expected less than LIMIT",
    "minItems": "expected at least LIMIT entries",
    "maxItems": "expected at most LIMIT entries",
    "minProperties": "expected at least LIMIT entries",
    "uniqueItems": "expected no entry twice",
    "pattern": "expected a name that matches LIMIT",
}


def _sound(config: Json, wrong: set[tuple]) -> Iterator[tuple[str, dict[str, Json]]]:
    """The blocks of each scale that the schema finds right; `wrong` has the paths of those it does not."""
    scales = config.get("scales")
    for scale, blocks in scales.items() if isinstance(scales, dict) else ():
        if isinstance(blocks, dict):
            yield scale, {name: block for name, block in blocks.items() if ("scales", scale, name) not in wrong}


def _cross_check(where: str, blocks: dict[str, Json]) -> Iterator[str]:
    """What ties keys of a scale together."""
    networks = blocks.get("networks", {})
    yield from _cross_check_networks(f"{where}.networks", networks)
    for item in [item for item in ("bcd", "timing") if {item, "networks"} <= set(blocks)]:
        for name in blocks[item]["networks"]:
            if name not in networks:
                yield f"{where}.{item}.networks: no network {name!r}; {where}.networks has {', '.join(networks)}."
            elif item == "timing" and _keys(networks[name]) == _needed(networks[name]):
                for key, text in fit.of_timed(networks[name], blocks["timing"]):
                    yield f"{where}.{'timing' if key == 'batch' else f'networks.{name}'}.{key}: {text}"
    for item, block in blocks.items():
        yield from (f"{where}.{item}.{key}: {text}" for key, text in fit.of_item(item, block))
    for item, grid in [*blocks.items(), *((f"controls.{name}", g) for name, g in blocks.get("controls", {}).items())]:
        if isinstance(grid, dict) and "optimiser" in grid:
            yield from _cross_check_grid(f"{where}.{item}", grid)


def _cross_check_networks(where: str, networks: dict[str, Json]) -> Iterator[str]:
    for name, network in networks.items():
        got, need = _keys(network), _needed(network)
        may = need | ({"held"} if network["kind"] == "resnet18_c" else set())
        if not need <= got <= may:
            has, came = ", ".join(sorted(need)), ", ".join(sorted(got)) or "nothing"
            yield f"{where}.{name}: a {network['kind']} has {has}; got {came}."


def _keys(network: dict[str, Json]) -> set[str]:
    return set(network) - {"kind"}


def _needed(network: dict[str, Json]) -> set[str]:
    return set(NETWORKS[network["kind"]].needed) - {"kind"}


def _cross_check_grid(where: str, grid: dict[str, Json]) -> Iterator[str]:
    """What ties keys of a trained item together; its cells are held against the rules for specs."""
    cells = cells_of("", {**grid, "lrs": grid["lrs"][:1]}, "tiny")
    found = [mistake for cell in cells for mistake in fit.of_spec(cell)]
    for key, text in dict.fromkeys(found):
        yield f"{where}.{'compressions' if key == 'model.compression' else key}: {text}"
    if "shown" in grid and grid["shown"] not in grid["hidden_layers"]:
        yield f"{where}.shown: expected one of hidden_layers {grid['hidden_layers']}, got {grid['shown']}."
    for longer in grid.get("longer", ()):
        if longer["lr"] not in grid["lrs"]:
            yield f"{where}.longer: expected learning rates of lrs {grid['lrs']}, got {longer['lr']}."
