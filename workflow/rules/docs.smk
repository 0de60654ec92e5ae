rule docs:
    """Fill README.md and docs/ with the claims, figures, times and cost of the paper's preset."""
    input:
        expand(
            FIGURE,
            preset=PRESET,
            experiment=EXPERIMENTS,
            suffix=["pdf", "png"],
        ),
        expand(AGGREGATE, preset=PRESET, experiment=EXPERIMENTS),
        expand(CLAIMS, preset=PRESET),
        code("docs"),
    log:
        "logs/paper/docs.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "docs"
    shell:
        "python -m paper.docs > {log} 2>&1"
