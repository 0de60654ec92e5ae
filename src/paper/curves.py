"""Tables of the trained items: curves over epochs, what each run came to, and means over seeds.

Columns that name a cell: network, hidden_layers, compression, parameters, method, lr, epochs. Panels:

    curve   a cell at an epoch: mean and deviation over seeds of every metric, smoothed if the item asks for it; NaN
            where a seed diverged
    run     one seed: reached (epochs to the target, NaN if never), final and best metrics, max_log_scale, diverged
    cell    mean and deviation of the runs; `reached_n` and `diverged_n` count seeds

The column `shown` marks the network whose curves are drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

NAMES = ["network", "hidden_layers", "compression", "parameters", "method", "lr", "epochs"]
METRICS = ["train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy"]


def tables(runs: Sequence[tuple[pd.DataFrame, Mapping[str, Any]]], settings: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a trained item.

    Args:
        runs: table and record of each cell.
        settings: of the item: `target` (train accuracy to reach) and `smoothing` (of the curves) where it has them.
    """
    blocks = list(settings.values()) if "mlp" in settings else [settings]
    target = next((block["target"] for block in blocks if "target" in block), None)
    parts = [_cell(table, record, target, settings.get("smoothing")) for table, record in runs]
    table = pd.concat([part for panels in parts for part in panels], ignore_index=True)
    return table.assign(shown=table["hidden_layers"] == settings.get("shown"))


def _cell(
    table: pd.DataFrame, record: Mapping[str, Any], target: float | None, smoothing: float | None
) -> list[pd.DataFrame]:
    spec = record["spec"]
    names = {
        "network": spec["network"],
        "hidden_layers": len(spec["model"].get("hidden", ())) or None,
        "compression": spec["model"].get("compression"),
        "parameters": record["parameters"],
        "method": spec["method"],
        "lr": float(spec["lr"]),
        "epochs": spec["epochs"],
    }
    metrics = [name for name in METRICS if name in table]
    finals = [_run(rows, metrics, target) for _, rows in table.groupby("seed", sort=False)]
    ended = pd.DataFrame(finals)
    values = [name for name in ended if name not in ("seed", "diverged")]
    whole: dict[str, Any] = {"n": len(ended), "diverged_n": int(ended["diverged"].sum())}
    if "reached" in ended:
        whole["reached_n"] = int(ended["reached"].notna().sum())
    for name in values:
        whole[f"{name}_mean"], whole[f"{name}_sd"] = ended[name].mean(skipna=False), ended[name].std(skipna=False)
    panels = {"curve": _curve(table, metrics, smoothing), "run": ended, "cell": pd.DataFrame([whole])}
    return [part.assign(panel=panel, **names)[["panel", *names, *part]] for panel, part in panels.items()]


def _run(rows: pd.DataFrame, metrics: Sequence[str], target: float | None) -> dict[str, Any]:
    """What one seed came to."""
    found: dict[str, Any] = {"seed": rows["seed"].iloc[0], "diverged": bool(rows["diverged"].any())}
    if target is not None and "train_accuracy" in rows:
        met = rows.loc[rows["train_accuracy"] >= target, "epoch"]
        found["reached"] = float(met.min()) if len(met) else float("nan")
    for name in metrics:
        found[f"final_{name}"] = rows[name].iloc[-1]
        found[f"best_{name}"] = rows[name].min() if name.endswith("loss") else rows[name].max()
    found["max_log_scale"] = rows["max_log_scale"].iloc[0]
    return found


def _curve(table: pd.DataFrame, metrics: Sequence[str], smoothing: float | None) -> pd.DataFrame:
    values = table[["seed", "epoch", *metrics]].sort_values(["seed", "epoch"])
    if smoothing is not None:
        smooth = values.groupby("seed")[list(metrics)].transform(lambda v: v.ewm(alpha=smoothing, adjust=False).mean())
        # The average of a run that diverged would stay where it was.
        smooth = smooth.where(values[list(metrics)].notna())
        values = pd.concat([values[["seed", "epoch"]], smooth], axis=1)
    groups = values.groupby("epoch")
    columns: dict[str, Any] = {}
    for name in metrics:
        columns[f"{name}_mean"] = groups[name].mean(skipna=False)
        columns[f"{name}_sd"] = groups[name].std(skipna=False)
    return pd.DataFrame({**columns, "n": groups.size()}).reset_index()
