"""Scale mappings from the command line: ``pathcond mappings CONFIG``; models are built without weights."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_map

from pathcond.checks import PathCondError, PathCondWarning, check_choice, optional_package
from pathcond.groups import ScaleGroups, groups_to_awq_mappings, groups_to_cle_pairs, scale_groups, verify_mapping

_WAY = "Install it: pip install transformers; or run: uvx --with transformers pathcond"
_transformers = partial(optional_package, "transformers", "configurations and models", _WAY)
_OTHER_CALLS = (
    "the model was called with one kind of input, text alone where it reads text. For others, such as text with "
    "images, call pathcond.scale_groups or pathcond.verify_mapping with such inputs."
)
FORMATS = ("text", "json", "awq", "smoothquant", "norms", "auto-round", "pairs")
_ENTRIES = {  # as llm-compressor takes them
    "awq": "AWQMapping(smooth_layer={smooth_layer}, balance_layers={balance_layers})",
    "smoothquant": "LayerMap(balance_layers={balance_layers}, smooth_layers={smooth_layer})",
    "norms": "NormMapping(norm={smooth_layer}, linears={balance_layers})",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pathcond", description=(__doc__ or "").partition(":")[0] + ".")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument(
        "config", metavar="CONFIG",
        help="folder or file with a config.json of transformers, or a model id where the hub can be reached",
    )  # fmt: skip

    about = "mappings for AWQ, SmoothQuant and equalization that are exact"
    command = commands.add_parser("mappings", parents=[model], help=about)
    command.add_argument(
        "--format", choices=FORMATS, default="text",
        help="text and json: every free group; awq, smoothquant, norms: as llm-compressor takes them; auto-round; "
        "pairs: layers for cross-layer equalization (AIMET, brevitas)",
    )  # fmt: skip

    commands.add_parser("groups", parents=[model], help="the scale groups, free and frozen, with reasons")

    command = commands.add_parser("verify", parents=[model], help="compare a mapping with the scale groups of a model")
    command.add_argument("mapping", metavar="MAPPING", type=Path, help="JSON file with a list of entries")

    command = commands.add_parser("check", help="check the mappings that a quantization library ships")
    command.add_argument("--registry", required=True, metavar="NAME", help="llm-compressor, auto-round, or one list")
    only = "model types or classes of transformers; else all listed ones"
    command.add_argument("--only", nargs="+", metavar="MODEL", help=only)
    also = "more of them, which the library does not list"
    command.add_argument("--also", nargs="+", default=[], metavar="MODEL", help=also)
    command.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    return parser


def load_config(source: str) -> Any:
    """The configuration in a folder or file, or of a model id.

    Raises:
        PathCondError: there is none, or transformers does not know it.
    """
    transformers, path = _transformers(), Path(source)
    try:
        if not path.exists():
            return transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        path = path / "config.json" if path.is_dir() else path
        values = json.loads(path.read_text())
        known = values.get("model_type") if isinstance(values, dict) else None
        if known not in transformers.CONFIG_MAPPING:
            what = f"model_type '{known}', which transformers {transformers.__version__} does not know"
            raise ValueError(what if known else "JSON without a model_type")
        return transformers.AutoConfig.for_model(**values)
    except Exception as error:  # noqa: BLE001 - whatever transformers raises is about the configuration
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        found = kind + " ".join(str(error).splitlines()[:2])
        raise PathCondError(
            "expected a configuration of transformers (config.json with a known model_type), or a model id that can be "
            f"reached, at '{path}', got {found}"
        ) from error


def build(config: Any) -> tuple[nn.Module, Any]:
    """The model of a configuration on the meta device, without weights, in eval mode; and an input for it.

    Text is longer than the number of tokens that sparse attention selects, so that the selection takes part.
    """
    transformers = _transformers()
    make = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
    if make is None:
        causal = type(config) in transformers.AutoModelForCausalLM._model_mapping
        make = (transformers.AutoModelForCausalLM if causal else transformers.AutoModel).from_config
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(config)
    return model.eval(), _example(model, config)


def _example(model: nn.Module, config: Any) -> dict[str, torch.Tensor]:
    """An input without values for a model that reads images, sound or text."""
    kind = getattr(model, "main_input_name", "input_ids")
    size = getattr(config, "image_size", 224)  # convolutional networks take any
    size = size if isinstance(size, int) else size[0]
    shapes = {
        "pixel_values": (1, getattr(config, "num_channels", 3), size, size),
        "input_values": (1, 16000),
        "input_features": (1, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 500)),
    }
    if kind not in ("input_ids", *shapes):
        raise PathCondError(
            f"expected a model that reads text, images or sound, got {type(model).__name__}, which reads '{kind}'. "
            "Call pathcond.scale_groups with an input of your own."
        )
    length = 1 + max(15, getattr(config, "index_topk", None) or 0)
    text = torch.zeros(1, length, dtype=torch.int64, device="meta")
    example = {kind: torch.empty(shapes[kind], device="meta") if kind in shapes else text}
    return example | ({"decoder_input_ids": text} if getattr(config, "is_encoder_decoder", False) else {})


def mappings_as(form: str, model: nn.Module, groups: ScaleGroups) -> str:
    """The free groups of a model in one of :data:`FORMATS`."""
    free = groups.free
    if form == "norms":
        free = tuple(group for group in free if all(len(part.shape) == 1 for part in group.producers))
    experts: Literal["linear", "skip"] = "skip" if form == "auto-round" else "linear"
    found = groups_to_awq_mappings(free, experts=experts, fused=form not in ("smoothquant", "auto-round"))
    if form == "text":
        return str(ScaleGroups(free))
    if form in _ENTRIES:
        entries = [{key: json.dumps(names) for key, names in mapping.items()} for mapping in found]
        return "\n".join(["[", *(f"    {_ENTRIES[form].format(**entry)}," for entry in entries), "]"])
    if form == "pairs":
        shown: Any = groups_to_cle_pairs(free)
    elif form == "auto-round":
        shown = [tree_map(lambda name: f"^{re.escape(name)}$", m) for m in found if _in_a_block(model, m)]
    else:
        ends = [(group, [*map(str, group.producers)], [*map(str, group.consumers)]) for group in free]
        parts = [{"name": g.name, "channels": g.channels, "multiplied": up, "divided": down} for g, up, down in ends]
        shown = {"groups": parts, "mappings": found}
    return json.dumps(shown, indent=1)


def _in_a_block(model: nn.Module, mapping: dict[str, Any]) -> bool:
    """Whether auto-round finds all layers: it looks for linear layers, in the block of the smooth layer."""
    block = re.match(r".*?\.\d+\.", mapping["smooth_layer"])
    readers = [model.get_submodule(name) for name in mapping["balance_layers"]]
    inside = block is not None and all(name.startswith(block[0]) for name in mapping["balance_layers"])
    return inside and all(isinstance(reader, nn.Linear) for reader in readers)


def entries_in(path: Path) -> list[Any]:
    """The entries in a file: JSON, or the Python text that ``mappings`` prints for llm-compressor."""
    printed = "what `pathcond mappings` prints: a list of entries in JSON, or of AWQMapping(...)"
    wanted = f"expected '{path}' to hold {printed}"
    try:
        text = path.read_text()
        found = json.loads(text)
        found = found.get("mappings") if isinstance(found, dict) else found
    except (OSError, UnicodeDecodeError) as error:
        raise PathCondError(f"{wanted}, got {error}.") from error
    except ValueError as error:
        try:
            calls = ast.parse(text.strip(), mode="eval").body.elts  # type: ignore[attr-defined]
            found = [{part.arg: ast.literal_eval(part.value) for part in call.keywords} for call in calls]
        except (AttributeError, SyntaxError, ValueError):
            raise PathCondError(f"{wanted}, got text that is neither: {error}.") from error
    if not isinstance(found, list) or not found:
        raise PathCondError(f"{wanted}, got {'an empty list' if found == [] else 'no list'}.")
    return found


def _check(options: argparse.Namespace) -> int:
    from pathcond import registry

    _transformers()
    libraries = dict.fromkeys(name.split()[0] for name in registry.REGISTRIES)
    check_choice("--registry", options.registry, (*registry.REGISTRIES, *libraries))
    found = []
    for name in [name for name in registry.REGISTRIES if options.registry in (name, name.split()[0])]:
        for model in options.only or [*registry.listed_models(name), *options.also]:
            for finding in registry.check_registry(name, model):
                found.append(asdict(finding))
                change = "" if finding.change is None else f" {finding.change:.1e}"
                arrow = f"{finding.smooth} -> {', '.join(finding.balance)}"
                print(f"{name}, {model}: {arrow}: {finding.verdict}{change}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(finding["verdict"] == "not exact" for finding in found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 1 if something is not exact, 2 for wrong input."""
    options = _parser().parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for many small tensors; on a busy machine, more threads wait for one another
    try:
        if options.command == "check":
            return _check(options)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", PathCondWarning)
            status = _run(options)
        texts = dict.fromkeys(str(note.message) for note in notes if issubclass(note.category, PathCondWarning))
        for text in [*texts, _OTHER_CALLS] if texts else []:
            print(f"note: {text}", file=sys.stderr)
    except PathCondError as error:
        print(f"pathcond: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has enough
        sys.stderr.close()
        return 0
    finally:
        torch.set_num_threads(threads)
    return status


def _run(options: argparse.Namespace) -> int:
    model, example = build(load_config(options.config))
    if options.command == "verify":
        found = verify_mapping(model, example, entries_in(options.mapping))
        for check in found:
            print(replace(check, reason="see the notes") if check.verdict == "holds on this input" else check)
        return int(not all(check.verdict in ("exact", "holds on this input") for check in found))
    groups = scale_groups(model, example)
    print(groups if options.command == "groups" else mappings_as(options.format, model, groups))
    exported = options.command == "mappings" and options.format not in ("text", "json")
    if exported and not groups_to_awq_mappings(groups):
        print(f"none of the {len(groups.free)} free groups has this form: see --format text", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
