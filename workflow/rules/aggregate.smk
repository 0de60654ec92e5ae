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
        settings=lambda wildcards: json.dumps(settings(config, wildcards.item)),
    shell:
        "python -m paper.aggregate {wildcards.item} {input.tables}"
        " --settings {params.settings:q} --output {output} > {log} 2>&1"
