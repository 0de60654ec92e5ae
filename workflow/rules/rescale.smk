rule rescale:
    """Save the rescaling of start weights: log-scales, objective per sweep, residual and time."""
    input:
        ancient(INIT),
    output:
        RESCALE,
    log:
        "logs/{preset}/rescale/{family}.log",
    conda:
        "../../environment.yml"
    params:
        starts=lambda wildcards: FLOW.starts(wildcards.family, rescaled=True),
        over=over,
        again=forced("rescale"),
    message:
        "rescale {wildcards.family}"
    shell:
        f"python -m paper.initial rescale {{wildcards.family}} {SETTINGS} {{params.again}} --index {{output}} > {{log}} 2>&1"
