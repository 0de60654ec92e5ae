"""Teleport: when it rescales, that it is rescale_ which it calls, and what becomes of the optimizer's state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathcond
from pathcond.errors import PathCondError
from pathcond.rescale import rescale_
from pathcond.state import POWERS
from pathcond.teleport import Teleport


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(20, 3),
    ).double()  # fmt: skip


def data(n: int = 8) -> Tensor:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(data()).square().mean().backward()
    optimizer.step()


def test_it_counts_and_rescales_on_every_nth_call() -> None:
    model = net()
    schedule = Teleport(model, data(1), every=3)
    assert schedule.count == 0
    found = [schedule.step() for _ in range(7)]
    assert schedule.count == 7
    assert [report is not None for report in found] == [False, False, True, False, False, True, False]
    report = found[2]
    assert report is not None
    assert report.graph is schedule.graph
    assert report.output_change is None
    assert report.solution.steps == 1
    assert "graph" not in report.seconds  # extracted once, at the start


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sweeps": 3, "clamp": 0.5},
        {"method": "optimum"},
        {"batchnorm": "exclude", "pooling": "plain"},
        {"shortcuts": "freeze", "strict": True, "smooth": True},
        {"sweeps": 50, "tol": 1e-3},
    ],
)
def test_it_is_rescale_with_the_same_options(options: dict[str, Any]) -> None:
    model, expected = net(), net()
    with torch.no_grad():
        model(data()), expected(data())  # moves the running statistics
    report = Teleport(model, data(1), every=1, **options).step()
    wanted = rescale_(expected, data(1), **{"sweeps": 1, **options})
    assert report is not None
    assert report.objective == wanted.objective
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), expected.parameters(), strict=True))


def test_function_is_kept_through_training() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = Teleport(model, data(1), every=2, optimizer=optimizer)
    for _ in range(6):
        train(model, optimizer)
        plain = copy.deepcopy(model)
        report = schedule.step()
        assert (report is None) == torch.equal(plain[4].weight, model[4].weight)
        with torch.no_grad():
            for mode in (True, False):
                y, old = (copy.deepcopy(m).train(mode)(data()) for m in (model, plain))
                torch.testing.assert_close(y, old, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["momentum", "amsgrad"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_state_follows_the_parameters(kind: str, dtype: torch.dtype) -> None:
    model = net()
    optimizer = {
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    }[kind](model.parameters())
    train(model, optimizer)
    model.to(dtype)
    for state in optimizer.state.values():
        state.update({k: v.to(dtype) for k, v in state.items() if isinstance(v, Tensor) and k in POWERS})
    before = {p: p.detach().clone() for p in model.parameters()}
    old = {p: {k: copy.deepcopy(v) for k, v in optimizer.state[p].items()} for p in model.parameters()}
    assert Teleport(model, data(1).to(dtype), every=1, optimizer=optimizer).step() is not None
    assert sum(not torch.equal(p, q) for p, q in before.items()) == 5
    for p, q in before.items():
        factor = p.detach().double() / q.double()
        for key, value in optimizer.state[p].items():
            if key in POWERS:
                assert value.dtype == dtype
                expected = old[p][key].double() / factor ** POWERS[key]
                rtol = 1e-10 if dtype == torch.float64 else 1e-5
                torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=0)
            else:
                assert torch.equal(value, old[p][key])


def test_bad_state_is_refused_before_anything_is_written() -> None:
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters())
    schedule = Teleport(model, data(1), every=1, optimizer=optimizer)
    train(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(PathCondError, match="square_avg"):
        schedule.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_must_be_a_positive_whole_number(every: Any) -> None:
    with pytest.raises(PathCondError, match="every"):
        Teleport(net(), data(1), every=every)


def test_a_graph_can_be_handed_in_and_the_count_set() -> None:
    model = net()
    graph = pathcond.extract_graph(model, data(1), batchnorm="exclude")
    schedule = Teleport(model, data(1), every=10, graph=graph)
    schedule.count = 9
    report = schedule.step()
    assert report is not None
    assert report.graph is graph
