"""Rewrite results/paper of version 0.1 (one file for several seeds) as one file per run; it was run once.

python tools/migrate_results.py OLD NEW --table FILE

OLD is the folder of the old results (from the commit before), NEW the folder to write. No number changes: the lines of
a seed are copied as text. FILE lists the sha256 (20 digits) of every copied table under its old and its new key, for
the test that compares both (tests/paper/test_recorded_numbers.py).

The fully connected networks at learning rate 1e-3 and seeds 0 to 2 were recorded twice, in batches of three and of ten
seeds, with different rounding. The batch of ten seeds is kept.
"""

import argparse
import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from paper import results, runs


def renamed(old: dict) -> dict:
    """An old spec in the new vocabulary."""
    spec = {{"scale": "preset", "item": "experiment"}.get(name, name): value for name, value in old.items()}
    if spec["stage"] == "train":
        spec["task"] = {"rebuild": "reconstruct"}.get(spec["task"], spec["task"])
    return spec


def split(spec: dict, text: str) -> Iterator[tuple[dict, str, str, int]]:
    """For each run in an old result: its new spec, its name there, its lines, and how many runs the result holds."""
    head, *lines = text.splitlines(keepends=True)
    columns = head.strip().split(",")
    if spec["stage"] == "train":
        seeds = spec.pop("seeds")
        for seed in seeds:
            mine = [line for line in lines if line.split(",", 1)[0] == str(seed)]
            yield {**spec, "seed": seed}, f"seed {seed}", head + "".join(mine), len(seeds)
    elif spec["experiment"] == "regimes":
        yield from split_regimes(spec, head, lines, columns)
    else:
        yield spec, "all", text, 1


def split_regimes(spec: dict, head: str, lines: list[str], columns: list[str]) -> Iterator[tuple[dict, str, str, int]]:
    """One result per variance and seed, with a row per alpha."""
    old = spec["settings"]
    shared = {name: old[name] for name in ("hidden_layers", "neurons", "inputs", "outputs", "sweeps")}
    variance, alpha, seed = (columns.index(name) for name in ("variance", "alpha", "seed"))
    for chosen in old["variances"]:
        for number in old["seeds"]:
            cells = [line.split(",") for line in lines]
            mine = [c for c in cells if float(c[variance]) == chosen and int(c[seed]) == number]
            new = {
                **spec,
                "part": f"variance{chosen:g}-seed{number}",
                "settings": {**shared, "variance": chosen, "seed": number},
                "rows": {"alphas": [float(c[alpha]) for c in mine]},
            }
            text = head + "".join(map(",".join, mine))
            yield new, new["part"], text, len(old["variances"]) * len(old["seeds"])


def main() -> None:
    """Read the command line, migrate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    given = parser.parse_args()
    rows, written = [], {}
    records = [(path, json.loads(path.read_text())) for path in sorted(given.old.glob("**/*.json"))]
    records.sort(key=lambda entry: -len(entry[1]["spec"].get("seeds", ())))  # batches of ten seeds first
    for path, record in records:
        text = path.with_suffix(".csv").read_text()
        if hashlib.sha256(text.encode()).hexdigest() != record["sha256"]:
            raise SystemExit(f"{path}: damaged")
        old_key = path.relative_to(given.old).with_suffix("").as_posix()
        kept = {k: v for k, v in record.items() if k not in ("seal", "sha256", "rows", "spec", "status", "seconds")}
        for spec, part, lines, among in split(renamed(record["spec"]), text):
            key = runs.key(spec)
            sha256 = hashlib.sha256(lines.encode()).hexdigest()
            if key in written:
                rows.append([old_key, part, sha256[:20], f"not kept, see {key}"])
                continue
            status = record["status"] if isinstance(record["status"], str) else record["status"][str(spec["seed"])]
            provenance = {**kept, "status": status, "seconds": round(record["seconds"] / among, 3)}
            results.write_result_text(given.new / f"{key}.csv", lines, spec, provenance)
            written[key] = sha256
            rows.append([old_key, part, sha256[:20], key])
    with given.table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["old_key", "part", "sha256", "new_key"])
        writer.writerows(sorted(rows))
    print(f"{len(records)} results, {len(written)} runs, {len(rows) - len(written)} recorded twice")  # noqa: T201


if __name__ == "__main__":
    main()
