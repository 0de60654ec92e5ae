# Pages of the report: one an item, the claims, the configuration, the time everything took. Cheap, so all at once.
report: "../report/workflow.rst"


rule pages:
    input:
        figures=expand(FIGURE, item=ITEMS, suffix="png"),
        tables=expand(AGGREGATE, item=ITEMS),
        claims=CLAIMS,
        records=expand(f"{RUN}.json", key=SPECS),
        code=code("paper.report"),
    output:
        [
            report(
                PAGE.format(page=item),
                category="Figures and tables",
                caption="../report/item.rst",
                labels={"paper": entry.where, "item": item},
            )
            for item, entry in ITEMS.items()
        ],
        [
            report(
                PAGE.format(page=page),
                category="Claims, settings, time",
                caption=f"../report/{page}.rst",
                labels={"page": page},
            )
            for page in ("claims", "configuration", "runtimes")
        ],
    log:
        f"{LOG}/pages.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        # Without the other scales, and without who pays for the jobs.
        config=json.dumps(
            {
                **{name: value for name, value in config.items() if name != "cluster"},
                "scales": {SCALE: config["scales"][SCALE]},
            }
        ),
        folder=lambda wildcards, output: str(Path(output[0]).parent),
    shell:
        "python -m paper.report {params.config:q} --output {params.folder} > {log} 2>&1"
