# What the paper claims, what we find, and the verdict.
rule claim:
    input:
        table=AGGREGATE,
        code=lambda wildcards: code(
            "paper.claims.__main__", f"paper.claims.{wildcards.item}"
        ),
    output:
        CLAIM,
    log:
        f"{LOG}/claims/{{item}}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        without=lambda wildcards: without(config, wildcards.item),
    shell:
        "python -m paper.claims judge {wildcards.item} {input.table} --scale {params.scale}"
        " --without={params.without:q} --output {output} > {log} 2>&1"


rule claims:
    input:
        claims=expand(CLAIM, item=ITEMS),
        code=code("paper.claims.__main__"),
    output:
        json=CLAIMS,
        table=CLAIMS.replace(".json", ".md"),
    log:
        f"{LOG}/claims.log",
    localrule: True
    conda:
        "../../environment.yml"
    shell:
        "python -m paper.claims join {input.claims} --output {output.json} --table {output.table} > {log} 2>&1"
