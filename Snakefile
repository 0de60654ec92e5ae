# Reproduction of the PathCond paper. `snakemake --cores 2` draws every figure from the recorded runs under results/paper;
# `snakemake --cores 2 toy` one experiment; `--config preset=preview` everything in miniature, from nothing.
# download → init → rescale → train | measure → aggregate → figure, claims → report
from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/download.smk"
include: "workflow/rules/init.smk"
include: "workflow/rules/rescale.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/figure.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


if PRESET == "paper":

    include: "workflow/rules/docs.smk"


rule all:
    """Every figure, table and claim of the paper, and the pages of the report."""
    default_target: True
    input:
        expand(FIGURE, preset=PRESET, experiment=EXPERIMENTS, suffix=["pdf", "png"]),
        expand(CLAIMS, preset=PRESET),
        expand(PAGE, preset=PRESET, page=[*EXPERIMENTS, *MORE_PAGES]),
    message:
        "all"


for name, experiment in EXPERIMENTS.items():

    rule:
        name:
            name
        input:
            expand(FIGURE, preset=PRESET, experiment=name, suffix=["pdf", "png"]),
            expand(CLAIM, preset=PRESET, experiment=name),
        message:
            "{rule}"

    getattr(rules, name).rule.docstring = f"{experiment.where}: {experiment.title}"
