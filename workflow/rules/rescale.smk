rule rescale:
    """Save the rescaling of start weights: log-scales, objective per sweep, residual and time."""
    input:
        INIT,
    output:
        RESCALE,
    log:
        "logs/{preset}/rescale/{family}.log",
    conda:
        "../../environment.yml"
    params:
        specs=lambda wildcards: FLOW.starts(wildcards, rescaled=True),
    shell:
        "python -m paper.starts rescale {params.specs:q} --index {output} > {log} 2>&1"
