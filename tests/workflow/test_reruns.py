"""What runs again after a change: exactly what depends on it, and of the runs exactly the missing ones."""

import os
import random
import re
import shutil
import time

from tests.faults.harm import flip
from tests.workflow.tree import FEW, TABLES, Tree


def after(*experiments: str) -> set[str]:
    """What follows from new runs of these experiments."""
    each = {f"{stage} {name}" for name in experiments for stage in ("aggregate", "claim", "figure")}
    return {*each, "claims", "page", "all"}


def changed(before: dict, after: dict) -> set[str]:
    """Runs that were written since."""
    return {name for name in after if before.get(name) != after[name]}


def test_a_setting_changed_and_changed_back(tree: Tree):
    tree.set("experiments.toy.lr", 0.01)
    assert set(tree.due()) == {"measure toy", *after("toy")}
    tree.run("toy")
    assert len(tree.files("results/tiny/measure/toy/*.csv")) == 2
    tree.set("experiments.toy.lr", 0.02)
    before = tree.results()
    assert not [job for job in tree.run("toy") if job.startswith("measure")]
    assert changed(before, tree.results()) == set()


def test_a_table_made_at_other_settings_is_not_judged(tree: Tree):
    """Snakemake without its metadata cannot know."""
    tree.set("experiments.toy.lr", 0.01)
    tree.run("results/tiny/aggregate/toy.csv")
    tree.snakemake("--cleanup-metadata", *(f"results/tiny/aggregate/toy.{suffix}" for suffix in ("csv", "settings")))
    tree.set("experiments.toy.lr", 0.02)
    done = tree.snakemake("toy", "-R", "claim")
    assert done.returncode == 1
    assert "results/tiny/aggregate/toy.csv was made at other settings. Make it again: snakemake toy" in done.stdout
    tree.run("toy", "-R", "aggregate")


def test_one_more_seed_learning_rate_and_method_train_exactly_the_new_runs(tree: Tree):
    before = tree.results()
    tree.set("experiments.mlp_depth.seeds", [0, 1, 2])
    tree.set("experiments.mlp_depth_lrs.mlp.lrs", [1e-3, 1e-1, 1e-2])
    tree.set("experiments.mlp_depth.methods", ["baseline", "enorm", "pathcond", "rows"])
    tree.run(*TABLES)
    new = changed(before, tree.results())
    assert sum("-seed2-" in name for name in new) == 2 * 4  # depths, methods
    assert sum("-lr0.01-" in name for name in new) == 3 * 2  # methods, seeds
    assert sum("/rows-" in name for name in new) == 2 * 3  # depths, seeds
    assert all("-seed2-" in name or "-lr0.01-" in name or "/rows-" in name for name in new)


def test_one_more_alpha_and_seed_of_regimes(tree: Tree):
    before = tree.results()
    tree.set("experiments.regimes.more_alphas", [3.0])
    tree.set("experiments.regimes.seeds", [0, 1, 2])
    tree.run("results/tiny/aggregate/regimes.csv")
    now = tree.results()
    for name in changed(before, now):
        assert "/regimes/" in name
        old, new = before.get(name, (b"", 0))[0].decode().splitlines(), now[name][0].decode().splitlines()
        assert new[: len(old)] == old
        assert len(new) - len(old) == (1 if old else 5)  # of old seeds only the new row


def test_sweeps(tree: Tree):
    before = tree.results()
    tree.set("sweeps", 3)
    due = tree.due()
    families = {job for job in due if job.startswith(("init", "rescale"))}
    assert families == {"rescale mlp"}  # the start weights are the same
    assert not [job for job in due if job.startswith("measure")]
    tree.run(*TABLES)
    new = changed(before, tree.results())
    assert new
    assert all("/pathcond-" in name for name in new)


def test_figure_style_and_a_deleted_figure(tree: Tree):
    (tree.folder / "figures/tiny/toy.pdf").unlink()
    assert set(tree.due()) == {"figure toy", "page", "all"}
    tree.set("figures", {"dpi": 120})
    assert set(tree.due()) == {*(f"figure {name}" for name in FEW), "page", "all"}


EDITS = {
    "src/paper/plotting.py": {*(f"figure {name}" for name in FEW), "page", "all"},
    "src/paper/verdicts.py": {*(f"claim {name}" for name in FEW), "claims", "page", "all"},
    "src/paper/experiments/toy.py": after("toy"),
    "src/paper/experiments/base.py": after(*FEW),
    "src/paper/results.py": after(*FEW),
    "workflow/templates/page.html.j2": {"page", "all"},
    "src/paper/models.py": set(),
}


def test_edited_modules(tree: Tree):
    later = time.time() + 10
    inputs = [path for part in ("data", "tiny/init", "tiny/rescale") for path in tree.files(f"results/{part}/**/*")]
    for path in [*EDITS, *inputs]:
        os.utime(tree.folder / path, (later, later))
    assert tree.due() == {}, "a touch is not an edit, and newer data do not make runs old"
    for path, redone in EDITS.items():
        file = tree.folder / path
        text = file.read_text()
        file.write_text(f"{text}\n# a remark\n")
        assert set(tree.due()) == redone, path
        file.write_text(text)
        os.utime(file, (later, later))
    shutil.rmtree(tree.folder / "results/data")
    assert tree.due() == {}, "nor are data needed once the runs exist"


def test_a_deleted_or_damaged_run_is_named_with_the_command_that_computes_it(tree: Tree):
    runs = tree.results()
    deleted, damaged, unrecorded = sorted(name for name in runs if "/mlp_1x16/" in name)[:3]
    (tree.folder / deleted).unlink()
    (tree.folder / damaged).write_text("seed,epoch\n")
    flip((tree.folder / unrecorded).with_suffix(".json"))
    done = tree.snakemake("mlp_depth", "-R", "aggregate")
    assert done.returncode != 0
    assert "3 runs are missing or damaged. `rm results/tiny/train/mlp_depth-" in done.stdout
    for index in re.findall(r"results/tiny/train/mlp_depth\S+\.json", done.stdout.split("`rm ")[1].split("`")[0]):
        (tree.folder / index).unlink()
    tree.run("mlp_depth", "-R", "aggregate")  # the same command
    now = tree.results()
    assert changed(runs, now) == {deleted, damaged, unrecorded}
    assert all(now[name][0] == runs[name][0] for name in runs)
    assert tree.due("mlp_depth") == {}


def test_fresh_clone_beside_results(tree: Tree):
    """No metadata, no data, tables or figures, clocks in any order, no profile: no run is computed again."""
    for name in (".snakemake", "figures", "logs", "profiles", "results/data", *(f"results/tiny/{part}" for part in (
        "aggregate", "claims", "pages", "init", "rescale"))):  # fmt: skip
        shutil.rmtree(tree.folder / name)
    chance = random.Random(0)
    for path in tree.files("**/*"):
        when = time.time() - chance.uniform(0, 1e6)
        os.utime(path, (when, when))
    before = tree.results()
    assert {job.split()[0] for job in tree.due()} == {"aggregate", "claim", "figure", "claims", "page", "all"}
    assert set(tree.run("mlp_depth")) == {*after("mlp_depth"), "mlp_depth"} - {"claims", "page", "all"}
    assert tree.results() == before
    assert not tree.files("results/data/*")
    assert tree.due("mlp_depth") == {}
