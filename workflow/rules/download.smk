rule download:
    """Download a data set from the first source that has it, and verify the checksums of its pixels."""
    output:
        tensors=f"{DATA}.pt",
        provenance=f"{DATA}.json",
    log:
        "logs/download/{dataset}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        # It depends on `output`, so that another folder is no reason to download again.
        directory=lambda wildcards, output: (
            ["--directory", FLOW.config.top.data.directory]
            if FLOW.config.top.data.directory
            else []
        ),
    message:
        "download {wildcards.dataset}"
    # The output is shown as well as logged, because a download may take minutes.
    shell:
        "python -m paper.data {wildcards.dataset} --output $(dirname {output.tensors}) {params.directory:q} 2>&1 | tee {log}"
