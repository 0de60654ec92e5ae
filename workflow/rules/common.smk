# The configuration, checked; what is to do; path templates. No science.
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import DeploymentMethod

from paper import config as paper_config
from paper.errors import PaperError
from paper.imports import code
from paper.plan import ITEMS, runs, settings, sources, stamp

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

# A slot for the GPU is asked for where there is one, or where the configuration says so.
found = config["device"] == "auto" and shutil.which("nvidia-smi") is not None
GPU = int(found or config["device"] == "cuda")

# A result is named by its settings, so one that is there is right: it is not shown to the rules that make results,
# and no clock, edited script or missing data set can make them redo it. Jobs parse this file again: there all are due.
SPECS = runs(config)
ACCEPT = workflow.is_main_process and config["accept_existing"]
DUE = [
    key
    for key in SPECS
    if not (
        ACCEPT
        and Path(RUN.format(key=key) + ".csv").exists()
        and Path(RUN.format(key=key) + ".json").exists()
    )
]


wildcard_constraints:
    dataset="[a-z0-9]+",
    item="|".join(ITEMS),
    suffix="pdf|png",
