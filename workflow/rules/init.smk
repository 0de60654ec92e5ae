rule init:
    """Save the start weights of a family of networks, one file per network and seed."""
    output:
        INIT,
    log:
        "logs/{preset}/init/{family}-{starts}.log",
    conda:
        "../../environment.yml"
    params:
        over=over,
        again=forced("init"),
    message:
        "init {wildcards.family}"
    shell:
        f"python -m paper.initial init {{wildcards.family}} {SETTINGS} {{params.again}} --index {{output}} > {{log}} 2>&1"
