rule claim:
    """Judge the claims about an experiment: the paper's value, ours, and the verdict."""
    input:
        table=AGGREGATE,
        made_at=MADE_AT,
        code=lambda wildcards: code("claims", wildcards.experiment),
    output:
        CLAIM,
    log:
        "logs/{preset}/claims/{experiment}.log",
    priority: -1  # short, so that no core waits at the end
    localrule: True
    conda:
        "../../environment.yml"
    params:
        settings=settings,
        # Verdicts are given only where a preset's settings are the paper's.
        judged=lambda wildcards: (
            ["--judged"] if FLOW.judged(wildcards.experiment) else []
        ),
    message:
        "claim {wildcards.experiment}"
    shell:
        SAME_SETTINGS
        + "python -m paper.experiments claims {wildcards.experiment} {input.table}"
        " {params.judged} --output {output} > {log} 2>&1"


rule claims:
    """Join the claims of all experiments in one table."""
    input:
        claims=lambda wildcards: expand(
            CLAIM,
            preset=wildcards.preset,
            experiment=EXPERIMENTS,
        ),
        code=code("claims"),
    output:
        json=CLAIMS,
        table=CLAIMS.replace(".json", ".md"),
    log:
        "logs/{preset}/claims.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "claims"
    shell:
        "python -m paper.experiments join {input.claims} --output {output.json} --table {output.table} > {log} 2>&1"
