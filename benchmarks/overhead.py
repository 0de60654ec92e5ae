"""How much longer do the runs of `mlp_depth` take by Snakemake than by the plain command?

    python benchmarks/overhead.py [--device cuda] [--cores 16] [--seeds 3] [--over JSON] [--json FILE]

Both compute the same runs in a copy of the checkout with its recorded runs: `python -m paper.training SPECS` into an
empty folder, then `snakemake mlp_depth -R train`, which also starts jobs, saves start weights and rescalings, joins the
table and draws the figure. They share the data and the cache of compiled code, which a short run fills first. The times
of rules are from the log of Snakemake.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

from paper import cli


def timed(folder: Path, command: list[str], caches: Path) -> tuple[float, str]:
    """Seconds of a command in a copy of the checkout, and what it wrote."""
    more = {"PYTHONPATH": os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])}
    more |= {name: str(caches / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    start = time.perf_counter()
    command = [sys.executable, "-m", *command]
    done = subprocess.run(command, cwd=folder, env=os.environ | more, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return time.perf_counter() - start, done.stdout + done.stderr


def by_rule(log: str) -> dict[str, float]:
    """Seconds from the start of a rule's first job to the end of its last one."""
    spans: dict[str, list[float]] = {}
    now = 0.0
    for line in log.splitlines():
        if found := re.fullmatch(r"\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]", line.strip()):
            now = datetime.strptime(found[1], "%a %b %d %H:%M:%S %Y").timestamp()  # noqa: DTZ007 - only differences
        elif found := re.match(r"Job \d+: (\w+)|Finished jobid: \d+ \(Rule: (\w+)\)", line.strip()):
            spans.setdefault(found[1] or found[2], []).append(now)
    return {rule: max(times) - min(times) for rule, times in spans.items()}


def main() -> None:
    """Measure both, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--over", type=json.loads, default={}, help="settings of mlp_depth that differ, as JSON")
    parser.add_argument("--data", type=Path, default=ROOT / "results/data", help="folder with the data set")
    parser.add_argument("--json", type=Path, help="record of the times")
    given = parser.parse_args()
    settings = {**given.over, "seeds": list(range(given.seeds))}
    with tempfile.TemporaryDirectory() as name:
        folder, caches = Path(name) / "checkout", Path(name) / "caches"
        left = shutil.ignore_patterns(".git", ".venv", ".snakemake", "build", "data", "init", "rescale")
        shutil.copytree(ROOT, folder, ignore=left)
        (folder / "results/data").symlink_to(given.data.resolve())
        direct = ["paper.training", "specs.json", "--device", given.device, "--data", "results/data", "--results"]
        for results, more in (("warm", {"epochs": 1}), ("direct", {})):
            over = json.dumps({"experiments": {"mlp_depth": settings | more}})
            chosen = ["--experiments", "mlp_depth", "--over", over]
            timed(folder, ["paper.plan", *chosen, "--output", "specs.json"], caches)
            plain, _ = timed(folder, [*direct, results], caches)
        chosen = [f"experiments={json.dumps({'mlp_depth': settings})}", f"device={given.device}"]
        command = ["snakemake", "--cores", str(given.cores), "mlp_depth", "-R", "train", "--config", *chosen]
        whole, log = timed(folder, command, caches)
    gpu = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    found = {"device": gpu, "torch": torch.__version__, "settings": settings, "direct": plain, "snakemake": whole,
             "ratio": whole / plain, "rules": by_rule(log)}  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    cli.say(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
