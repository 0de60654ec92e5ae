rule init:
    """Save the start weights of a family of networks, one file per network and seed."""
    output:
        INIT,
    log:
        "logs/{preset}/init/{family}.log",
    conda:
        "../../environment.yml"
    params:
        specs=lambda wildcards: FLOW.starts(wildcards, rescaled=False),
    shell:
        "python -m paper.starts init {params.specs:q} --index {output} > {log} 2>&1"
