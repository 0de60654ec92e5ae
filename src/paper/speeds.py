"""Tables of times and memory for the pages, from the records of the benchmarks."""

from collections.abc import Mapping
from typing import Any


def training(gpu: Mapping[str, Any], cpu: Mapping[str, Any]) -> str:
    """Times of the training engine: on a GPU beside what was aimed at, on a CPU beside other ways to train."""
    lines = [f"{gpu['hardware']}, torch {gpu['torch']}:", ""]
    lines += ["| work | time | aim | peak memory |", "| --- | --- | --- | --- |"]
    for r in gpu["rows"]:
        share = "overhead" in r["work"]
        time, aim = (f"{100 * x:.1f}%" if share else f"{x:.3g} s" for x in (r["seconds"], r["at most"]))
        memory = f"{r['GiB']:.1f} GiB" if "GiB" in r else ""
        lines.append(f"| {r['work']} | {time} | {aim} | {memory} |")
    peak = f"in turns in one process of {cpu['peak_mb']:,} MB at most"
    lines += ["", f"{cpu['hardware']}, torch {cpu['torch']}, {peak}:", ""]
    lines += ["| work | time | times the engine's |", "| --- | --- | --- |"]
    lines += [f"| {r['work']} | {r['seconds']:.2f} s | {r['times the engine']:.2f} |" for r in cpu["rows"]]
    return "\n".join(lines)


def rescaling(cpu: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """Times of the paper's three networks, on the CPU against the literal algorithm and on a GPU by step."""
    lines = [f"CPU ({cpu['hardware']}), everything included:", ""]
    lines += ["| network | parameters | units | ours | literal | ratio |", "| --- | --- | --- | --- | --- | --- |"]
    for r in cpu["nets"]:
        lines.append(
            f"| {r['net']} | {r['parameters']:,} | {r['units']:,} | {1000 * r['everything']:.0f} ms "
            f"| {r['literal']:.1f} s | {r['speed_up']:.0f} |"
        )
    lines += ["", f"GPU ({gpu['hardware']}), after warm-up:", ""]
    lines += ["| network | graph, once | diag(G) | solve | apply | sum |", "| --- | --- | --- | --- | --- | --- |"]
    for r in gpu["nets"]:
        steps = " | ".join(f"{1000 * r[k]:.1f} ms" for k in ("graph", "diag_g", "solve", "apply", "after_graph"))
        lines.append(f"| {r['net']} | {steps} |")
    return "\n".join(lines)


def jobs(record: Mapping[str, Any]) -> str:
    """Snakemake's time and memory by the number of jobs."""
    lines = ["| grid | jobs | time | of a processor | peak memory |", "| --- | --- | --- | --- | --- |"]
    for r in record["dag"]:
        times = f"{r['seconds']:.0f} s | {r['cpu_seconds']:.0f} s | {r['peak_mb']:,} MB"
        lines.append(f"| {r['cells']:,} cells, {r['what']} | {r['jobs']:,} | {times} |")
    first, last = record["dag"][0], max(record["dag"], key=lambda r: r["jobs"])
    more = last["jobs"] - first["jobs"]
    names = ("seconds", "cpu_seconds", "peak_mb")
    seconds, processor, megabytes = ((last[name] - first[name]) / more for name in names)
    each = f"Each job more takes {1000 * processor:.1f} ms of a processor, {1000 * seconds:.1f} ms on the clock, and "
    far = f"{1e5 * processor / 60:.0f} minutes of a processor, {1e5 * seconds / 60:.0f} on the clock"
    lines += ["", f"{each}{1000 * megabytes:.0f} kB; so 100,000 should take {far}, and {100 * megabytes:.1f} GB."]
    return "\n".join([*lines, f"Snakemake {record['snakemake']}, {record['hardware']}."])


def models(record: Mapping[str, Any]) -> str:
    """The rescaling's time and memory by the number of parameters."""
    heads = ("parameters", "units", "time", "of a processor", "weights", "peak memory", "above the start, in weights")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for r in record["solver"]:
        more = (r["peak_mb"] - r["begun_mb"]) / max(1, r["weights_mb"])
        size = f"{r['weights_mb']:,} MB | {r['peak_mb']:,} MB | {more:.1f}"
        lines.append(
            f"| {r['parameters']:.2g} | {r['units']:,} | {r['seconds']:.1f} s | {r['cpu_seconds']:.1f} s | {size} |"
        )
    return "\n".join([*lines, "", f"torch {record['torch']}, {record['hardware']}, float32."])
