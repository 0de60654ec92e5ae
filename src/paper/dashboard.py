"""The dashboard: verdicts as tiles, every figure with its main finding, the claims, and trained runs to explore.

One template, `dashboard.html.j2`, serves the report, where pictures are part of the page, and the site.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2

from paper.experiments import EXPERIMENTS
from paper.lazy import pd
from paper.methods import METHODS
from paper.verdicts import ERRATUM, MIXED, NO, NOT_COMPARABLE, OURS, PAPER, SOME, UNDECIDED, YES, verdict_words

KINDS = {PAPER: "claims of the paper", OURS: "hypotheses of ours", ERRATUM: "errata"}
CLASSES = {YES: "reproduced", MIXED: "partly", SOME: "partly", NO: "not"}  # classes of the style sheets
MARKS = {verdict_words(answer, kind): name for kind in KINDS for answer, name in CLASSES.items()}
ANSWERS = (*dict.fromkeys(CLASSES.values()), UNDECIDED.value, NOT_COMPARABLE.value)
# Metrics to explore: of each run at its end, and of the mean over seeds by epoch.
ENDED = {
    "best_test_accuracy": "best test accuracy",
    "final_train_loss": "final train loss",
    "reached": "epochs to the target",
}
BY_EPOCH = {"train_loss": "train loss", "test_accuracy": "test accuracy"}
POINTS = 40  # of a curve


def counts(claims: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Number of claims by kind: those that the runs support, in part, contradict, leave undecided, cannot compare."""
    found = {
        name: [MARKS.get(claim["verdict"], claim["verdict"]) for claim in claims if claim["kind"] == kind]
        for kind, name in KINDS.items()
    }
    return {f"{name} ({len(marks)})": [marks.count(answer) for answer in ANSWERS] for name, marks in found.items()}


def runs_of(table: "pd.DataFrame") -> dict[str, Any] | None:
    """What a trained experiment offers to explore: metrics of each run, and mean curves with few points; None if not.

    Runs are rows [network, method, lr, seed, metrics...]. Curves have the key network|method|lr.
    """
    if not {"panel", "method", "lr", "seed"} <= set(table):
        return None
    metrics = [name for name in ENDED if name in table]
    runs = table[table["panel"] == "run"].dropna(subset=["lr", "seed"])
    if runs.empty or not metrics:
        return None
    rows = [
        [network, method, float(f"{lr:.6g}"), int(seed), *map(_digits, values)]
        for network, method, lr, seed, *values in runs[["network", "method", "lr", "seed", *metrics]].to_numpy()
    ]
    curves: dict[str, Any] = {}
    if "epoch" in table:
        drawn = table[table["panel"] == "curve"]
        shown = {name: f"{name}_mean" for name in BY_EPOCH if f"{name}_mean" in drawn}
        for (network, method, lr), part in drawn.groupby(["network", "method", "lr"], sort=False):
            thin = part.iloc[:: max(1, len(part) // POINTS)]
            there = {name: column for name, column in shown.items() if part[column].notna().any()}
            values = {name: [*map(_digits, thin[column])] for name, column in there.items()}
            curves[f"{network}|{method}|{lr:.6g}"] = {"epoch": [*map(int, thin["epoch"])], **values}
    return {"metrics": metrics, "rows": rows, "curves": curves}


def page(
    environment: jinja2.Environment,
    claims: Sequence[Mapping[str, Any]],
    tables: Mapping[str, "pd.DataFrame"],
    picture: Callable[[str], str],
    link: Callable[[str], str] | None,
    preset: str,
) -> str:
    """The page; `picture` gives the address of a figure, `link` that of its page, if there is one."""
    cards = []
    for name in tables:
        experiment = EXPERIMENTS[name]
        found = [claim for claim in claims if claim["experiment"] == name]
        place = "not in the paper" if experiment.where == "ours" else experiment.where
        cards.append({"name": name, "title": experiment.title, "place": place, "picture": picture(name),
                      "link": link(name) if link else "", "claim": found[0] if found else None})  # fmt: skip
    explored = {name: runs for name, table in tables.items() if (runs := runs_of(table))}
    data = {
        "runs": explored,
        "titles": {name: EXPERIMENTS[name].title for name in explored},
        "methods": {name: [method.label, method.colour] for name, method in METHODS.items()},
        "metrics": ENDED | BY_EPOCH,
    }
    return environment.get_template("dashboard.html.j2").render(
        preset=preset, answers=ANSWERS, cards=cards, claims=claims, marks=MARKS, kinds=KINDS,
        data=json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
    )  # fmt: skip


def _digits(value: float) -> float | None:
    return None if pd.isna(value) else float(f"{value:.4g}")
