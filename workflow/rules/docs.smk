rule docs:
    """Fill README.md and docs/ with the claims, figures, times and cost of the paper's preset."""
    input:
        expand(
            FIGURE,
            preset="paper",
            experiment=EXPERIMENTS,
            suffix=["pdf", "png"],
        ),
        expand(AGGREGATE, preset="paper", experiment=EXPERIMENTS),
        expand(CLAIMS, preset="paper"),
        code("docs"),
    log:
        "logs/paper/docs.log",
    localrule: True
    conda:
        "../../environment.yml"
    shell:
        "python -m paper.docs > {log} 2>&1"
