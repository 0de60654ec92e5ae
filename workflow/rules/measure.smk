# Items without training: one job a measurement; on a cluster those go to nodes without a GPU, but for timings.
measured = [key for key in DUE if SPECS[key]["stage"] == "measure"]
timed = [key for key in measured if ITEMS[SPECS[key]["item"]].exclusive]


rule measure:
    output:
        table=f"{RUN}.csv",
        record=f"{RUN}.json",
    log:
        f"{LOG}/{{key}}.log",
    wildcard_constraints:
        key=pattern(set(measured).difference(timed), SPECS),
    conda:
        "../../environment.yml"
    resources:
        **needs(0),
    params:
        spec=lambda wildcards: json.dumps(SPECS[wildcards.key], sort_keys=True),
        device="cpu" if REMOTE else config["device"],
    shell:
        "python -m paper.measure {params.spec:q} --device {params.device} > {log} 2>&1"


# Times are measured with the machine to itself: all cores, and the GPU if there is one.
rule measure_time:
    input:
        data=lambda wildcards: data_file(SPECS[wildcards.key]["settings"]["dataset"]),
    output:
        table=f"{RUN}.csv",
        record=f"{RUN}.json",
    log:
        f"{LOG}/{{key}}.log",
    wildcard_constraints:
        key=pattern(timed, SPECS),
    conda:
        "../../environment.yml"
    threads: THREADS if REMOTE else workflow.cores or 1
    resources:
        **needs(GPU),
        slurm_extra="--exclusive",
    params:
        spec=lambda wildcards: json.dumps(SPECS[wildcards.key], sort_keys=True),
        device=config["device"],
    shell:
        "python -m paper.measure {params.spec:q} --device {params.device} > {log} 2>&1"
