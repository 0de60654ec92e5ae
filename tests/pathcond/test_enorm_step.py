"""ENorm as a part of training: awkward weights, formats and devices, and what a CUDA graph asks of it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pathcond.enorm import ENorm
from pathcond.errors import PathCondError
from pathcond.graph import extract_graph


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


def batch(n: int = 16) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 2, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)


class NoHost(TorchDispatchMode):
    """Fails on operations that make the host wait for values, or whose shapes depend on them."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique2", "item")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.FORBIDDEN, f"{func} waits for the device"
        if func.overloadpacket.__name__.startswith("index"):
            indices = [i for i in args[1] if i is not None] if isinstance(args[1], (list, tuple)) else []
            assert all(i.dtype != torch.bool for i in indices), f"the shape of {func} depends on values"
        return func(*args, **(kwargs or {}))


def test_training_keeps_the_function_at_every_step() -> None:
    model, (x, y) = net().double(), batch()
    x = x.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    enorm = ENorm(model, x[:1], optimizer)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        plain = copy.deepcopy(model)
        enorm.step()
        assert not torch.equal(plain[0].weight, model[0].weight)
        with torch.no_grad():
            for mode in (True, False):
                expected, found = (copy.deepcopy(m).train(mode)(x) for m in (plain, model))
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    fresh = net(3).double()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(copy.deepcopy(model)(x), fresh(x))


def test_step_is_free_of_host_round_trips() -> None:
    model, (x, y) = net(), batch()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    enorm = ENorm(model, x[:1], optimizer, p=1, c=1.1)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with NoHost():
        enorm.step()


def test_dead_and_broken_units_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight[0] = 0  # nothing enters
        model[2].weight[:, 1] = 0  # nothing leaves
        model[0].weight[2, 0] = math.nan
    before = [p.detach().clone() for p in model.parameters()]
    ENorm(model, torch.ones(1, 3, dtype=torch.float64)).step()
    for p, old in zip(
        (model[0].weight, model[0].bias, model[2].weight.T), (before[0], before[1], before[2].T), strict=True
    ):
        torch.testing.assert_close(p[:3].detach(), old[:3], rtol=0, atol=0, equal_nan=True)
        assert not torch.equal(p[3], old[3])
    assert torch.isfinite(model[2].weight).all()


def test_all_zero_weights_stay_zero() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)
    before = model[0].weight.detach().clone()
    ENorm(model, torch.ones(1, 3)).step()
    assert torch.equal(model[0].weight, before)
    assert not model[2].weight.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_formats_are_kept(dtype: torch.dtype) -> None:
    model, (x, _) = net().eval(), batch()
    model = model.to(dtype)
    reference = copy.deepcopy(model).double()
    enorm, exact = ENorm(model, x[:1].to(dtype)), ENorm(reference, x[:1].double())
    enorm.step()
    exact.step()
    eps = torch.finfo(dtype).eps
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.dtype == dtype
        torch.testing.assert_close(p.double(), q, rtol=4 * eps, atol=0)


def test_grads_flags_and_the_callers_mode_are_left_alone() -> None:
    model, (x, y) = net(), batch()
    model[3].weight.requires_grad_(False)
    nn.functional.cross_entropy(model(x), y).backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    expected = copy.deepcopy(model)
    ENorm(expected, x[:1]).step()
    enorm = ENorm(model, x[:1])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        enorm.step()
    for p, q, grad in zip(model.parameters(), expected.parameters(), grads, strict=True):
        assert torch.equal(p, q)
        assert (p.grad is None) == (grad is None)
        assert grad is None or (p.grad is not None and torch.equal(p.grad, grad))
    assert [p.requires_grad for p in model.parameters()].count(False) == 1
    assert model.training


@pytest.mark.parametrize("options", [{"p": 0}, {"p": -1}, {"p": math.inf}, {"p": "2"}, {"c": 0.0}, {"c": math.nan}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PathCondError, match="positive number"):
        ENorm(net(), batch()[0][:1], **options)


def test_a_graph_can_be_reused_but_not_of_another_model() -> None:
    model, (x, _) = net(), batch()
    graph = extract_graph(model, x[:1], batchnorm="exclude")
    enorm = ENorm(model, x[:1], graph=graph)
    assert enorm.graph is graph
    before = model[4].weight.detach().clone()
    enorm.step()
    assert torch.equal(model[4].weight, before)
    with pytest.raises(PathCondError, match="Extract a new graph"):
        ENorm(nn.Linear(2, 2), torch.ones(1, 2), graph=graph)


def test_a_model_without_units_is_left_as_it_is() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    enorm = ENorm(model, torch.ones(1, 2))
    enorm.step()
    assert torch.equal(model.weight, before)
    assert float(enorm.objective()) == 0.0


def test_parameters_of_training_mode_only_count() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.aux = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Any:
            h = self.body(x).relu()
            return (self.head(h), self.aux(h)) if self.training else self.head(h)

    torch.manual_seed(0)
    model, x = Auxiliary().double(), torch.randn(8, 3, dtype=torch.float64)
    before = [y.detach() for y in copy.deepcopy(model)(x)]
    gamma = model.aux[1].weight.detach().clone()
    ENorm(model, x).step()
    for y, old in zip(copy.deepcopy(model)(x), before, strict=True):
        torch.testing.assert_close(y, old, rtol=1e-10, atol=1e-10)
    into, out = model.aux[1].weight.abs(), model.aux[3].weight.norm(dim=0)
    torch.testing.assert_close(into, out, rtol=1e-12, atol=0)
    assert not torch.equal(gamma, model.aux[1].weight)
    held = copy.deepcopy(model)
    ENorm(held, x, last_layer=False).step()
    assert all(torch.equal(p, q) for p, q in zip(held.parameters(), model.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_cuda_graph_replays_the_step(kind: str) -> None:
    model, (x, y) = net().double().cuda(), (t.cuda() for t in batch())
    x = x.double()
    made: dict[str, Any] = {
        "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
        "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, capturable=True),
    }
    twin = copy.deepcopy(model)
    optimizers = [made[kind](m) for m in (model, twin)]
    steps = [ENorm(m, x[:1], o, c=1.1) for m, o in zip((model, twin), optimizers, strict=True)]

    def train(m: nn.Module, optimizer: torch.optim.Optimizer, enorm: ENorm) -> None:
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(m(x), y).backward()
        optimizer.step()
        enorm.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(model, optimizers[0], steps[0])
            train(twin, optimizers[1], steps[1])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train(model, optimizers[0], steps[0])
    for _ in range(10):
        graph.replay()
        train(twin, optimizers[1], steps[1])
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda_step_agrees_with_the_cpu_and_notices_a_move() -> None:
    model, (x, _) = net().double(), batch()
    moved = copy.deepcopy(model).cuda()
    here, there = ENorm(model, x[:1].double()), ENorm(moved, x[:1].double().cuda())
    for _ in range(3):
        here.step()
        try:
            torch.cuda.set_sync_debug_mode("error")
            there.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for p, q in zip(model.parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(p, q.cpu(), rtol=1e-12, atol=1e-14)
    moved.cpu()
    with pytest.raises(PathCondError, match="after model.to"):
        there.step()
