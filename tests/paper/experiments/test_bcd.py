"""Sweeps: the objective, and units that are held; golden runs have the table."""

import pytest
import torch

import pathcond
from paper import models
from paper.experiments import bcd
from tests.reference import problem_of

MODEL = {"kind": "cifar_nv", "width": 0.03125, "image": 8}


def test_objective_is_that_of_the_definition():
    model, x = models.make(MODEL, 0, "cifar_nv").double().eval(), models.example_input(MODEL).double()
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    g = pathcond.compute_diag_g(model, x, graph=graph)
    solution = pathcond.solve(graph, g, sweeps=6)
    assert bcd.objective(graph, g, 2 * solution.log_scales) == pytest.approx(solution.objective[-1], rel=1e-12)
    assert bcd.objective(graph, g, -4 * solution.log_scales) == pytest.approx(
        problem_of(graph, g).objective(-4 * solution.log_scales), rel=1e-12
    )


def test_held_units_keep_their_scale():
    block = {"kind": "resnet18_c", "width": 0.0625, "image": 8}
    model, x = models.make(block, 0).double().eval(), models.example_input(block).double()
    every, held = (models.units(model, x, {**block, "held": flag}) for flag in (False, True))
    g = pathcond.compute_diag_g(model, x, graph=every)
    last = every.params[f"{len(model) - 1}.weight"].col.unique()
    kept = torch.ones(every.units + 1, dtype=torch.bool)
    kept[last] = kept[0] = False
    assert (held.units, every.units) == (int(kept.sum()), int(kept.sum()) + 32)
    solution, u = pathcond.solve(held, g, sweeps=9), torch.zeros(every.units + 1, dtype=torch.float64)
    u[kept] = 2 * solution.log_scales
    assert bcd.objective(every, g, u[1:]) == pytest.approx(solution.objective[-1], rel=1e-12)
    assert not held.params[f"{len(model) - 1}.weight"].col.any()
    by_module, expected = held.by_module(2 * solution.log_scales), every.by_module(u[1:])
    assert all(torch.equal(by_module[name], expected[name]) for name in expected)
