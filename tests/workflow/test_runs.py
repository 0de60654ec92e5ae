"""Running the workflow: bad configurations, interruption, style of the rules."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workflow.tree import ROOT, Tree


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("      lr: 0.02", "      lrr: 0.02", "unknown key 'lrr'; did you mean 'lr'?"),
        ("      lr: 0.02", "      lr: fast", "expected number, got 'fast'"),
        ("scale: preview ", "scale: previw ", "did you mean 'preview'?"),
        ("device: auto", "device: auto\ndevice: cpu", "is given twice"),
    ],
)
def test_bad_configuration_stops_before_the_first_job(tmp_path: Path, old: str, new: str, message: str):
    tree = Tree.fresh(tmp_path / "tree")
    tree.edit("config.yaml", old, new)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "-n"],
        cwd=tree.folder, env=tree.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout
    assert not (tree.folder / "results").exists()


def test_interrupted_run_goes_on(tree: Tree):
    """Ctrl-C in the middle; the same command finishes, with the bytes of an undisturbed run, and needs no unlock."""
    results = {path: path.read_bytes() for path in tree.files("results/tiny/measure/bcd/*.csv")}
    for path in results:
        path.unlink()
    with subprocess.Popen(
        tree.command("bcd"), cwd=tree.folder, env=tree.environment(), stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if "rule measure:" in line:
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(60) != 0
    tree.run("bcd")
    assert {path: path.read_bytes() for path in results} == results
    assert tree.due("bcd") == {}


def test_failed_measurement_shows_its_log(tree: Tree):
    tree.edit("src/paper/measure/toy.py", "\ndef measure(", "\nraise RuntimeError('this broke')\n\n\ndef measure(")
    for path in tree.files("results/tiny/measure/toy/*"):
        path.unlink()
    done = tree.snakemake()
    assert done.returncode != 0
    assert "this broke" in done.stdout
    assert tree.files("results/tiny/measure/toy/*") == []


def test_rules_are_clean():
    rules = sorted(map(str, (ROOT / "workflow" / "rules").glob("*.smk")))
    for command in (["snakemake", "--lint"], ["snakefmt", "--check", "Snakefile", *rules]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
