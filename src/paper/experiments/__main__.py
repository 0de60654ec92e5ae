"""Stages of an experiment: python -m paper.experiments measure|aggregate|figure|claims|join ..."""

import argparse
import time
from pathlib import Path

from paper import aggregate as tables
from paper import cli, jobs, plotting, results
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS, measured
from paper.lazy import pd, torch
from paper.runs import Spec, key, result_path
from paper.verdicts import judged, markdown


def make(spec: Spec, path: Path, device: "torch.device", data: Path, again: float = 0.0) -> None:
    """Make one measurement, or the rows that it lacks, and write its table and provenance.

    A measurement that was written before the time `again` is made as a whole, and replaced when it is complete.
    """
    start = time.perf_counter()
    table, spec, before = _completed(spec, path, device, data, again)
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


def _completed(
    spec: Spec, path: Path, device: "torch.device", data: Path, again: float
) -> tuple["pd.DataFrame", Spec, float]:
    """The table of a measurement, what it covers, and the seconds that its earlier rows took."""
    if "rows" not in spec or results.damage(path) is not None:
        return measured(spec, device, data), spec, 0.0
    table, provenance = results.read_result(path)
    found = provenance["spec"]["rows"]
    rows = {name: [*found[name], *(v for v in values if v not in found[name])] for name, values in spec["rows"].items()}
    whole = {**spec, "rows": rows}
    if path.stat().st_mtime < again:
        return measured(whole, device, data), whole, 0.0
    more = measured({**spec, "rows": results.missing_rows(provenance, spec)}, device, data)
    return pd.concat([table, more], ignore_index=True), whole, provenance["seconds"]


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


def _measure(given: argparse.Namespace) -> None:
    specs = jobs.named(given, "measure")
    if due := jobs.due(given, specs):
        if given.batch is not None:
            jobs.claim_gpu()
        device = cli.choose_device(given.device, given.threads)
        for spec in due:
            make(spec, result_path(given.results, spec), device, given.data, given.again)
    jobs.write_index(given, specs)


def _aggregate(given: argparse.Namespace) -> None:
    from paper import config, plan  # need pydantic

    chosen = config.read(given.folder, given.preset, cli.read_object(given.over, "--over"))
    specs = plan.specs_of(chosen, given.name)
    try:
        table = aggregate(given.name, specs, chosen.plain[given.name], given.results)
    except PaperError as error:
        broken, found = [key(spec) for spec in results.due(given.results, specs)], plan.plan(chosen)
        indices = [str(plan.index_path(given.results, found.preset, batch))
                   for batch in found.batches_of(given.name) if not set(broken).isdisjoint(batch.keys)]  # fmt: skip
        if not broken:
            raise
        ways = "`git restore results/paper` brings recorded runs back; " if found.preset == config.PAPER else ""
        text = f"{len(broken)} runs are missing or damaged. {ways}`rm {' '.join(indices)}` and the same command compute"
        raise PaperError(f"{str(error).removesuffix(results.RECOMPUTE)}\n{text} them.") from error
    results.write_table(given.output, table)


def _figure(given: argparse.Namespace) -> None:
    table = results.read_table(given.table)
    with results.of_experiment(given.table, table), plotting.theme(given.font_size):
        figure = EXPERIMENTS[given.name].plot(table)
        for suffix, drawn in plotting.pictures(figure, given.stamp, given.dpi).items():
            results.write_bytes(given.output.with_suffix(f".{suffix}"), drawn)


def _claims(given: argparse.Namespace) -> None:
    table = results.read_table(given.table)
    with results.of_experiment(given.table, table):
        details = given.name, table, given.judged, given.table.as_posix()
        found = [judged(claim, *details) for claim in EXPERIMENTS[given.name].claims]
    results.write_json(given.output, found)


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
    jobs.add_options(measure)
    measure.set_defaults(run=_measure)

    table = commands.add_parser("aggregate", help="one table from the runs of an experiment")
    # The tables are not listed here: the paths of a few thousand would exceed the length of a command line.
    table.add_argument("--results", type=Path, default=Path("results"), help="folder of the presets' folders")
    cli.add_config_options(table)
    table.set_defaults(run=_aggregate)

    figure = commands.add_parser("figure", help="STEM.pdf and STEM.png from the table of an experiment")
    figure.add_argument("--stamp", default="", help="the line printed below")
    figure.add_argument("--dpi", type=int, default=200)
    figure.add_argument("--font-size", type=float, default=8.0)
    figure.set_defaults(run=_figure)

    claims = commands.add_parser("claims", help="the claims of an experiment, judged by its table")
    claims.add_argument("--judged", action="store_true", help="the settings are the paper's, so verdicts are given")
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
