"""From runs to one tidy table an item: strict about which runs there are, with spread across seeds.

python -m paper.aggregate ITEM --config JSON --output FILE
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from paper import cli, store
from paper.curves import tables
from paper.errors import PaperError
from paper.plan import ITEMS, settings, sources

Runs = Sequence[tuple[pd.DataFrame, Mapping[str, Any]]]

# Columns that name a row within a seed or repeat.
_KEYS = {
    "toy": ["start", "extra", "run", "step"],
    "criteria": ["example", "criterion", "log_scale"],
    "theory": ["case", "a", "kind", "layer"],
    "regimes": ["variance", "alpha"],
    "smooth": ["activation", "initialisation", "hidden_layers"],
    "bcd": ["network", "pooling", "sweep"],
    "timing": ["network", "pooling", "step"],
    "timing_depth": ["hidden_layers", "step"],
}


def aggregate(item: str, paths: list[Path], settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of an item, from the results it is made of.

    Args:
        item: name of the item.
        paths: tables of its runs, each beside its record.
        settings: the item's block of the configuration.

    Raises:
        PaperError: a run is damaged, or has not the seeds or repeats its settings ask for, each once everywhere.
    """
    runs = [store.read_result(path) for path in paths]
    for path, (table, record) in zip(paths, runs, strict=True):
        _check_counts(path, table, record["spec"])
    if ITEMS[item].trained:
        return tables(runs, settings)
    return _TABLES.get(item, _joined)(runs)


def _check_counts(path: Path, table: pd.DataFrame, spec: Mapping[str, Any]) -> None:
    settings = spec.get("settings", spec)
    within = ["epoch"] if spec["stage"] == "train" else _KEYS.get(spec["item"], [])
    for name, asked in (("seed", settings.get("seeds")), ("repeat", range(settings.get("repeats", 0)))):
        if not asked:
            continue
        expected, found = sorted(asked), table[name].tolist() if name in table else []
        if (got := sorted(set(found))) != expected:
            raise PaperError(f"{path}: expected {name}s {expected}, got {got}. Delete it and run again.")
        rows = dict(sorted(Counter(found).items()))
        if table.duplicated([*within, name]).any() or len(set(rows.values())) > 1:
            raise PaperError(
                f"{path}: expected every {name} once in every group, got rows by {name} {rows}. "
                "Delete it and run again."
            )


def _joined(runs: Runs) -> pd.DataFrame:
    return pd.concat([table for table, _ in runs], ignore_index=True)


def _summary(table: pd.DataFrame, by: list[str], values: list[str]) -> pd.DataFrame:
    """Mean and deviation of each value over what `by` leaves out, and how many there were; a NaN is not dropped."""
    groups = table.groupby(by, sort=False, dropna=False)
    columns = {}
    for value in values:
        columns[f"{value}_mean"] = groups[value].mean(skipna=False)
        columns[f"{value}_sd"] = groups[value].std(skipna=False)
    return pd.DataFrame({**columns, "n": groups.size()}).reset_index()


def _regimes(runs: Runs) -> pd.DataFrame:
    rows = _joined(runs).groupby(_KEYS["regimes"], sort=False)
    scales, fails = rows["max_log_scale"], rows["printed_root_fails"].mean()
    low, high = scales.quantile(0.25), scales.quantile(0.75)
    columns = {"median": scales.median(), "low": low, "high": high, "printed_root_fails": fails, "n": rows.size()}
    return pd.DataFrame(columns).reset_index()


def _smooth(runs: Runs) -> pd.DataFrame:
    values = ["error", "train_error", "max_u", "clamped", "free_u", "kept_u", "kept_error"]
    return _summary(_joined(runs), _KEYS["smooth"], values)


def _bcd(runs: Runs) -> pd.DataFrame:
    return _summary(_joined(runs), _KEYS["bcd"], ["normalised", "to_optimum", "update", "printed"])


_TIMED = ["parameters", "batches", "epoch_batches", "hardware"]


def _timing(runs: Runs) -> pd.DataFrame:
    return _summary(_joined(runs), [*_KEYS["timing"], "units", *_TIMED], ["seconds"])


def _timing_depth(runs: Runs) -> pd.DataFrame:
    depth = _joined([run for run in runs if run[1]["spec"]["item"] == "timing_depth"])
    split = _timing([run for run in runs if run[1]["spec"]["item"] == "timing"])
    by = [*_KEYS["timing_depth"], *_TIMED]
    medians = depth.groupby(by, sort=False)["seconds"].median().rename("seconds_median").reset_index()
    depth = _summary(depth, by, ["seconds"]).merge(medians, on=by)
    return pd.concat([depth.assign(panel="depth"), split.assign(panel="split")], ignore_index=True)


_TABLES: dict[str, Callable[[Runs], pd.DataFrame]] = {
    "regimes": _regimes,
    "smooth": _smooth,
    "bcd": _bcd,
    "timing": _timing,
    "timing_depth": _timing_depth,
}


def main() -> None:
    """Read the command line, write the table."""
    parser = argparse.ArgumentParser(prog="python -m paper.aggregate", description=__doc__)
    parser.add_argument("item", choices=ITEMS)
    # Not a list of tables: of a few thousand, it would be longer than a command may be.
    parser.add_argument("--config", required=True, help="the item's part of the configuration, as JSON")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the scales' folders")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    config = cli.read_object(given.config, "--config")
    paths = [given.results / config["scale"] / f"{key}.csv" for key in sources(config, given.item)]
    store.write_table(given.output, aggregate(given.item, paths, settings(config, given.item)))


if __name__ == "__main__":
    cli.run(main)
