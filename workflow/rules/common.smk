# The configuration that Snakemake merged, checked; path templates. Rules call paper/workflow.py.
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile
from snakemake.logging import logger
from snakemake_interface_executor_plugins.settings import DeploymentMethod

CHECKOUT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
# Jobs and rules import the checkout's own code, not an installed copy.
sys.path.insert(0, f"{CHECKOUT}/src")

from paper import config as paper_config
from paper.cli import PaperError
from paper.experiments import EXPERIMENTS
from paper.runs import digest
from paper.workflow import (
    TimeLeft,
    Workflow,
    add_sacct,
    again,
    all_made,
    code,
    has_gpu,
)

# With --directory, a config.yaml in that folder overrides values of the checkout's.
CONFIG = (
    Path("config.yaml") if Path("config.yaml").exists() else CHECKOUT / "config.yaml"
)
try:  # YAML errors with their lines, before Snakemake reads the files
    for path in [CONFIG, *workflow.overwrite_configfiles]:
        paper_config.load(Path(path))
    chosen = workflow.config_settings.overwrite_config.get("preset")
    paper_config.refuse_overlays(CHECKOUT, workflow.overwrite_configfiles, chosen)
except PaperError as error:
    raise WorkflowError(str(error))


configfile: str(CONFIG)


try:
    FLOW = Workflow.of(
        CHECKOUT,
        config,
        {} if workflow.modifier.skip_configfile else workflow.config_settings.config,
    )
except PaperError as error:
    raise WorkflowError(str(error))
config.update(FLOW.config.top.model_dump(mode="json", exclude_unset=True))

PRESET = FLOW.preset
DEVICE = FLOW.config.top.device
try:
    CORES = workflow.cores
except WorkflowError:  # on a cluster, where the profile sets the threads
    CORES = 1
MORE_PAGES = ["claims", "configuration", "runtimes"]
DATA = "results/data/{dataset}"
INIT = "results/{preset}/init/{family}-{starts}.json"
RESCALE = "results/{preset}/rescale/{family}-{starts}.json"
TRAIN = "results/{preset}/train/{batch}.json"
MEASURE = "results/{preset}/measure/{batch}.json"
AGGREGATE = "results/{preset}/aggregate/{experiment}.csv"
MADE_AT = "results/{preset}/aggregate/{experiment}.settings"
CLAIM = "results/{preset}/claims/{experiment}.json"
CLAIMS = "results/{preset}/claims.json"
SHORT_TABLE = "results/{preset}/pages/{experiment}.csv"
PAGE = "results/{preset}/pages/{page}.html"
FIGURE = "figures/{preset}/{experiment}.{suffix}"
EXCLUSIVE = "|".join(name for name, entry in EXPERIMENTS.items() if entry.exclusive)
# How a job finds its runs, and how it runs. These parameters depend on `output`, so that Snakemake does not track them:
# another device, or a change elsewhere in the configuration, is no reason to compute recorded runs again.
SETTINGS = "--preset {wildcards.preset} --over {params.over:q}"


def over(wildcards, output):
    return FLOW.over


def device(wildcards, output):
    return DEVICE


def forced(rule, work=None):
    """The option of a forced job; or with a stage as `work`, what the job will do, in words."""

    def parameter(wildcards, output):
        option = again(workflow, rule, output)
        return FLOW.work(work, wildcards.batch, option) if work else option

    return parameter


def settings(wildcards):
    """A digest of the settings that an experiment's table depends on."""
    return digest({"settings": FLOW.slice(wildcards.experiment)})


# A table is drawn and judged at its own settings alone. Snakemake would not know without its metadata, which
# --cleanup-metadata removes, that an existing table was made at others.
SAME_SETTINGS = (
    '[ "$(cat {input.made_at})" = {params.settings} ] || {{ echo "error: {input.table} was made at other settings.'
    ' Make it again: snakemake {wildcards.experiment} -R aggregate" > {log}; exit 1; }}; '
)


def inputs(rules, output, files):
    """Inputs of a job that writes an index: ancient once the index exists, so that nothing computes it again.

    Without an index they are plain. Snakemake does not look at the jobs behind one that runs again, for example after
    a kill; of these it runs only jobs that have an input from it that is not ancient, or that does not exist. So a job
    whose index came with the repository has no inputs that do not exist, unless it or one of them is forced. One that
    ran here keeps all, as other inputs would make it run again; and a report or a graph shows all.
    """
    if not Path(output).exists():
        return files
    whole = (
        not workflow.execution_settings
        or workflow.persistence.input(IOFile(output))
        or any(
            again(workflow, rule, [output, *files])
            for rule in (*rules, "download", "init", "rescale")
        )
    )
    return [ancient(file) for file in files if whole or Path(file).exists()]


source = shlex.quote(f"{CHECKOUT}/src")
prefix = f"set -euo pipefail; export PYTHONPATH={source}:${{{{PYTHONPATH:-}}}}; "
METHODS = workflow.deployment_settings.deployment_method
if not {DeploymentMethod.CONDA, DeploymentMethod.APPTAINER}.intersection(METHODS):
    # Jobs use the Python that runs Snakemake, even if its environment is not activated.
    prefix += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
shell.prefix(prefix)


if DeploymentMethod.APPTAINER in METHODS:  # which takes no path with a space

    # Built by `apptainer build pathcond.sif containers/apptainer.def`.
    container: f"{CHECKOUT}/pathcond.sif"


wildcard_constraints:
    preset=PRESET,
    dataset="[a-z0-9_]+",
    family="[a-z0-9_]+",
    starts="[0-9a-f]{12}",
    batch=r"[a-z0-9_+]+-[0-9a-f]{12}",
    experiment="|".join(EXPERIMENTS),
    suffix="pdf|png",


onstart:
    if workflow.is_main_process and not workflow.touch:
        if not workflow.local_exec:
            add_sacct(CHECKOUT)
        else:
            # The limit of jobs per second is for clusters. With it Snakemake 9.27 looks for jobs ever more often, for
            # each finished job once more in each second (https://github.com/snakemake/snakemake/pull/3744).
            workflow.scheduler.job_rate_limiter = None
            if DEVICE == "auto" and not has_gpu():
                try:
                    FLOW.refuse(workflow.dag.needrun_jobs())
                except PaperError as error:
                    raise WorkflowError(str(error))
        logger.addHandler(TimeLeft(workflow.dag.needrun_jobs()))


onsuccess:
    if workflow.is_main_process and not workflow.touch:
        try:
            all_made(workflow.dag.targetjobs)
        except PaperError as error:
            raise WorkflowError(str(error))
