# Table of contents. Targets: all (default), or one item of the paper: `snakemake --cores 2 bcd`.
configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        # Every step is named, not the last alone: Snakemake remakes a deleted file only if it is asked for.
        expand(f"{RUN}.{{suffix}}", key=SPECS, suffix=["csv", "json"]),
        expand(AGGREGATE, item=ITEMS),
        expand(CLAIM, item=ITEMS),
        expand(FIGURE, item=ITEMS, suffix=["pdf", "png"]),
        expand(PAGE, page=[*ITEMS, "claims", "configuration", "runtimes"]),
        CLAIMS,


for item in ITEMS:

    rule:
        name:
            item
        input:
            expand(
                f"{RUN}.{{suffix}}", key=sources(config, item), suffix=["csv", "json"]
            ),
            expand(AGGREGATE, item=item),
            expand(FIGURE, item=item, suffix=["pdf", "png"]),
            expand(CLAIM, item=item),
