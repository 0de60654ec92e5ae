"""Regimes: recorded rows are reproduced, and where the printed root fails."""

import pandas as pd
import torch
from torch import nn

import pathcond
from paper import results
from paper.experiments import regimes
from tests.paper.experiments.tables import ROOT, settings

CPU = torch.device("cpu")


def test_parts_reproduce_recorded_rows():
    """All alphas bit for bit; 3 of 1,200 rows measured again, to the rounding of another machine."""
    parts = dict(regimes.parts(settings("regimes", "paper")))
    assert len(parts) == 60
    for number, (name, part) in enumerate(parts.items()):
        (path,) = (ROOT / "results/paper/measure/regimes").glob(f"{name}-*.csv")
        recorded = results.read_table(path)
        assert recorded["alpha"].tolist() == part["alphas"]
        if number in (0, 31, 59):
            row = regimes.measure({**part, "alphas": part["alphas"][number % 20 : number % 20 + 1]}, CPU)
            expected = recorded.iloc[[number % 20]].reset_index(drop=True)
            pd.testing.assert_frame_equal(row, expected, rtol=1e-12, atol=0)


def test_printed_root_fails_where_it_cancels():
    """One neuron between many inputs and one output: more enters than leaves; small weights after it, none before."""
    model = nn.Sequential(nn.Linear(50, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    example = torch.ones(1, 50, dtype=torch.float64)
    graph = pathcond.extract_graph(model, example)
    for size, fails in ((1e-2, False), (1e-12, True)):
        g = {"0.weight": torch.full((1, 50), size**2), "2.weight": torch.ones(1, 1), "other": torch.ones(1)}
        assert regimes.printed_root_fails(graph, {name: t.double() for name, t in g.items()}) is fails
