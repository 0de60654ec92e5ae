rule aggregate:
    """Join the runs of an experiment in one tidy table, with the spread across seeds."""
    input:
        indices=lambda wildcards: FLOW.indices(wildcards.experiment),
        code=lambda wildcards: code("aggregate", wildcards.experiment),
    output:
        AGGREGATE,
    log:
        "logs/{preset}/aggregate/{experiment}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        settings=lambda wildcards: FLOW.slice(wildcards.experiment),  # so that a change runs it again
        over=over,
    message:
        "aggregate {wildcards.experiment}"
    shell:
        f"python -m paper.experiments aggregate {{wildcards.experiment}} {SETTINGS} --output {{output}} > {{log}} 2>&1"
