rule aggregate:
    """Join the runs of an experiment in one tidy table, with the spread across seeds."""
    input:
        indices=lambda wildcards: FLOW.indices(wildcards.experiment),
        code=lambda wildcards: code("aggregate", wildcards.experiment),
    output:
        table=AGGREGATE,
        made_at=MADE_AT,
    log:
        "logs/{preset}/aggregate/{experiment}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        settings=settings,  # so that a change runs it again
        over=over,
    message:
        "aggregate {wildcards.experiment}"
    shell:
        f"python -m paper.experiments aggregate {{wildcards.experiment}} {SETTINGS} --output {{output.table}} > {{log}} 2>&1;"
        " echo {params.settings} > {output.made_at}"
