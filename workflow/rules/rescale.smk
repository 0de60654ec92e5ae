rule rescale:
    """Save the rescaling of start weights: log-scales, objective per sweep, residual and time."""
    input:
        lambda wildcards: inputs(
            ["rescale"],
            expand(RESCALE, **wildcards)[0],
            [FLOW.starts(wildcards.family, rescaled=False)],
        ),
    output:
        RESCALE,
    log:
        "logs/{preset}/rescale/{family}-{starts}.log",
    conda:
        "../../environment.yml"
    params:
        over=over,
        again=forced("rescale"),
    message:
        "rescale {wildcards.family}"
    shell:
        f"python -m paper.initial rescale {{wildcards.family}} {SETTINGS} {{params.again}} --index {{output}} > {{log}} 2>&1"
