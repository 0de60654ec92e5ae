"""Random kills over the tiny preset: python -m tests.faults.chaos --rounds N --seed S.

A round takes a few experiments at random. It starts Snakemake from nothing, kills it, one of its jobs or the whole
process group at random moments, starts the same command again each time, and lets the last one finish. It survives if
its files have the bytes of an undisturbed run and nothing else is left. The seed of a round repeats it. After each kill
Snakemake's lock is removed, as Snakemake asks for.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paper.experiments import EXPERIMENTS
from tests.faults.small import PATIENCE, Small, jobs_of, kill, wait_until_gone
from tests.workflow.tree import Tree

VICTIMS = ("snakemake", "job", "group")
MOST_KILLS, MOST_EXPERIMENTS = 2, 3
STEADY = sorted(name for name in EXPERIMENTS if "timing" not in name and name != "practice")


def disturb(tree: Small, chance: random.Random, seconds: float) -> tuple[str, int]:
    """Start Snakemake and kill something at a random moment; returns what was killed when, and the process group."""
    victim, delay = chance.choice(VICTIMS), chance.uniform(0.1, seconds)
    pick, started = chance.random(), time.monotonic()
    snakemake = tree.begin()
    while snakemake.poll() is None and time.monotonic() - started < delay:
        time.sleep(0.01)
    what = victim
    if victim != "job":
        kill(snakemake.pid, group=victim == "group")
    while victim == "job" and snakemake.poll() is None:
        if jobs := sorted(jobs_of(snakemake.pid).items()):
            process, what = jobs[int(pick * len(jobs))]
            kill(process)
            break
    when = time.monotonic() - started
    try:
        ended = snakemake.wait(PATIENCE) == 0
    except subprocess.TimeoutExpired:
        kill(snakemake.pid, group=True)
        return f"Snakemake hung after {what} was killed at {when:.1f} s", snakemake.pid
    return f"{'nothing to kill' if ended else what} at {when:.1f} s", snakemake.pid


def survive(tree: Small, expected: dict[str, bytes], chance: random.Random, seconds: float) -> tuple[str, str]:
    """One round; returns what was done, and what is wrong at the end, if anything."""
    told, groups = [], []
    for number in range(chance.randint(1, MOST_KILLS)):
        what, group = disturb(tree, chance, seconds / (1 + number))  # less and less is left to do
        told.append(what)
        groups.append(group)
        tree.unlock()
    for group in groups:
        wait_until_gone(group)
    tree.unlock()
    done = tree.snakemake()
    return ", ".join(told), wrong(tree, expected, done)


def wrong(tree: Small, expected: dict[str, bytes], done: subprocess.CompletedProcess[str]) -> str:
    """What is not as it should be after a round."""
    if done.returncode:
        return f"the same command failed:\n{done.stdout[-4000:]}"
    if found := tree.leftovers():
        return f"left behind: {', '.join(found)}"
    made = dict.fromkeys(f"figures/tiny/{target}.pdf" for target in tree.targets) | tree.content()
    odd = [name for name, content in made.items() if content != expected.get(name)]
    return f"not the bytes of an undisturbed run: {', '.join(odd)}" if odd else ""


def run(rounds: int, seed: int, folder: Path) -> int:
    """Run all rounds and print a line for each; returns how many survived."""
    chances = {number: random.Random(number) for number in range(seed, seed + rounds)}
    planned = [(number, chance, tuple(chance.sample(STEADY, MOST_EXPERIMENTS))) for number, chance in chances.items()]
    undisturbed = Small(Tree.fresh(folder / "undisturbed").folder)
    undisturbed.targets = tuple(sorted({name for _, _, targets in planned for name in targets}))
    started = time.monotonic()
    undisturbed.finish()
    seconds, expected, survived = time.monotonic() - started, undisturbed.content(), 0
    say(f"undisturbed: {len(expected)} files in {seconds:.1f} s")
    for number, chance, targets in planned:
        tree = undisturbed.sources(folder / str(number))
        tree.targets = targets
        started = time.monotonic()
        told, fault = survive(tree, expected, chance, seconds if rounds == 1 else seconds / 3)
        taken, what = time.monotonic() - started, ", ".join(targets)
        say(f"seed {number} ({what}): {told}: {fault or 'survived'} ({taken:.1f} s)")
        if fault:
            say(f"  the tree is in {tree.folder}; again: python -m tests.faults.chaos --rounds 1 --seed {number}")
        else:
            survived += 1
            shutil.rmtree(tree.folder)
    return survived


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="of the first round, the next has the next; by default a new one")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    survived = run(given.rounds, seed, folder)
    say(f"{survived} of {given.rounds} survived")
    if survived < given.rounds:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
