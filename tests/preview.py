"""Does the preview show the effect? python -m tests.preview, after `make preview`; exit status 1 if not.

At the small learning rate PathCond's train loss must lie below the baseline's from the first epoch on, for every MLP
and for every autoencoder that is compressed. The training time is printed, not judged.
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd


def curves(folder: Path, item: str) -> pd.DataFrame:
    """Mean train losses of an experiment at its smallest rate: columns are networks and methods, rows epochs from 1."""
    table = pd.read_csv(folder / "aggregate" / f"{item}.csv")
    table = table[(table.panel == "curve") & (table.epoch >= 1) & (table.lr == table.lr.min())]
    return table.pivot_table(index="epoch", columns=["network", "method"], values="train_loss_mean")


def without_effect(folder: Path) -> list[str]:
    """Networks whose curve with PathCond is somewhere not below the baseline's."""
    found = pd.concat([curves(folder, item) for item in ("mlp_depth", "autoencoder")], axis=1)
    networks = sorted(set(found.columns.get_level_values("network")) - {"autoencoder_c1"})
    gains = {name: (found[name, "baseline"] - found[name, "pathcond"]).dropna() for name in networks}
    for name, gain in gains.items():
        sys.stdout.write(f"{name}: train loss lower by {gain.iloc[-1]:.3f} at the end, at least {gain.min():.3f}\n")
    return [name for name, gain in gains.items() if gain.empty or not (gain > 0).all()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.preview", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/preview"))
    folder = parser.parse_args().results
    seconds = sum(json.loads(path.read_text())["seconds"] for path in folder.glob("train/*/*/*.json"))
    sys.stdout.write(f"trained in {seconds / 60:.1f} minutes of one core\n")
    if failed := without_effect(folder):
        sys.exit(f"no effect: {', '.join(failed)}")


if __name__ == "__main__":
    main()
