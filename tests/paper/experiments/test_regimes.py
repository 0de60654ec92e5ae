"""Regimes: where the printed root fails; golden runs have the table."""

import torch
from torch import nn

import pathcond
from paper.experiments import regimes


def test_printed_root_fails_where_it_cancels():
    """One neuron between many inputs and one output: more enters than leaves; small weights after it, none before."""
    model = nn.Sequential(nn.Linear(50, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    example = torch.ones(1, 50, dtype=torch.float64)
    graph = pathcond.extract_graph(model, example)
    for size, fails in ((1e-2, False), (1e-12, True)):
        g = {"0.weight": torch.full((1, 50), size**2), "2.weight": torch.ones(1, 1), "other": torch.ones(1)}
        assert regimes.printed_root_fails(graph, {name: t.double() for name, t in g.items()}) is fails
