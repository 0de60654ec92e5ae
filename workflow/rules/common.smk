# The configuration, checked; what is to do; path templates. No science.
import json
import os
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import DeploymentMethod

from paper import config as paper_config
from paper.accept import accepted, alone, check_data
from paper.errors import PaperError
from paper.imports import code
from paper.plan import pattern, runs, slice_of, sources, stamp, without
from paper.recorded import items, narrowed

try:
    for given in workflow.configfiles:
        paper_config.load(Path(given))
    config.update(
        paper_config.check(
            config, Path(workflow.basedir, "workflow/schemas/config.schema.yaml")
        )
    )
except PaperError as error:
    raise WorkflowError(str(error))

SCALE = config["scale"]
DATA = "results/data/{dataset}"
RUN = f"results/{SCALE}/{{key}}"
AGGREGATE = f"results/{SCALE}/aggregate/{{item}}.csv"
CLAIM = f"results/{SCALE}/claims/{{item}}.json"
CLAIMS = f"results/{SCALE}/claims.json"
PAGE = f"results/{SCALE}/pages/{{page}}.html"
FIGURE = f"figures/{SCALE}/{{item}}.{{suffix}}"
LOG = f"logs/{SCALE}"

# Jobs run the Python that runs Snakemake, also where its environment is not activated; `--sdm conda` brings its own.
if DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method:
    here = shlex.quote(str(Path(sys.executable).parent))
    shell.prefix(f"set -euo pipefail; export PATH={here}:$PATH; ")

# A GPU is asked for where there is one, on a cluster, or where the configuration says so.
REMOTE = workflow.nodes is not None or workflow.remote_exec
found = REMOTE or shutil.which("nvidia-smi") is not None
GPU = int(config["device"] == "cuda" or (config["device"] == "auto" and found))

# The executor for Slurm finds a sacct there that answers without an accounting database too.
if workflow.nodes is not None:
    path = os.environ.get("PATH", os.defpath)
    os.environ.update(PATH=f"{workflow.basedir}/profiles/slurm/bin:{path}")

# What a job is given on a cluster, by scale: threads beside a GPU, MB, minutes.
THREADS, MEMORY, MINUTES = {
    "tiny": (1, 2000, 5),
    "preview": (1, 4000, 15),
    "paper": (4, 16000, 60),
}[SCALE]
CLUSTER = {
    name: given or os.environ.get(f"PATHCOND_{name.upper()}")
    for name, given in config["cluster"].items()
}


def needs(gpu):
    """Resources of a rule. A convolutional network takes longer; the next attempt of a stopped job is given more."""

    def minutes(wildcards, attempt):
        model = SPECS[wildcards.key].get("model", {})
        return MINUTES * attempt * (4 if model.get("kind") == "cifar_nv" else 1)

    return {
        "gpu": gpu,
        "mem_mb": lambda wildcards, attempt: MEMORY * attempt,
        "runtime": minutes,
        "slurm_account": CLUSTER["account"],
        "slurm_partition": (gpu and CLUSTER["gpu_partition"]) or CLUSTER["partition"],
    }


# A result is named by its settings, so one that is there is right: it is not shown to the rules that make results,
# and no clock, edited script or missing data set can make them redo it. Jobs parse this file again: there all are due.
if config["only_recorded"]:
    config.update(narrowed(config, Path(f"results/{SCALE}")))
ITEMS = items(config, Path(f"results/{SCALE}"))
SPECS = runs(config, ITEMS)
ACCEPT = workflow.is_main_process and config["accept_existing"]
MEND = not workflow.output_settings.dryrun
try:
    FOUND = accepted(SCALE, SPECS, MEND) if ACCEPT else set()
except PaperError as error:
    raise WorkflowError(str(error))
DUE = [key for key in SPECS if key not in FOUND]


@cache
def data_file(dataset):
    """The file of a data set. A damaged one is deleted when the first job that reads it is planned, not while jobs run."""
    path = f"{DATA}.pt".format(dataset=dataset)
    try:
        if workflow.is_main_process:
            check_data(Path(path), MEND)
    except PaperError as error:
        raise WorkflowError(str(error))
    return path


# In the place of Snakemake's own lock, which a killed Snakemake leaves behind.
onstart:
    try:
        alone(Path(".snakemake/running"))
    except PaperError as error:
        raise WorkflowError(str(error))


wildcard_constraints:
    dataset="[a-z0-9]+",
    item="|".join(ITEMS) or "(?!)",
    suffix="pdf|png",
