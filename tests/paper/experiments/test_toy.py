"""Toy example: steps against autograd, the numbers of the paper."""

import numpy as np
import pytest
import torch

from paper.experiments import toy
from paper.seeds import generator

CPU = torch.device("cpu")
SETTINGS = {
    "draws": 300, "lr": 0.02, "steps": 45, "every": 10, "seeds": [3, 4],
    "starts": [[0.2, 2.5, 5.0], [0.3, 5.0, -4.0]], "slower_start": [3.0, 0.1, 0.3],
}  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return toy.measure(SETTINGS, CPU)


def _after_one_step(parameters, seed, function):
    x = torch.randn(SETTINGS["draws"], generator=generator(seed, "input"), dtype=torch.float64)
    theta = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    loss = ((function(theta, x) - x.relu()) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, theta)
    return loss.item(), (theta - SETTINGS["lr"] * gradient).detach().numpy()


@pytest.mark.parametrize("run", ["raw", "rescaled", "ideal"])
def test_steps_are_those_of_autograd(table, run):
    names = ["phi_1", "phi_2"] if run == "ideal" else ["u", "v", "w"]

    def network(theta, x):
        return (theta[0] * x + theta[1]).relu() if run == "ideal" else theta[0] * (theta[1] * x + theta[2]).relu()

    for (_, seed), path in table[table["run"] == run].groupby(["start", "seed"]):
        values = path.set_index("step")
        for step in range(9):
            loss, after = _after_one_step(values.loc[step, names].tolist(), seed, network)
            assert values.loc[step, "loss"] == pytest.approx(loss, rel=1e-12)
            np.testing.assert_allclose(values.loc[step + 1, names].to_numpy(float), after, rtol=1e-10, atol=1e-13)


def test_paper_numbers():
    """Iterations and distances of an independent implementation on other draws: equal up to the draws."""
    starts = {"starts": [[0.2, 2.5, 5.0], [0.3, 5.0, -4.0], [0.3, -1.5, 3.0]]}
    runs = toy.measure(SETTINGS | starts | {"draws": 2000, "steps": 3000, "every": 100, "seeds": [0]}, CPU)
    last = runs.drop_duplicates(["start", "run"]).set_index(["run", "start"])
    assert last.loc["raw", "reached_1e2"].isna().tolist() == [True, True, True, False]
    np.testing.assert_allclose(last.loc["rescaled", "reached_1e2"], [221, 339, 280, 235], rtol=0.05)
    np.testing.assert_allclose(last.loc["rescaled", "reached_1e4"], [687, 838, 748, 701], rtol=0.05)
    np.testing.assert_allclose(last.loc["ideal", "reached_1e4"], [719, 1538, 749, 726], rtol=0.05)
    np.testing.assert_allclose(last.loc["raw", "distance"], [0.185, 0.157, 0.195, 0.002], rtol=0.2)
    np.testing.assert_allclose(last.loc["rescaled", "distance"], [0.032, 0.013, 0.047, 0.026], rtol=0.05)
    assert last.loc["raw", "reached_1e4"].iloc[-1] == pytest.approx(79, rel=0.1)
