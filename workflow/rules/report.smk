report: "../report/workflow.rst"


rule page:
    """Write the pages of the report: dashboard, one per experiment with a short table, claims, settings, runtimes."""
    input:
        figures=expand(
            FIGURE, experiment=EXPERIMENTS, suffix=["pdf", "png"], allow_missing=True
        ),
        tables=expand(AGGREGATE, experiment=EXPERIMENTS, allow_missing=True),
        claims=CLAIMS,
        indices=FLOW.indices(),
        code=code("report"),
    output:
        [
            report(
                PAGE.replace("{page}", name),
                category=FLOW.category(name),
                caption="../report/page.rst",
                labels={"file": "page"},
            )
            for name in EXPERIMENTS
        ],
        [
            report(
                SHORT_TABLE.replace("{experiment}", name),
                category=FLOW.category(name),
                caption="../report/table.rst",
                labels={"file": "table (CSV)"},
            )
            for name in EXPERIMENTS
        ],
        [
            report(
                PAGE.replace("{page}", page),
                category="Claims, settings, runtimes",
                caption="../report/page.rst",
                labels={"file": page},
            )
            for page in MORE_PAGES
        ],
        expand(PAGE, page=["dashboard", "landing"], allow_missing=True),
    log:
        "logs/{preset}/page.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        over=FLOW.over,
        folder=lambda wildcards, output: str(Path(output[0]).parent),
    message:
        "page"
    shell:
        f"python -m paper.report {SETTINGS}" " --output {params.folder} > {log} 2>&1"
