"""Stages of an experiment: python -m paper.experiments measure|aggregate|figure|claims|join ..."""

import argparse
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paper import aggregate as tables
from paper import cli, plotting, results
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS, measured
from paper.lazy import pd, torch
from paper.runs import Spec, key, read_specs, result_path
from paper.verdicts import judged, markdown


def make(spec: Spec, path: Path, device: "torch.device", data: Path) -> None:
    """Make one measurement, or the rows that it lacks, and write its table and provenance."""
    start = time.perf_counter()
    table, spec, before = _completed(spec, path, device, data)
    seconds = before + time.perf_counter() - start
    provenance = {
        **cli.environment(device),
        "commit": cli.commit(),
        "precision": EXPERIMENTS[spec["experiment"]].precision,
        "seconds": round(seconds, 3),
        "status": "done",
    }
    results.write_result(path, table, spec, provenance)
    cli.say(f"{key(spec)}: {len(table)} rows in {seconds:.1f} s on {provenance['hardware']}")


def _completed(spec: Spec, path: Path, device: "torch.device", data: Path) -> tuple["pd.DataFrame", Spec, float]:
    """The table of a measurement, what it covers, and the seconds that its earlier rows took."""
    if "rows" not in spec or results.damage(path) is not None:
        return measured(spec, device, data), spec, 0.0
    table, provenance = results.read_result(path)
    found = provenance["spec"]["rows"]
    more = measured({**spec, "rows": results.missing_rows(provenance, spec)}, device, data)
    rows = {name: [*found[name], *(v for v in values if v not in found[name])] for name, values in spec["rows"].items()}
    return pd.concat([table, more], ignore_index=True), {**spec, "rows": rows}, provenance["seconds"]


def aggregate(name: str, specs: list[Spec], block: dict, folder: Path) -> "pd.DataFrame":
    """The table of an experiment with these settings, from the results of its runs.

    A PaperError says which run is damaged, or lacks or repeats a seed (or repeat) that its settings ask for.
    """
    found = []
    for spec in specs:
        path = result_path(folder, spec)
        table, provenance = results.read_result(path)
        trained = spec["stage"] == "train"
        keys = ("epoch",) if trained else EXPERIMENTS[spec["experiment"]].keys
        asked = spec if trained else spec["settings"]
        if "seed" in asked:
            asked = {**asked, "seeds": [asked["seed"]]}
        for column, values in spec.get("rows", {}).items():
            column = column.removesuffix("s")
            if lacking := sorted(set(values).difference(table[column])):
                raise PaperError(f"{path}: expected rows with {column} {lacking}, got none. {results.RECOMPUTE}")
            table = table[table[column].isin(values)].reset_index(drop=True)
        tables.check_counts(path, table, asked, keys)
        found.append((table, provenance))
    return EXPERIMENTS[name].table(found, block)


def pictures(name: str, table: "pd.DataFrame", stamp: str, dpi: int, font_size: float) -> dict[str, bytes]:
    """An experiment drawn from its table, as the bytes of a PDF and a PNG file that hold no date or version."""
    with plotting.theme(font_size):
        return plotting.pictures(EXPERIMENTS[name].plot(table), stamp, dpi)


def _measure(given: argparse.Namespace) -> None:
    specs = read_specs(given.specs, "measure", given.match)
    results.check_folder(given.results)
    due = [spec for spec in specs if results.problem(result_path(given.results, spec), spec)]
    for spec in specs:
        if spec not in due:
            cli.say(f"{key(spec)}: exists, reused")
    if due:
        _check(due)
        device = cli.choose_device(given.device, given.threads)
        for spec in due:
            make(spec, result_path(given.results, spec), device, given.data)
    if given.index:
        results.write_json(given.index, results.index_of(given.results, specs))


def _check(specs: list[Spec]) -> None:
    if find_spec("pydantic"):  # without it, specs were checked by `make specs`
        from paper.config import check_specs

        check_specs(specs)


def _aggregate(given: argparse.Namespace) -> None:
    from paper.plan import specs_of  # needs pydantic

    config = cli.read_object(given.config, "--config")
    try:
        specs = specs_of(config, given.name)
    except (KeyError, TypeError, ValueError) as error:
        raise PaperError(f"--config: expected what the workflow passes for {given.name}, got {error}.") from error
    block = config["settings"][given.name]
    results.write_table(given.output, aggregate(given.name, specs, block, given.results))


def _figure(given: argparse.Namespace) -> None:
    table = results.read_table(given.table)
    for name, value in (("dpi", given.dpi), ("font-size", given.font_size)):
        if not 0 < value < 10_000:
            raise PaperError(f"--{name}: expected a positive number below 10,000, got {value}.")
    with results.of_experiment(given.table, table):
        for suffix, drawn in pictures(given.name, table, given.stamp, given.dpi, given.font_size).items():
            results.write_bytes(given.output.with_suffix(f".{suffix}"), drawn)


def _claims(given: argparse.Namespace) -> None:
    table = results.read_table(given.table)
    with results.of_experiment(given.table, table):
        details = given.name, table, given.judged, given.table.as_posix(), _missing(given.missing)
        found = [judged(claim, *details) for claim in EXPERIMENTS[given.name].claims]
    results.write_json(given.output, found)


def _missing(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
        return [{"network": run["network"], "method": run["method"], "lr": float(run["lr"])} for run in found]
    except (KeyError, TypeError, ValueError) as error:
        expected = "a JSON list of runs with network, method and lr"
        raise PaperError(f"--missing: expected {expected}, got {text!r:.60}.") from error


def _join(given: argparse.Namespace) -> None:
    claims = []
    for path in given.claims:
        found = results.read_json(path)
        if not isinstance(found, list) or not all(isinstance(claim, dict) and "verdict" in claim for claim in found):
            expected = "claims, as `python -m paper.experiments claims` writes them"
            raise PaperError(f"{path}: expected {expected}, got {found!r:.60}.")
        claims += found
    results.write_json(given.output, claims)
    results.write_text(given.table, markdown(claims))


def main() -> None:
    """Read the command line, run one stage."""
    parser = argparse.ArgumentParser(prog="python -m paper.experiments", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="STAGE")

    measure = commands.add_parser("measure", help="make measurements from their specs")
    cli.add_run_options(measure)
    measure.set_defaults(run=_measure)

    table = commands.add_parser("aggregate", help="one table from the runs of an experiment")
    # The tables are not listed here: the paths of a few thousand would exceed the length of a command line.
    table.add_argument("--results", type=Path, default=Path("results"), help="folder of the presets' folders")
    table.add_argument("--config", required=True, help="the experiment's part of the configuration, as JSON")
    table.set_defaults(run=_aggregate)

    figure = commands.add_parser("figure", help="STEM.pdf and STEM.png from the table of an experiment")
    figure.add_argument("--stamp", default="", help="the line printed below")
    figure.add_argument("--dpi", type=int, default=200)
    figure.add_argument("--font-size", type=float, default=8.0)
    figure.set_defaults(run=_figure)

    claims = commands.add_parser("claims", help="the claims of an experiment, judged by its table")
    claims.add_argument("--judged", action="store_true", help="the settings are the paper's, so verdicts are given")
    claims.add_argument("--missing", default="[]", help="network, method and lr of runs that the table lacks, as JSON")
    claims.set_defaults(run=_claims)

    join = commands.add_parser("join", help="the claims of all experiments in one file")
    join.add_argument("claims", nargs="+", type=Path)
    join.add_argument("--table", type=Path, required=True, help="the same for people, in Markdown")
    join.set_defaults(run=_join)

    for command in (table, figure, claims):
        command.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=f"one of {', '.join(EXPERIMENTS)}")
    for command in (figure, claims):
        command.add_argument("table", type=Path)
    for command in (table, figure, claims, join):
        command.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    cli.run(main)
