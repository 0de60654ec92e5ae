# Items without training: one job a measurement.
measured = [key for key in DUE if SPECS[key]["stage"] == "measure"]
timed = [key for key in measured if ITEMS[SPECS[key]["item"]].exclusive]


rule measure:
    output:
        table=f"{RUN}.csv",
        record=f"{RUN}.json",
    log:
        f"{LOG}/{{key}}.log",
    wildcard_constraints:
        key="|".join(re.escape(key) for key in measured if key not in timed) or "(?!)",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        spec=lambda wildcards: json.dumps(SPECS[wildcards.key], sort_keys=True),
        device=config["device"],
    shell:
        "python -m paper.measure {params.spec:q} --device {params.device} > {log} 2>&1"


# Times are measured with the machine to itself: all cores, and the GPU if there is one.
rule measure_time:
    input:
        data=lambda wildcards: expand(
            f"{DATA}.pt", dataset=SPECS[wildcards.key]["settings"]["dataset"]
        ),
    output:
        table=f"{RUN}.csv",
        record=f"{RUN}.json",
    log:
        f"{LOG}/{{key}}.log",
    wildcard_constraints:
        key="|".join(map(re.escape, timed)) or "(?!)",
    conda:
        "../../environment.yml"
    threads: workflow.cores or 1
    resources:
        gpu=GPU,
        mem_mb=8000,
        runtime=30,
    params:
        spec=lambda wildcards: json.dumps(SPECS[wildcards.key], sort_keys=True),
        device=config["device"],
    shell:
        "python -m paper.measure {params.spec:q} --device {params.device} > {log} 2>&1"
