"""Regimes: widths that add up, and rescalings that equal those of the literal algorithm on the same networks."""

import pandas as pd
import pytest
import torch
from torch import nn

import pathcond
from paper import results
from paper.experiments import regimes
from paper.seeds import generator
from tests.paper.experiments.tables import ROOT, settings
from tests.reference import dense_problem, literal_sweeps

CPU = torch.device("cpu")
SETTINGS = {
    "hidden_layers": 3, "neurons": 12, "inputs": 3, "outputs": 2, "variances": [1e-2, 1e-1], "sweeps": 4,
    "log10_alpha": {"first": -1.0, "last": 2.0, "count": 3}, "seeds": [0, 1],
}  # fmt: skip


def measure(**change):
    settings = regimes.Settings.model_validate(SETTINGS | change)
    return pd.concat([regimes.measure(part, CPU) for _, part in regimes.parts(settings)], ignore_index=True)


@pytest.fixture(scope="module")
def table():
    return measure()


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


def test_rescaling_is_that_of_the_literal_algorithm(table):
    alpha = 10.0**0.5
    hidden = regimes.hidden_widths(3, 12, alpha, 1)
    widths = [3, *hidden, 2]
    layers = [nn.Linear(widths[k], widths[k + 1], bias=k < 3, dtype=torch.float64) for k in range(4)]
    model = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())))[:-1]
    stream = generator(1, "init", f"{alpha:.6g}")
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=stream, dtype=torch.float64) * 0.1**0.5
    example = torch.ones(1, 3, dtype=torch.float64)
    graph = pathcond.extract_graph(model, example)
    u = literal_sweeps(dense_problem(graph, pathcond.compute_diag_g(model, example)), sweeps=4)
    (row,) = table.query("variance == 0.1 and seed == 1 and 3 < alpha < 4").itertuples()
    assert row.widths == "-".join(map(str, hidden))
    assert row.max_log_scale == pytest.approx(float(u.abs().max()) / 2.0, rel=1e-9)


def test_printed_root_fails_where_it_cancels(table):
    """One neuron between many inputs and one output: more enters than leaves; small weights after it, none before."""
    assert not table["printed_root_fails"].any()
    model = nn.Sequential(nn.Linear(50, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    example = torch.ones(1, 50, dtype=torch.float64)
    graph = pathcond.extract_graph(model, example)
    for size, fails in ((1e-2, False), (1e-12, True)):
        g = {"0.weight": torch.full((1, 50), size**2), "2.weight": torch.ones(1, 1), "other": torch.ones(1)}
        assert regimes.printed_root_fails(graph, {name: t.double() for name, t in g.items()}) is fails
