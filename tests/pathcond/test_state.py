"""Optimizer state under a rescaling, by way of ENorm; test_teleport.py does the same for Teleport."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pathcond.enorm import ENorm
from pathcond.errors import PathCondError
from pathcond.state import POWERS, scale_

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
STRANGE: dict[str, Make] = {
    "square_avg": lambda p: torch.optim.RMSprop(p, momentum=0.9),
    "variance": lambda p: torch.optim.Adafactor(p),
    "exp_inf": lambda p: torch.optim.Adamax(p),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 3),
    ).double()  # fmt: skip


def data() -> Tensor:
    return torch.randn(8, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(data()).square().mean().backward()
        optimizer.step()


def gradients(model: nn.Module) -> list[Tensor]:
    clone = copy.deepcopy(model)
    clone.zero_grad()
    clone(data()).square().mean().backward()
    return [p.grad for p in clone.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_follows_the_parameters(name: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    enorm = ENorm(model, data(), optimizer)
    train(model, optimizer)
    before = {p: p.detach().clone() for p in model.parameters()}
    state = {p: {k: copy.deepcopy(v) for k, v in optimizer.state[p].items()} for p in model.parameters()}
    enorm.step()
    moved = 0
    for p, old in before.items():
        factor = p.detach() / old
        moved += not torch.equal(p, old)
        assert optimizer.state[p].keys() == state[p].keys()
        for key, value in optimizer.state[p].items():
            if key in POWERS and isinstance(value, Tensor):
                torch.testing.assert_close(value, state[p][key] / factor ** POWERS[key], rtol=1e-10, atol=0)
            else:
                assert value == state[p][key]
    assert moved == 5  # all but the first convolution, which is normalised, its bias, and the last bias


def test_gradients_change_as_the_state_does() -> None:
    model = net()
    nn.init.normal_(model[1].bias)
    before, old = gradients(model), [p.detach().clone() for p in model.parameters()]
    ENorm(model, data()).step()
    for g, g_old, p, p_old in zip(gradients(model), before, model.parameters(), old, strict=True):
        torch.testing.assert_close(g, g_old * p_old / p.detach(), rtol=1e-8, atol=1e-12)


def test_state_is_left_alone_without_an_optimizer_and_with_still_biases() -> None:
    model = net()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    train(model, optimizer)
    buffers = {p: optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()}
    ENorm(model, data()).step()
    assert all(torch.equal(optimizer.state[p]["momentum_buffer"], b) for p, b in buffers.items())
    ENorm(model, data(), optimizer, biases=False, c=2.0).step()
    same = [n for n, p in model.named_parameters() if torch.equal(optimizer.state[p]["momentum_buffer"], buffers[p])]
    assert same == ["0.weight", "0.bias", "1.bias", "3.bias", "6.bias"]


@pytest.mark.parametrize("key", STRANGE)
def test_unknown_state_is_refused_and_nothing_written(key: str) -> None:
    model = net()
    optimizer = STRANGE[key](model.parameters())
    enorm = ENorm(model, data(), optimizer)
    train(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(PathCondError, match=f"got '{key}'"):
        enorm.step()
    with pytest.raises(PathCondError, match="optimizer=None"):
        ENorm(model, data(), optimizer)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_other_things_than_this_models_optimizer_are_refused() -> None:
    model = net()
    with pytest.raises(PathCondError, match="none of the rescaled parameters"):
        ENorm(model, data(), OPTIMIZERS["adam"](net().parameters()))
    with pytest.raises(PathCondError, match="got list"):
        ENorm(model, data(), [1])  # pyright: ignore[reportArgumentType]


def test_parameters_on_one_memory_keep_their_own_state() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    model[2].bias = nn.Parameter(model[0].bias.detach())  # another parameter, the same memory
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    enorm = ENorm(model, torch.ones(1, 3, dtype=torch.float64), optimizer)
    model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    twins = (model[0].bias, model[2].bias)
    before = [optimizer.state[p]["momentum_buffer"].clone() for p in twins]
    old = model[0].bias.detach().clone()
    enorm.step()
    assert not torch.equal(model[0].bias, old)
    for p, buffer in zip(twins, before, strict=True):
        torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], buffer * old / p.detach(), rtol=1e-10, atol=0)


def test_scaling_in_a_wider_format_rounds_once() -> None:
    t = torch.full((2, 3), 1.0e30)
    scale_(t, torch.tensor([[1.0e20], [1.0]], dtype=torch.float64), torch.tensor([[1.0e-20]], dtype=torch.float64))
    torch.testing.assert_close(t, torch.tensor([[1.0e30], [1.0e10]]).expand(2, 3))
    half = torch.ones(2, dtype=torch.bfloat16)
    scale_(half, torch.tensor([3.0, 5.0]), None, -2)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, torch.tensor([1 / 9, 1 / 25]).bfloat16())
