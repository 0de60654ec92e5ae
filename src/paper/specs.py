"""The specs of a scale's runs, for a machine without Snakemake: python -m paper.specs --scale paper --output FILE."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from paper import cli, store
from paper.errors import PaperError
from paper.plan import Spec, key, runs


def read_specs(texts: list[str], stage: str, match: str = "") -> Iterator[Spec]:
    """Specs of a stage from a command line: JSON text, or files of one spec or a list.

    Args:
        texts: the words of the command line.
        stage: ``measure`` or ``train``; specs of the other in a list are passed over.
        match: only specs whose key holds this text.

    Raises:
        PaperError: a file cannot be read, or its content is not specs.
    """
    for text in texts:
        try:
            content = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
        except OSError as error:
            raise PaperError(f"cannot read the specs {text}: {error.strerror}. `make specs` writes them.") from error
        except ValueError as error:
            raise PaperError(f"{text[:60]}: expected JSON, got something else ({error}).") from error
        for spec in content if isinstance(content, list) else [content]:
            try:
                wanted = spec["stage"] == stage and match in key(spec)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise PaperError(
                    f"{text[:60]}: expected specs as `make specs` writes them, got {spec!r:.200}."
                ) from error
            if wanted:
                yield spec


def main() -> None:
    """Read the command line, write a JSON list."""
    parser = argparse.ArgumentParser(prog="python -m paper.specs", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config.yaml"))
    parser.add_argument("--schema", type=Path, default=Path("workflow/schemas/config.schema.yaml"))
    parser.add_argument("--scale", help="instead of the one in the configuration")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    from paper import config  # its checker is not there on machines that only read specs

    given = config.load(arguments.config)
    checked = config.check({**given, "scale": arguments.scale or given.get("scale")}, arguments.schema)
    store.write_json(arguments.output, list(runs(checked).values()))


if __name__ == "__main__":
    cli.run(main)
