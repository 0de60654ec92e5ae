"""Claims of the appendix on MLPs with GELU, at lr 1e-3."""

import pandas as pd

from paper.claims.rules import Claim, Finding, of_all
from paper.claims.trained import BOUNDS, LR, known, listed, ratios, runs


def _faster(table: pd.DataFrame) -> Finding:
    found = ratios(runs(table, lr=LR), "hidden_layers")
    values = known(found)
    depth, best = max(values.items(), key=lambda entry: entry[1].value)
    verdict = of_all([ratio.value > 1.05 for ratio in values.values()])
    return Finding(listed(found, "hidden layers"), verdict, best.value, best.interval, f"95% at {depth:g}:")


CLAIMS = (
    Claim(
        "mlp_gelu_speedup",
        "With GELU in place of ReLU, PathCond shortens training in the same way",
        "as with ReLU",
        "ratio of epochs, baseline over PathCond, above 1.05; every depth: reproduced, some: partly; "
        f"{BOUNDS}; depths where a seed meets the target with neither are left out",
        _faster,
    ),
)
