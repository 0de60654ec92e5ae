# A cell: one method at one learning rate on one network, all its seeds. Stopped jobs go on from their checkpoints.
cells = [key for key in DUE if SPECS[key]["stage"] == "train"]


rule train:
    input:
        data=lambda wildcards: data_file(SPECS[wildcards.key]["dataset"]),
    output:
        table=f"{RUN}.csv",
        record=f"{RUN}.json",
    log:
        f"{LOG}/{{key}}.log",
    wildcard_constraints:
        key=pattern(cells, SPECS),
    conda:
        "../../environment.yml"
    threads: THREADS if GPU else 1
    resources:
        **needs(GPU),
    params:
        spec=lambda wildcards: json.dumps(SPECS[wildcards.key], sort_keys=True),
        device=config["device"],
    shell:
        "python -m paper.train {params.spec:q} --device {params.device} > {log} 2>&1"
