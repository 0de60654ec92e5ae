"""The specs of a scale's runs, for a machine without Snakemake: python -m paper.specs --scale paper --output FILE."""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paper import cells, cli, store
from paper.errors import PaperError
from paper.plan import ITEMS, Spec, key, runs


def read_specs(texts: list[str], stage: str, match: str = "") -> list[Spec]:
    """Specs of a stage from a command line: JSON text, or files of one spec or a list.

    Args:
        texts: the words of the command line.
        stage: ``measure`` or ``train``; specs of the other in a list are passed over.
        match: only specs whose key holds this text.

    Raises:
        PaperError: a file cannot be read, its content is not specs, or none is of the stage or holds the text.
    """
    specs = list(_of_stage(texts, stage))
    if not specs:
        raise PaperError(
            f"{texts[0]:.60}: expected runs to {stage}, got none. `make specs` writes those of both stages."
        )
    found = [spec for spec in specs if match in key(spec)]
    if match and not found:
        raise PaperError(f"--match: expected part of a name of the {len(specs)} {stage} runs given, got {match!r}.")
    return found


def _of_stage(texts: list[str], stage: str) -> Iterator[Spec]:
    for text in texts:
        try:
            content = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
        except OSError as error:
            raise PaperError(
                f"cannot read the specs {text:.200}: {error.strerror}. `make specs` writes them."
            ) from error
        except ValueError as error:
            raise PaperError(f"{text[:60]}: expected JSON, got something else ({error}).") from error
        for spec in content if isinstance(content, list) else [content]:
            try:
                wanted = spec["stage"] == stage and key(spec) != ""
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise PaperError(
                    f"{text[:60]}: expected specs as `make specs` writes them, got {spec!r:.200}."
                ) from error
            if wanted:
                _check(spec)
                yield spec


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_seeds(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(seed, 0) for seed in value) and 0 < len(value) == len(set(value))


# A run's name is a path, so what it is made of may not lead elsewhere.
_NAMES = {"measure": ("scale", "item", "part"), "train": ("scale", "task", "network", "method")}
_NEEDED = {"measure": {"scale", "settings"}, "train": {"scale"}}  # to begin with
_WANTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "task": ("classify or rebuild", lambda v: v in ("classify", "rebuild")),
    "lr": ("a positive number", lambda v: type(v) in (int, float) and 0 < v < math.inf),
    "seeds": ("whole numbers, each once", _are_seeds),
    **dict.fromkeys(("epochs", "images", "test_images", "batch"), ("a whole number above 0", _is_count)),
    "validation": ("a whole number", lambda v: _is_count(v, 0)),
    **dict.fromkeys(("model", "rescaling", "optimiser", "settings"), ("an object", lambda v: isinstance(v, dict))),
}


def _check(spec: Spec) -> None:
    """Refuse a spec that was not written by the plan: one that leads out of its folder, or of other code."""
    wanted = dict.fromkeys(_NAMES[spec["stage"]], ("a name such as mlp_2x16", _is_name)) | _WANTED
    for name, (what, right) in wanted.items():
        if name in spec.keys() | _NEEDED[spec["stage"]] and not right(spec.get(name)):
            raise PaperError(
                f"{name} of a run: expected {what}, got {spec.get(name)!r:.60}. `make specs` writes whole specs."
            )
    if spec["stage"] == "measure" and (spec["item"] not in ITEMS or ITEMS[spec["item"]].trained):
        known = ", ".join(name for name, item in ITEMS.items() if not item.trained)
        raise PaperError(f"item: expected one of {known}, got {spec['item']!r}.")
    version = cells.VERSION if spec["stage"] == "train" else ITEMS[spec["item"]].version
    if spec.get("version") != version:
        raise PaperError(
            f"{key(spec)}: expected version {version} of this code, got {spec.get('version')}. Write the specs again."
        )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9_]*", value) is not None


def main() -> None:
    """Read the command line, write a JSON list."""
    from paper import config  # its checker is not there on machines that only read specs

    parser = argparse.ArgumentParser(prog="python -m paper.specs", description=__doc__)
    config.add_options(parser)
    parser.add_argument("--items", nargs="+", choices=tuple(ITEMS), default=tuple(ITEMS), metavar="ITEM",
                        help="only the runs of these items")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    store.write_json(arguments.output, list(runs(config.chosen(arguments), arguments.items).values()))


if __name__ == "__main__":
    cli.run(main)
