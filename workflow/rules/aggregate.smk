# One tidy table an item.
rule aggregate:
    input:
        tables=lambda wildcards: expand(
            f"{RUN}.csv", key=sources(config, wildcards.item)
        ),
        records=lambda wildcards: expand(
            f"{RUN}.json", key=sources(config, wildcards.item)
        ),
        code=code("paper.aggregate"),
    output:
        AGGREGATE,
    log:
        f"{LOG}/aggregate/{{item}}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        config=lambda wildcards: json.dumps(slice_of(config, wildcards.item)),
    shell:
        "python -m paper.aggregate {wildcards.item} --config {params.config:q} --output {output} > {log} 2>&1"
