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


rule measure_time:
    """Measure an experiment that times something: the job has all cores and the GPU for itself."""
    input:
        inputs("measure"),
    output:
        MEASURE,
    log:
        "logs/{preset}/measure/{batch}.log",
    wildcard_constraints:
        batch=rf"(?:{EXCLUSIVE})-\d+",
    conda:
        "../../environment.yml"
    threads: CORES
    resources:
        gpu=GPU,
    params:
        specs=lambda wildcards: FLOW.specs("measure", wildcards),
    shell:
        f"python -m paper.experiments measure {{params.specs:q}} --device {DEVICE} --index {{output}} > {{log}} 2>&1"
