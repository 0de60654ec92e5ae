# The checked configuration, path templates, and the hook before the first job. Rules call paper/workflow.py.
import shlex
import sys
from pathlib import Path

# Jobs and rules import the checkout's own code, not an installed copy.
sys.path.insert(0, f"{workflow.basedir}/src")

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake_interface_executor_plugins.settings import DeploymentMethod

from paper import config as paper_config
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS
from paper.workflow import (
    Workflow,
    add_sacct,
    code,
    forced_jobs,
    has_gpu,
    worth_reading,
)

logger.addFilter(worth_reading)

try:
    for path in workflow.overwrite_configfiles or []:
        paper_config.load(Path(path))
    FLOW = Workflow(
        Path(workflow.basedir),
        workflow.config_settings.overwrite_config,
        workflow.is_main_process,
    )
except PaperError as error:
    raise WorkflowError(str(error))

PRESET = FLOW.preset
DEVICE = FLOW.config(PRESET).top.device
GPU = int(DEVICE == "cuda" or (DEVICE == "auto" and has_gpu()))
try:
    CORES = workflow.cores
except WorkflowError:  # on a cluster, where the profile sets the threads
    CORES = 1
MORE_PAGES = ["claims", "configuration", "runtimes"]
DATA = "results/data/{dataset}"
INIT = "results/{preset}/init/{family}.json"
RESCALE = "results/{preset}/rescale/{family}.json"
TRAIN = "results/{preset}/train/{batch}.json"
MEASURE = "results/{preset}/measure/{batch}.json"
AGGREGATE = "results/{preset}/aggregate/{experiment}.csv"
CLAIM = "results/{preset}/claims/{experiment}.json"
CLAIMS = "results/{preset}/claims.json"
SHORT_TABLE = "results/{preset}/pages/{experiment}.csv"
PAGE = "results/{preset}/pages/{page}.html"
FIGURE = "figures/{preset}/{experiment}.{suffix}"
EXCLUSIVE = "|".join(name for name, entry in EXPERIMENTS.items() if entry.exclusive)

source = shlex.quote(f"{workflow.basedir}/src")
prefix = f"set -euo pipefail; export PYTHONPATH={source}:${{{{PYTHONPATH:-}}}}; "
if DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method:
    # Jobs use the Python that runs Snakemake, even if its environment is not activated.
    prefix += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
shell.prefix(prefix)


wildcard_constraints:
    preset="|".join(FLOW.presets),
    dataset="[a-z0-9_]+",
    family="[a-z0-9_]+",
    batch=r"[a-z0-9_+]+-\d+",
    experiment="|".join(EXPERIMENTS),
    suffix="pdf|png",


def inputs(stage):
    """Inputs of a training or measuring job, evaluated once Snakemake knows which jobs are forced."""
    return lambda wildcards: FLOW.with_command_line(workflow).inputs(stage, wildcards)


onstart:
    if workflow.is_main_process:
        try:
            jobs = list(workflow.dag.needrun_jobs())
            # Jobs on a cluster use the GPUs of its nodes.
            local = workflow.local_exec
            if not local:
                add_sacct(Path(workflow.basedir))
            FLOW.with_command_line(workflow).before_jobs(
                jobs,
                forced_jobs(workflow.dag, jobs, FLOW.forced_files),
                can_train=DEVICE != "auto" or bool(GPU) or not local,
                cores=CORES,
            )
        except PaperError as error:
            raise WorkflowError(str(error))
