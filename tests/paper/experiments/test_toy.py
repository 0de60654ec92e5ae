"""Toy example: steps against autograd."""

import numpy as np
import pytest
import torch

from paper.experiments import toy
from paper.seeds import generator

SETTINGS = {
    "draws": 300, "lr": 0.02, "steps": 45, "every": 10, "seeds": [3, 4],
    "starts": [[0.2, 2.5, 5.0], [0.3, 5.0, -4.0]], "slower_start": [3.0, 0.1, 0.3],
}  # fmt: skip


def _after_one_step(parameters, seed, function):
    x = torch.randn(SETTINGS["draws"], generator=generator(seed, "input"), dtype=torch.float64)
    theta = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    loss = ((function(theta, x) - x.relu()) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, theta)
    return loss.item(), (theta - SETTINGS["lr"] * gradient).detach().numpy()


@pytest.mark.parametrize("run", ["raw", "rescaled", "ideal"])
def test_steps_are_those_of_autograd(run):
    names = ["phi_1", "phi_2"] if run == "ideal" else ["u", "v", "w"]

    def network(theta, x):
        return (theta[0] * x + theta[1]).relu() if run == "ideal" else theta[0] * (theta[1] * x + theta[2]).relu()

    table = toy.measure(SETTINGS, torch.device("cpu"))
    for (_, seed), path in table[table["run"] == run].groupby(["start", "seed"]):
        values = path.set_index("step")
        for step in range(9):
            loss, after = _after_one_step(values.loc[step, names].tolist(), seed, network)
            assert values.loc[step, "loss"] == pytest.approx(loss, rel=1e-12)
            np.testing.assert_allclose(values.loc[step + 1, names].to_numpy(float), after, rtol=1e-10, atol=1e-13)
