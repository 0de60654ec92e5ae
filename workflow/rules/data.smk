# A data set, from the first source that has it; checked by the digests of its pixels.
rule data:
    output:
        tensors=f"{DATA}.pt",
        record=f"{DATA}.json",
    log:
        "logs/data/{dataset}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        directory=(
            ["--directory", config["data"]["directory"]]
            if config["data"]["directory"]
            else []
        ),
    # Seen and logged: a download may take minutes.
    shell:
        "python -m paper.data {wildcards.dataset} --output $(dirname {output.tensors}) {params.directory:q} 2>&1 | tee {log}"
