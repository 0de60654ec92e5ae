rule train:
    """Train the missing runs of a batch; a stopped job resumes from its checkpoints."""
    input:
        inputs("train"),
    output:
        TRAIN,
    log:
        "logs/{preset}/train/{batch}.log",
    conda:
        "../../environment.yml"
    resources:
        gpu=GPU,
    params:
        specs=lambda wildcards: FLOW.specs("train", wildcards),
    # The device is not in `params`: another device must not train recorded runs again.
    shell:
        f"python -m paper.training {{params.specs:q}} --device {DEVICE} --index {{output}} > {{log}} 2>&1"
