rule figure:
    """Draw a figure from the table of its experiment."""
    input:
        table=AGGREGATE,
        made_at=MADE_AT,
        code=lambda wildcards: code("figure", wildcards.experiment),
    output:
        pdf=report(
            FIGURE.replace("{suffix}", "pdf"),
            category=lambda wildcards: FLOW.category(wildcards.experiment),
            labels={"file": "figure (PDF)"},
            caption="../report/figure.rst",
        ),
        png=FIGURE.replace("{suffix}", "png"),
    log:
        "logs/{preset}/figure/{experiment}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        settings=settings,
        note=lambda wildcards: FLOW.note(wildcards.experiment),
        dpi=lambda wildcards: FLOW.config.top.figures.dpi,
        font_size=lambda wildcards: FLOW.config.top.figures.font_size,
        caption=lambda wildcards: FLOW.caption(wildcards.experiment),
    message:
        "figure {wildcards.experiment}"
    shell:
        SAME_SETTINGS
        + "python -m paper.experiments figure {wildcards.experiment} {input.table} --output {output.pdf}"
        " --stamp {params.note:q} --dpi {params.dpi} --font-size {params.font_size} > {log} 2>&1"
