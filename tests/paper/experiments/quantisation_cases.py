"""Made-up runs of `quantisation`, and a table for every answer of its claims."""

from itertools import product

import pandas as pd

from paper.experiments import quantisation
from paper.verdicts import NO, PARTLY, UNDECIDED, YES

NETWORKS = ("mlp", "vgg")
VARIES = {"none": 1, "paths": 0, "norms": 0, "ranges": -1}  # with the seed
LOST = {("none", 8): 3.0, ("none", 4): 10.0}


def run(network, seed, lost, spread):
    """The table of one network and seed that loses these points by objective and bits."""
    rows = []
    for objective, bits in product(VARIES, (quantisation.FULL, 8, 4)):
        points = 0.0
        if bits != quantisation.FULL:
            points = lost.get((objective, bits), lost["none", bits])
            points = points[network] if isinstance(points, dict) else points
            points += spread * VARIES[objective] * (seed - 1)
        rows.append({"objective": objective, "bits": bits, "accuracy": 0.7 + 0.01 * seed - points / 100})
    more = {"network": network, "seed": seed, "loss": 1.0, "units": 10, "moved": 5, "max_log_scale": 0.5}
    return pd.DataFrame(rows).assign(**more)


def quantised(lost, spread=0.05):
    """The table of networks that lose these points; objectives that are not given lose what no rescaling does."""
    lost = {**LOST, **lost}
    return quantisation.table([(run(name, seed, lost, spread), {}) for name in NETWORKS for seed in range(3)], {})


CASES = {
    "quantisation_int8": [
        (YES, quantised({("none", 8): 0.1})),
        (PARTLY, quantised({("none", 8): {"mlp": 0.1, "vgg": 2.0}})),
        (NO, quantised({("none", 8): 2.0})),
        (UNDECIDED, quantised({("none", 8): 0.5}, spread=1.0)),
    ],
    **{
        f"quantisation_{objective}": [
            (YES, quantised({(objective, 8): 1.0, (objective, 4): 5.0})),
            (PARTLY, quantised({(objective, 4): 5.0})),
            (NO, quantised({})),
            (UNDECIDED, quantised({(objective, 8): 2.5, (objective, 4): 9.5}, spread=1.0)),
        ]
        for objective in ("paths", "norms", "ranges")
    },
    "quantisation_best": [
        (YES, quantised({("ranges", 8): 1.0, ("ranges", 4): 5.0})),
        (PARTLY, quantised({("paths", 8): 1.0, ("ranges", 4): 5.0})),
        (NO, quantised({("paths", 8): 1.0, ("paths", 4): 5.0})),
        (UNDECIDED, quantised({}, spread=1.0)),
    ],
}
