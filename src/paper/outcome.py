"""What the recorded runs of a scale come to: tables, claims with their verdicts, time and hardware."""

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from paper import store
from paper.aggregate import aggregate
from paper.claims.rules import NOT_YET, judged
from paper.plan import ITEMS, runs, settings, sources, stamp, without
from paper.recorded import lacking, narrowed

Record = dict[str, Any]
Claims = list[dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What an item came to.

    Attributes:
        item: its name.
        stamp: the line on its figure.
        records: of its runs, by key; of those that are there.
        lacking: keys of the runs that are not.
        without: in words, learning rates and methods that lack a run, where it is drawn without them.
        table: its aggregated table; None if it lacks a run otherwise.
        claims: its claims, judged, or said to be not run yet.
    """

    item: str
    stamp: str
    records: dict[str, Record]
    lacking: list[str]
    without: str
    table: pd.DataFrame | None
    claims: Claims

    @property
    def digest(self) -> str:
        """Of what its figure is drawn from: tables of the runs, and the line below."""
        parts = [self.stamp, *(record["sha256"] for record in self.records.values())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def outcomes(config: Mapping[str, Any], results: Path) -> dict[str, Outcome]:
    """The outcome of every item, from the runs under `results`, the folder of the scale.

    Raises:
        PaperError: a run is damaged.
    """
    fewer = narrowed(config, results)
    return {item: _outcome(config, fewer, item, results) for item in ITEMS}


def _outcome(config: Mapping[str, Any], fewer: Mapping[str, Any], item: str, results: Path) -> Outcome:
    missing, left_out = lacking(config, item, results), without(fewer, item)
    there = [key for key in sources(config, item) if key not in missing]
    records, table = {key: store.read_record(results / f"{key}.csv") for key in there}, None
    if left_out or not missing:
        table = aggregate(item, [results / f"{key}.csv" for key in sources(fewer, item)], settings(fewer, item))
    claims = _claims(item, table, config["scale"], left_out)
    return Outcome(item, stamp(fewer, item), records, missing, left_out, table, claims)


def _claims(item: str, table: pd.DataFrame | None, scale: str, left_out: str) -> Claims:
    claims = importlib.import_module(f"paper.claims.{item}").CLAIMS
    if table is not None:
        artifact = f"results/{scale}/aggregate/{item}.csv"
        return [judged(claim, item, table, scale, artifact, left_out) for claim in claims]
    unknown = {"item": item, "ours": NOT_YET, "value": None, "interval": None, "verdict": NOT_YET, "scale": scale}
    return [
        {**unknown, "id": c.id, "source": c.source, "claim": c.said, "paper": c.paper, "rule": c.rule} for c in claims
    ]


def recorded(config: Mapping[str, Any], results: Path) -> dict[str, Record]:
    """Records of all runs that are there, each once, by key."""
    paths = {key: results / f"{key}.csv" for key in runs(config)}
    return {key: store.read_record(path) for key, path in paths.items() if store.is_there(path)}


def cost(records: Mapping[str, Record]) -> pd.DataFrame:
    """Time that runs took by hardware and stage: columns hardware, stage, runs, seconds."""
    rows = [(r["hardware"], r["spec"]["stage"], r["seconds"]) for r in records.values()]
    groups = pd.DataFrame(rows, columns=["hardware", "stage", "seconds"]).groupby(["hardware", "stage"])["seconds"]
    return pd.DataFrame({"runs": groups.size(), "seconds": groups.sum()}).reset_index()


def plain_loop(found: Mapping[str, Outcome], records: Mapping[str, Record]) -> tuple[float, float] | None:
    """What training MLPs and CIFAR-NV one by one in a plain loop would take, and what it took, in seconds.

    The plain loop's epochs are those that `timing` and `timing_depth` measured on the same hardware, without
    evaluation; ours include it. None if nothing was trained there, or no time was measured.
    """
    times = found["timing_depth"].table
    if times is None:
        return None
    epochs = times[(times["step"] == "epoch") & (times["pooling"].isna() | (times["pooling"] == "plain"))]
    plain = ours = 0.0
    for record in records.values():
        spec = record["spec"]
        if spec["stage"] != "train" or record["hardware"] != epochs["hardware"].iloc[0]:
            continue
        depth = len(spec["model"].get("hidden", ()))
        same = epochs["hidden_layers"] == depth if depth else epochs["network"] == spec["network"]
        if same.any():
            row = epochs[same].iloc[0]
            images = row["epoch_batches"] * spec["batch"]
            whole = spec["epochs"] * len(spec["seeds"]) * spec["images"] / images
            plain, ours = plain + whole * row["seconds_mean"], ours + record["seconds"]
    return (plain, ours) if ours else None
