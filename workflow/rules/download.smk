rule download:
    """A data set from the first source that has it, checked by the checksums of its pixels."""
    output:
        tensors=f"{DATA}.pt",
        provenance=f"{DATA}.json",
    log:
        "logs/download/{dataset}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        directory=lambda wildcards: (
            ["--directory", FLOW.config(PRESET).top.data.directory]
            if FLOW.config(PRESET).top.data.directory
            else []
        ),
    # Shown and logged: a download may take minutes.
    shell:
        "python -m paper.data {wildcards.dataset} --output $(dirname {output.tensors}) {params.directory:q} 2>&1 | tee {log}"
