"""The specs of a scale's runs, for a machine without Snakemake: python -m paper.specs --scale paper --output FILE."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from paper import cells, cli, fit, store
from paper.blocks import SETTINGS
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
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise PaperError(
                    f"{text[:60]}: expected specs as `make specs` writes them, got {spec!r:.200}."
                ) from error
            if wanted:
                _check(spec)
                yield spec


def _check(spec: Spec) -> None:
    """Refuse what the plan does not write: specs of other code, that lead out of their folder, or that cannot work."""
    if spec["stage"] == "measure" and spec["item"] not in list(SETTINGS):
        raise PaperError(f"item: expected one of {', '.join(SETTINGS)}, got {spec['item']!r:.60}.")
    version = cells.VERSION if spec["stage"] == "train" else ITEMS[spec["item"]].version
    if spec.get("version") != version:
        raise PaperError(
            f"{key(spec)}: expected version {version} of this code, got {spec.get('version')}. Write the specs again."
        )
    for where, text in fit.of_spec(spec):
        raise PaperError(f"{key(spec):.120}: {where}{': ' * bool(where)}{text} `make specs` writes whole specs.")


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
