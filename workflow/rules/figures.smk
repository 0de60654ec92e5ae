# A figure is a function of its item's table.
rule figure:
    input:
        table=AGGREGATE,
        code=lambda wildcards: code(
            "paper.figures.__main__", f"paper.figures.{wildcards.item}"
        ),
    output:
        pdf=FIGURE.replace("{suffix}", "pdf"),
        png=FIGURE.replace("{suffix}", "png"),
    log:
        f"{LOG}/figures/{{item}}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        stamp=lambda wildcards: stamp(config, wildcards.item),
        dpi=config["figures"]["dpi"],
        font_size=config["figures"]["font_size"],
    shell:
        "python -m paper.figures {wildcards.item} {input.table} --output {output.pdf}"
        " --stamp {params.stamp:q} --dpi {params.dpi} --font-size {params.font_size} > {log} 2>&1"
