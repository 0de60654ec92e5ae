rule train:
    """Train the missing runs of a batch; a stopped job resumes from its checkpoints.

    If the job is forced, all runs are trained. Each run replaces its predecessor when it is complete, and the index, which
    Snakemake keeps until then, when all are.
    """
    input:
        lambda wildcards: inputs(
            ["train"],
            expand(TRAIN, **wildcards)[0],
            FLOW.inputs("train", wildcards.batch),
        ),
    output:
        update(TRAIN),
    log:
        "logs/{preset}/train/{batch}.log",
    conda:
        "../../environment.yml"
    resources:
        gpu=int(DEVICE != "cpu"),
    params:
        over=over,
        device=device,
        again=forced("train"),
        work=forced("train", work="train"),
    message:
        "train {wildcards.batch}: {params.work}"
    shell:
        f"python -m paper.training --batch {{wildcards.batch}} {SETTINGS} {{params.again}}"
        " --device {params.device} --index {output} > {log} 2>&1"
