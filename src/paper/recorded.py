"""Which items have their runs, and so are drawn without running anything: python -m paper.recorded --scale paper.

An item that compares learning rates is drawn from those that have their runs, if there are two at least; a method that
its claims do not need may lack some.

Exit status: 0 whether or not runs are missing, 2 if a run that is there is damaged.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paper import cli, config, plan, store
from paper.errors import PaperError
from paper.plan import ITEMS, Item, runs, runs_of, settings, sources, without


def narrowed(chosen: Mapping[str, Any], results: Path) -> dict[str, Any]:
    """The configuration without the learning rates that lack a run, for items that have two others at least.

    Where a method lacks one that the item can spare, that method alone is left out.

    Args:
        chosen: the configuration, checked.
        results: folder of the scale's results.

    Returns:
        The configuration, and in it under `left_out`, by item, what is not asked for any more, in words.
    """
    scale, blocks, left_out = chosen["scale"], {}, {}
    for item, entry in ITEMS.items():
        missing, block = set(lacking(chosen, item, results)), settings(chosen, item)
        pairs = [(s["method"], s["lr"]) for s in runs_of(chosen, item) if "lr" in s and plan.key(s) in missing]
        lacked = {lr for method, lr in pairs if method not in entry.spare}
        kept = [lr for lr in block.get("lrs", ()) if lr not in lacked]
        if pairs and len(kept) > 1:
            spared = [pair for pair in dict.fromkeys(pairs) if pair[1] in kept]
            blocks[item] = {**block, "lrs": kept, "spared": spared}
            rates = ", ".join(f"{lr:g}" for lr in block["lrs"] if lr in lacked)
            left_out[item] = [f"lr {rates}"] * bool(lacked) + [f"{method} at lr {lr:g}" for method, lr in spared]
    scales = {**chosen["scales"], scale: {**chosen["scales"][scale], **blocks}}
    return {**chosen, "scales": scales, "left_out": left_out}


def items(chosen: Mapping[str, Any], results: Path) -> dict[str, Item]:
    """The items to make: all, or, where the configuration says `only_recorded`, those that lack no run.

    Args:
        chosen: the configuration, checked.
        results: folder of the scale's results.
    """
    if not chosen["only_recorded"]:
        return ITEMS
    return {item: entry for item, entry in ITEMS.items() if not lacking(chosen, item, results)}


def lacking(chosen: Mapping[str, Any], item: str, results: Path) -> list[str]:
    """Keys of the runs that an item asks for and that are not there."""
    return [key for key in sources(chosen, item) if not store.is_there(results / f"{key}.csv")]


def unused(chosen: Mapping[str, Any], results: Path) -> list[str]:
    """Keys of runs that are there, but under settings that the configuration does not ask for."""
    found = (path.relative_to(results).with_suffix("").as_posix() for path in sorted(results.glob("*/**/*-*.csv")))
    asked = runs(chosen)
    return [key for key in found if key.startswith(("measure/", "train/")) and key not in asked]


def told(chosen: Mapping[str, Any], results: Path) -> str:
    """What is there and what is not, for people: a line an item, the missing runs below it; and the time it took.

    Raises:
        PaperError: a run that is there is damaged.
    """
    there = {key for key in runs(chosen) if store.is_there(results / f"{key}.csv")}
    if damaged := [reason for key in sorted(there) if (reason := store.damage(results / f"{key}.csv"))]:
        raise PaperError("\n".join([*damaged, "`git restore` brings back what was recorded."]))
    whole, lines, fewer = 0, [], narrowed(chosen, results)
    for item in ITEMS:
        asked = sources(chosen, item)
        missing = [key for key in asked if key not in there]
        whole += not missing
        drawn = f"drawn {without(fewer, item)}" if item in fewer["left_out"] else "not drawn"
        state = f"{drawn}, lacks" if missing else "complete"
        lines += [f"{item:16} {len(asked) - len(missing):3} of {len(asked):3} runs  {state}"]
        lines += [f"    {key}" for key in missing]
    lines += [f"{key}: of other settings than asked for, not used" for key in unused(chosen, results)]
    lines += [f"{seconds / 60:.1f} minutes on {name}" for name, seconds in _times(there, results).items()]
    return "\n".join([f"{chosen['scale']}: {whole} of {len(ITEMS)} items are complete", *lines])


def _times(keys: Iterable[str], results: Path) -> dict[str, float]:
    """Seconds that runs took, by hardware."""
    found: dict[str, float] = {}
    for key in keys:
        record = store.read_record(results / f"{key}.csv")
        found[record["hardware"]] = found.get(record["hardware"], 0.0) + record["seconds"]
    return dict(sorted(found.items()))


def main() -> None:
    """Read the command line, tell."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.recorded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    config.add_options(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the scales' folders")
    arguments = parser.parse_args()
    chosen = config.chosen(arguments)
    sys.stdout.write(told(chosen, arguments.results / chosen["scale"]) + "\n")


if __name__ == "__main__":
    cli.run(main)
