"""The stand-in for sacct: it passes on Slurm's sacct if that works, else it asks squeue."""

import os
import subprocess
from pathlib import Path

import pytest

OURS = Path(__file__).parents[2] / "profiles/slurm/bin"
BY_NAME = ("-X", "--parsable2", "--format=JobIdRaw,State", "--name", "run-1")
FROM_QUEUE = "squeue --noheader --states=all --format=%i|%T --name run-1\n"


@pytest.fixture
def ask(tmp_path):
    """Ask the stand-in, with fake programs of these bodies on the PATH; returns exit status and answer."""

    def run(*words, ahead=(), **bodies):
        for name, body in bodies.items():
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
        path = os.pathsep.join(map(str, [OURS, *ahead, tmp_path]))
        done = subprocess.run([OURS / "sacct", *words], env={"PATH": path}, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout

    return run


QUEUE = 'echo squeue "$@"'


def test_accounts_have_the_word_and_without_them_the_queue(ask):
    assert ask("--version", squeue=QUEUE) == (1, ""), "other questions fail as they would"
    assert ask(*BY_NAME, squeue="exit 3") == (3, "")
    assert ask(*BY_NAME, squeue=QUEUE) == (0, FROM_QUEUE)
    assert ask(*BY_NAME, squeue=QUEUE, ahead=[OURS]) == (0, FROM_QUEUE), "it does not ask itself for ever"
    assert ask(*BY_NAME, sacct="echo no accounts >&2; exit 1", squeue=QUEUE) == (0, FROM_QUEUE)
    assert ask(*BY_NAME, sacct='echo "accounts $@"', squeue=QUEUE) == (0, f"accounts {' '.join(BY_NAME)}\n")
