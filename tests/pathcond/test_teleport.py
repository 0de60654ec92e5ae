"""Teleport: when it rescales, and that it is rescale_ which it calls, with the optimizer's state."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import pathcond
from pathcond import PathCondError, Teleport, rescale_
from tests.cases import mlp


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = mlp(3, 8, 6, 2, norm=nn.BatchNorm1d).double()
    model[-1].requires_grad_(False)
    return model


X: Tensor = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_it_counts_and_rescales_on_every_nth_call() -> None:
    model = net()
    graph = pathcond.extract_graph(model, X)
    schedule = Teleport(model, X, every=3, graph=graph)
    found = [schedule.step() for _ in range(7)]
    assert schedule.count == 7
    assert [report is not None for report in found] == [False, False, True, False, False, True, False]
    report = found[2]
    assert report is not None
    assert report.graph is schedule.graph is graph
    assert (report.output_change, report.solution.steps) == (None, 1)
    assert "graph" not in report.seconds  # extracted once, at the start
    schedule.count = 11  # resumed from a checkpoint
    assert schedule.step() is not None
    for wrong in (0, 1.5, True):
        with pytest.raises(PathCondError, match="expected every to be an integer >= 1"):
            Teleport(model, X, every=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["paths", "norms"])
@pytest.mark.parametrize("options", [{}, {"clamp": 0.05, "damping": 1.0}, {"clamp": None, "trainable_only": True}])
def test_it_is_rescale_with_the_same_options(objective: Literal["paths", "norms"], options: dict[str, Any]) -> None:
    model, expected = net(), net()
    optimizer, other = (torch.optim.SGD(m[:-1].parameters(), lr=0.01, momentum=0.9) for m in (model, expected))
    for m, o in ((model, optimizer), (expected, other)):
        m(X).square().sum().backward()  # moves the running statistics
        o.step()
    report = Teleport(model, X, every=1, sweeps=10, objective=objective, optimizer=optimizer, **options).step()
    wanted = rescale_(expected, X, objective=objective, optimizer=other, **options)
    assert report is not None
    assert report.objective == wanted.objective
    assert report.damping == wanted.damping
    assert report.max_log_scale <= (options.get("clamp", 1.5) or 100)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), expected.parameters(), strict=True))
    for p, q in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(p["momentum_buffer"], q["momentum_buffer"])
