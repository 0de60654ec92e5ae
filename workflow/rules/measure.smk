rule measure:
    """Measure the missing parts of an experiment that trains nothing; all of them, if the job is forced."""
    input:
        lambda wildcards: inputs(
            ["measure", "measure_time"],
            expand(MEASURE, **wildcards)[0],
            FLOW.inputs("measure", wildcards.batch),
        ),
    output:
        update(MEASURE),
    log:
        "logs/{preset}/measure/{batch}.log",
    wildcard_constraints:
        batch=rf"(?!(?:{EXCLUSIVE})-)[a-z0-9_+]+-[0-9a-f]{{12}}",
    conda:
        "../../environment.yml"
    params:
        over=over,
        device=device,
        again=forced("measure"),
        work=forced("measure", work="measure"),
    message:
        "measure {wildcards.batch}: {params.work}"
    shell:
        f"python -m paper.experiments measure --batch {{wildcards.batch}} {SETTINGS} {{params.again}}"
        " --device {params.device} --index {output} > {log} 2>&1"


use rule measure as measure_time with:
    wildcard_constraints:
        batch=rf"(?:{EXCLUSIVE})-[0-9a-f]{{12}}",
    threads: CORES
    resources:
        gpu=int(DEVICE != "cpu"),
    params:
        again=forced("measure_time"),
        work=forced("measure_time", work="measure"),
    # An experiment that times something has all cores and the GPU for itself.
    message:
        "measure_time {wildcards.batch}: {params.work}"
