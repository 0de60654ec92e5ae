rule aggregate:
    """Join the runs of an experiment in one tidy table, with the spread across seeds."""
    input:
        indices=lambda wildcards: FLOW.indices(wildcards.preset, wildcards.experiment),
        code=lambda wildcards: code("aggregate", wildcards.experiment),
    output:
        AGGREGATE,
    log:
        "logs/{preset}/aggregate/{experiment}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        config=lambda wildcards: FLOW.slice(wildcards.preset, wildcards.experiment),
    shell:
        "python -m paper.experiments aggregate {wildcards.experiment} --config {params.config:q} --output {output} > {log} 2>&1"
