"""From runs to the table of an experiment. A missing or doubled seed is an error; the spread is across seeds.

The table of a trained experiment has these columns that identify runs: network, hidden_layers, compression, parameters,
method, lr, epochs. Its panels:

    curve   one epoch: mean and deviation over seeds of every metric, smoothed if the experiment asks for it; NaN if
            a seed diverged
    seed    one epoch of one seed: the same metrics (if the experiment draws them), and `lost`: whether no method
            learns more than all classes but one from this seed
    run     one seed: reached (epochs to the target, NaN if never), reached_end (epochs to the train accuracy with
            which the baseline of that seed ended), final and best metrics, max_log_scale, diverged
    cell    one network, method and learning rate: mean and deviation over its runs; `reached_n` and `diverged_n`
            count seeds

The column `shown` marks the network whose curves are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paper.cli import PaperError
from paper.lazy import pd

Runs = Sequence[tuple["pd.DataFrame", Mapping[str, Any]]]  # table and provenance of each run
METRICS = (
    "train_loss", "running_train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss",
    "test_accuracy",
)  # fmt: skip
# Fractions of the training images: of all classes, and of all but one.
LEARNT, LACKING = 0.99, 0.901


def joined(runs: Runs, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of all runs, as they are."""
    return pd.concat([table for table, _ in runs], ignore_index=True)


def check_counts(where: object, table: pd.DataFrame, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Make sure that a run has the seeds or repeats its settings ask for, each once everywhere, or raise a PaperError.

    `keys` are columns that identify a row within a seed or repeat; `where` is the run's file, for the message.
    """
    for name, asked in (("seed", settings.get("seeds")), ("repeat", range(settings.get("repeats", 0)))):
        if not asked:
            continue
        expected, found = sorted(asked), table[name].tolist() if name in table else []
        if (got := sorted(set(found))) != expected:
            raise PaperError(f"{where}: expected {name}s {expected}, got {got}. Delete it and run again.")
        rows = dict(sorted(Counter(found).items()))
        if table.duplicated([*keys, name]).any() or len(set(rows.values())) > 1:
            got = f"expected every {name} once in every group, got rows by {name} {rows}"
            raise PaperError(f"{where}: {got}. Delete it and run again.")


def summary(table: pd.DataFrame, by: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Mean and deviation of each value over what `by` leaves out, and how many there were; a NaN is not dropped."""
    groups = table.groupby(list(by), sort=False, dropna=False)
    columns = {}
    for value in values:
        columns[f"{value}_mean"] = groups[value].mean(skipna=False)
        columns[f"{value}_sd"] = groups[value].std(skipna=False)
    return pd.DataFrame({**columns, "n": groups.size()}).reset_index()


def trained(runs: Runs, settings: Mapping[str, Any], by_seed: bool = False) -> pd.DataFrame:
    """The table of a trained experiment, with the panel `seed` if asked for.

    The settings, or blocks in them, may have `target` (train accuracy to reach); the settings may have `smoothing` (of
    the curves) and `shown`.
    """
    blocks = [settings, *(block for block in settings.values() if isinstance(block, Mapping))]
    target = next((block["target"] for block in blocks if "target" in block), None)
    smoothing = settings.get("smoothing")
    cells: dict[tuple, int] = {}  # names of a network, method and learning rate, and their place in the table
    alike: dict[frozenset, list[pd.DataFrame]] = {}  # runs with the same columns
    columns: dict[int, frozenset] = {}
    for table, provenance in runs:
        cell = cells.setdefault(tuple(_names(provenance).items()), len(cells))
        same = columns.setdefault(cell, frozenset(table))
        if same != frozenset(table):
            which = ", ".join(f"{name} {value}" for name, value in _names(provenance).items() if value is not None)
            differ = ", ".join(sorted(same ^ frozenset(table)))
            way = "Give them the same settings, such as train_metrics."
            raise PaperError(f"{which}: expected runs with the same columns, got some without {differ}. {way}")
        alike.setdefault(same, []).append(table.assign(cell=cell))
    parts = []
    for tables in alike.values():
        found = _panels(pd.concat(tables, ignore_index=True), target, smoothing, by_seed)
        parts += [part.assign(panel=panel, order=order) for order, (panel, part) in enumerate(found.items())]
    table = pd.concat(parts, ignore_index=True).sort_values(["cell", "order"], kind="stable", ignore_index=True)
    every = pd.DataFrame([dict(cell) for cell in cells])
    if any("train_accuracy" in columns for columns in alike):
        table = table.merge(_reached_end(alike.values(), every), on=["panel", "cell", "seed"], how="left")
    names = every.iloc[table["cell"]].reset_index(drop=True)
    table = pd.concat([table[["panel"]], names, table.drop(columns=["panel", "cell", "order"])], axis=1)
    if by_seed:
        table["lost"] = _lost(table)
    return table.assign(shown=table["hidden_layers"] == settings.get("shown"))


def _names(provenance: Mapping[str, Any]) -> dict[str, Any]:
    spec = provenance["spec"]
    return {
        "network": spec["network"],
        "hidden_layers": len(spec["model"].get("hidden", ())) or None,
        "compression": spec["model"].get("compression"),
        "parameters": provenance["parameters"],
        "method": spec["method"],
        "lr": float(spec["lr"]),
        "epochs": spec["epochs"],
    }


def _panels(
    table: pd.DataFrame, target: float | None, smoothing: float | None, by_seed: bool
) -> dict[str, pd.DataFrame]:
    """The panels of runs that all have the same metrics; the column `cell` tells what they are runs of."""
    metrics = [name for name in METRICS if name in table]
    ended = _ended(table, metrics, target)
    values = [name for name in ended if name not in ("cell", "seed", "diverged")]
    groups = ended.groupby("cell", sort=False)
    counts = {"diverged_n": groups["diverged"].sum()}
    if "reached" in ended:
        counts["reached_n"] = groups["reached"].count()
    cell = pd.DataFrame(counts).reset_index().merge(summary(ended, ["cell"], values), on="cell")
    smooth = _smoothed(table, metrics, smoothing)
    panels = {"curve": summary(smooth, ["cell", "epoch"], metrics)}
    if by_seed:
        panels["seed"] = smooth
    return panels | {"run": ended, "cell": cell}


def _ended(table: pd.DataFrame, metrics: Sequence[str], target: float | None) -> pd.DataFrame:
    """One row per run: its final and best metrics."""
    run = ["cell", "seed"]
    groups = table.groupby(run, sort=False)
    last = table[~table.duplicated(run, keep="last")].set_index(run)
    found = {"diverged": groups["diverged"].any()}
    if target is not None and "train_accuracy" in table:
        met = table[table["train_accuracy"] >= target]
        found["reached"] = met.groupby(run)["epoch"].min().astype(float)
    for name in metrics:
        found[f"final_{name}"] = last[name]
        found[f"best_{name}"] = groups[name].min() if name.endswith("loss") else groups[name].max()
    found["max_log_scale"] = table[~table.duplicated(run)].set_index(run)["max_log_scale"]
    return pd.DataFrame(found).reindex(last.index).reset_index()


def _reached_end(tables: Iterable[Sequence[pd.DataFrame]], cells: pd.DataFrame) -> pd.DataFrame:
    """First epoch of each run with the train accuracy at which the baseline of its network, rate and seed ended."""
    same, columns = ["network", "lr", "epochs", "seed"], ["cell", "seed", "epoch", "train_accuracy"]
    found = [table[columns] for group in tables for table in group if "train_accuracy" in table]
    every = pd.concat(found, ignore_index=True).merge(cells[[*same[:3], "method"]], left_on="cell", right_index=True)
    ends = every[every["method"] == "baseline"].sort_values("epoch").groupby(same)["train_accuracy"].last()
    every = every.merge(ends.rename("end").reset_index(), on=same)
    first = every[every["train_accuracy"] >= every["end"]].groupby(["cell", "seed"])["epoch"].min()
    return first.astype(float).rename("reached_end").reset_index().assign(panel="run")


def _smoothed(table: pd.DataFrame, metrics: list[str], smoothing: float | None) -> pd.DataFrame:
    """Every run's curves, smoothed by an exponential moving average if asked for."""
    values = table[["cell", "seed", "epoch", *metrics]].sort_values(["cell", "seed", "epoch"], ignore_index=True)
    if smoothing is None:
        return values
    smooth = values.groupby(["cell", "seed"])[metrics].ewm(alpha=smoothing, adjust=False).mean()
    smooth = smooth.reset_index(drop=True)
    # Without this, the average of a run that diverged would keep its last value.
    smooth = smooth.where(values[metrics].notna())
    return pd.concat([values[["cell", "seed", "epoch"]], smooth], axis=1)


def _lost(table: pd.DataFrame) -> pd.Series:
    """Whether a row is of a seed from which no method learns the last class, at a learning rate where others do."""
    runs = table[table["panel"] == "run"]
    if "best_train_accuracy" not in runs:
        return table["seed"].isna() & False
    best = runs.groupby(["network", "lr", "seed"])["best_train_accuracy"].max()
    learnt = best.groupby(["network", "lr"]).transform("max") > LEARNT
    lost = best.index[learnt & ~(best > LACKING)]
    rows = table.set_index(["network", "lr", "seed"]).index
    return rows.isin(lost) & table["panel"].isin(["seed", "run"])
