"""Small tables for the claims on the expected diagonal, each with its verdict; values lie close to where it changes."""

import pandas as pd

from paper.claims.rules import NOT_REPRODUCED, PARTLY, REPRODUCED

YES, NO = REPRODUCED, NOT_REPRODUCED


def theory(z=(), printed=(), name="", case="other", kind="edge"):
    """z by layer, or which layers the printed formula is off in."""
    off = [*printed] or [False] * len(z)
    rows = [
        {"case": case, "kind": kind, "layer": layer, "printed_name": name, "printed_off": wrong, "z": value,
         "printed_z": 77.0 * wrong}
        for layer, (wrong, value) in enumerate(zip(off, [*z] or [0.5] * len(off), strict=True))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def printed(name):
    """Layers where a printed formula is off, for each verdict."""
    cases = ((YES, [False] * 4), (PARTLY, [False, False, True, True]), (NO, [False, True, True]))
    return [(verdict, theory(printed=off, name=name)) for verdict, off in cases]


def unit_gain(*z, slope=0.25):
    """Equal widths of 4 at a = 1: z by layer of the weights, with a formula that rises by `slope` a layer."""
    rows = theory(z, case="constant")
    return rows.assign(a=1.0, formula=1 + slope * rows["layer"], units=4 * (len(z) - 1))


def even(*found):
    """Spread of diag(G) and largest |u| by network."""
    return pd.DataFrame(found, columns=["even_spread", "even_u"])


def ranks(*found):
    """Parameters, units and rank by network, each in two rows."""
    return pd.DataFrame([row for row in found for _ in range(2)], columns=["parameters", "units", "rank"])


CASES: dict[str, list[tuple[str, pd.DataFrame]]] = {
    "theory_with_biases": [
        (YES, pd.concat([theory([3.9, -3.9], case="varying"), theory([9.0], case="by_layer")])),
        (PARTLY, theory([3.9, -4.1], case="constant")),
        (NO, theory([3.9, -4.1, 4.1], case="constant")),
    ],
    "theory_no_biases": printed("without_biases"),
    "theory_general": printed("expected_ak"),
    "theory_small_variance": printed("small_variance"),
    "theory_small_variance_widths": printed("small_variance_widths"),
    "theory_large_variance_widths": printed("large_variance_widths"),
    "theory_unit_gain": [
        (YES, unit_gain(3.9, -3.9, 0.0)),
        (PARTLY, unit_gain(3.9, -4.1, 0.0)),
        (NO, unit_gain(4.1, -4.1, 0.0)),
        (NO, unit_gain(0.0, 0.0, 0.0, slope=0.251)),
    ],
    "theory_general_biases": [
        (YES, pd.concat([theory([3.9], case="by_layer", kind="bias"), theory([9.0], case="by_layer")])),
        (PARTLY, theory([3.9, 4.1], case="by_layer", kind="bias")),
        (NO, theory([4.1], case="by_layer", kind="bias")),
    ],
    "constant_diagonal": [
        (YES, even((2e-16, 0.9e-9), (1.0, 0.3))),
        (YES, even((0.0, 0.0))),
        (NO, even((0.0, 0.0), (1e-12, 1.1e-9), (1.0, 0.0))),
    ],
    "theory_full_rank": [
        (YES, ranks((12, 3, 12))),
        (PARTLY, ranks((12, 3, 12), (12, 3, 9))),
        (NO, ranks((12, 3, 11), (64, 12, 52))),
    ],
}
