rule measure:
    """Measure the missing parts of an experiment that trains nothing."""
    input:
        inputs("measure"),
    output:
        MEASURE,
    log:
        "logs/{preset}/measure/{batch}.log",
    wildcard_constraints:
        batch=rf"(?!(?:{EXCLUSIVE})-\d)[a-z0-9_+]+-\d+",
    conda:
        "../../environment.yml"
    params:
        specs=lambda wildcards: FLOW.specs("measure", wildcards),
    shell:
        f"python -m paper.experiments measure {{params.specs:q}} --device {DEVICE} --index {{output}} > {{log}} 2>&1"


use rule measure as measure_time with:
    # An experiment that times something has all cores and the GPU for itself.
    wildcard_constraints:
        batch=rf"(?:{EXCLUSIVE})-\d+",
    threads: CORES
    resources:
        gpu=GPU,
