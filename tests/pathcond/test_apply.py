"""Scales applied to parameters and optimizer state; the check that the function is kept."""

import copy
import itertools
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

import pathcond
from pathcond.apply import OPTIMIZER_STATE
from tests.cases import BY_NAME, Lambda, mlp, random_scales, rescaled
from tests.cases import one_hidden_layer as net


@contextmanager
def unchanged(model: nn.Module, optimizer: optim.Optimizer | None = None) -> Iterator[None]:
    """Neither the model's state nor the optimizer's is another one after the block."""
    before = copy.deepcopy((model.state_dict(), optimizer and optimizer.state_dict()["state"]))
    yield
    after = model.state_dict(), optimizer and optimizer.state_dict()["state"]
    assert all(bool(torch.as_tensor(a == b).all()) for a, b in zip(*map(tree_leaves, (before, after)), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_factors_and_dtype(dtype):
    model, x = mlp(3, 4, 2).to(dtype), torch.ones(1, 3, dtype=dtype)
    before = {n: p.detach().clone().double() for n, p in model.named_parameters()}
    u = torch.tensor([0.5, -0.3, 1.1, 0.0], dtype=torch.float64)
    pathcond.apply_scales_(model, pathcond.extract_graph(model, x), u)
    scale = u.exp()
    factors = {"0.weight": scale[:, None], "0.bias": scale, "2.weight": 1 / scale, "2.bias": torch.ones(())}
    for name, p in model.named_parameters():
        assert p.dtype == dtype
        exact = before[name] * factors[name]
        torch.testing.assert_close(p.detach().double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_gradients_flags_and_identity_stay():
    model, x = mlp(3, 4, 2), torch.ones(1, 3)
    model[0].weight.requires_grad_(False)
    model(x).sum().backward()
    ids = [id(p) for p in model.parameters()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    graph = pathcond.extract_graph(model, x)
    with torch.inference_mode():
        pathcond.apply_scales_(model, graph, torch.ones(4))
    assert [id(p) for p in model.parameters()] == ids
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    for p, g in zip(model.parameters(), grads, strict=True):
        assert p.grad is g is None or torch.equal(p.grad, g)
    model(x).sum().backward()  # the parameters still work


@pytest.mark.parametrize(("log", "what"), [(15.0, "overflow"), (-15.0, "vanish")])
def test_overflow_is_refused_and_nothing_written(log, what):
    model, x = mlp(3, 4, 2).half(), torch.ones(1, 3).half()
    graph = pathcond.extract_graph(model, x)
    scales = torch.tensor([log, 0, 0, 0])
    words = rf"float16.*would {what}.*clamp=.*model.float\(\)"
    with unchanged(model), pytest.raises(pathcond.ApplyError, match=words):
        pathcond.apply_scales_(model, graph, scales)
    before = model[0].weight.clone()
    pathcond.apply_scales_(model, graph, scales, force=True)
    assert not torch.equal(model[0].weight, before)


def test_wrong_scales_and_models_are_refused():
    case = BY_NAME["mlp"]
    model, x = case.model(), case.input()
    graph = pathcond.extract_graph(model, x)
    bad = torch.zeros(9)
    bad[2] = math.nan
    for u, words in ((torch.ones(3), r"shape \(9,\).*got shape \(3,\)"), (bad, "1 NaN"), (None, "expected log_scales")):
        with unchanged(model), pytest.raises(pathcond.ApplyError, match=words):
            pathcond.apply_scales_(model, graph, u)
    with pytest.raises(pathcond.ApplyError, match=r"'0\.weight' of shape \(4, 3\), got shape \(5, 3\)"):
        pathcond.apply_scales_(mlp(3, 5, 5, 2).double(), graph, torch.ones(9))
    with pytest.raises(pathcond.ApplyError, match="no such parameter"):
        pathcond.apply_scales_(nn.Linear(3, 4), graph, torch.ones(9))


# ---- optimizer state

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01, eps=1e-30),
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=0.01, eps=1e-30, weight_decay=0.0, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01, eps=1e-30),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01, eps=1e-30),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01, eps=1e-30),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, eps=1e-30, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01, eps=1e-30),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.1, eps=1e-30),
}
if hasattr(optim, "Muon"):  # since torch 2.9
    OPTIMIZERS["Muon"] = lambda p: optim.Muon([q for q in p if q.ndim == 2], lr=0.01, weight_decay=0.0)


def state_net() -> nn.Sequential:
    torch.manual_seed(0)
    return mlp(4, 6, 5, 3).double()


X = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients_(model: nn.Module, divide_by: dict[str, Tensor] | None = None) -> None:
    """Gradients at a fixed point; divided by factors they are those of a model rescaled by these factors."""
    model.zero_grad()
    model(X).square().mean().backward()
    for name, factor in (divide_by or {}).items():
        model.get_parameter(name).grad.div_(factor)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_what_the_rescaled_model_would_have_given(name):
    """The reference optimizer sees, from its first step on, the gradients that the rescaled model has.

    The learning rate is zero at first, so that both see the same gradients up to the factors; then the state and, for
    one step, the update of the weights must agree.
    """
    assert {kind.__name__ for kind in OPTIMIZER_STATE} == {name.split()[0] for name in OPTIMIZERS}
    model, seen = state_net(), state_net()
    optimizer, reference = (OPTIMIZERS[name](list(m.parameters())) for m in (model, seen))
    rate = optimizer.param_groups[0]["lr"]
    graph = pathcond.extract_graph(model, X)
    u = random_scales(graph)
    scaled = rescaled(model, graph)
    factors = {n: p.detach() / model.get_parameter(n).detach() for n, p in scaled.named_parameters()}
    for m, o, divide_by in ((model, optimizer, None), (seen, reference, factors)):
        o.param_groups[0]["lr"] = 0.0
        for _ in range(6):  # RAdam starts as SGD for five steps
            gradients_(m, divide_by)
            o.step()
        o.param_groups[0]["lr"] = rate
    pathcond.apply_scales_(model, graph, u, optimizer=optimizer)
    moved, atol = 0, 1e-25 if name == "Adamax" else 0.0  # Adamax adds eps to gradients that are zero
    for (n, p), q in zip(model.named_parameters(), seen.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), scaled.get_parameter(n).detach(), rtol=0, atol=0)
        assert optimizer.state[p].keys() == reference.state[q].keys()
        for key, value in optimizer.state[p].items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(value, reference.state[q][key], rtol=1e-9, atol=atol, msg=f"{n} {key}")
                moved += value.shape == p.shape
    assert moved > 0 or name == "SGD"
    seen.load_state_dict(scaled.state_dict())
    for m, o in ((model, optimizer), (seen, reference)):
        gradients_(m)
        o.step()
    for p, q, old in zip(model.parameters(), seen.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
        assert not torch.equal(p, old) or name == "Muon"


class Own(optim.SGD):
    """An optimizer with a state of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["curvature"] = torch.ones_like(p)
        return super().step(closure)


@pytest.mark.parametrize("make", [optim.Adafactor, optim.ASGD, optim.Rprop, Own])
def test_unknown_state_is_refused_before_anything_is_changed(make):
    model = state_net()
    optimizer = make(model.parameters())
    gradients_(model)
    optimizer.step()
    for call in (
        lambda: pathcond.rescale_(model, X, optimizer=optimizer),
        lambda: pathcond.apply_scales_(model, pathcond.extract_graph(model, X), torch.ones(11), optimizer=optimizer),
        lambda: pathcond.Teleport(model, X, every=1, optimizer=optimizer),
    ):
        with unchanged(model, optimizer), pytest.raises(pathcond.PathCondError, match="optimizer=None"):
            call()


# ---- files


def test_saved_scales_fit_an_average(tmp_path, monkeypatch):
    case = BY_NAME["stage"]
    model, x = case.model(), case.input()
    average = optim.swa_utils.AveragedModel(model)
    average.update_parameters(case.model(seed=5))
    expected = copy.deepcopy(average.module).eval()(x)
    report = pathcond.rescale_(model, x, damping=0.5)
    report.save(tmp_path / "scales.safetensors")

    def half(tensors, path, **_):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    with pytest.raises(OSError, match="no space"):
        report.save(tmp_path / "other")
    scales = pathcond.load_scales(tmp_path / "scales.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["scales.safetensors"]
    assert scales.by_module().keys() == report.scales.keys()
    assert all(torch.equal(scales.by_module()[n], t) for n, t in report.scales.items())
    pathcond.apply_scales_(average.module, scales)
    assert not torch.equal(average.module.head[2].weight, model.head[2].weight)
    torch.testing.assert_close(average.module.eval()(x), expected, rtol=1e-10, atol=1e-10)
    again = pathcond.rescale_(case.model(), x, graph=scales.graph, damping=0.5)  # the graph serves too
    torch.testing.assert_close(again.solution.log_scales, report.solution.log_scales)
    assert pathcond.rescale_(case.model(), x, graph=scales.graph).moved == 0  # it has shortcuts


def test_files_that_hold_no_scales(tmp_path):
    from safetensors.torch import save_file

    save_file({"u": torch.ones(3)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no scales")
    for name in ("other", "text", "missing"):
        with pytest.raises(pathcond.PathCondError, match=f"report.save.*{name}"):
            pathcond.load_scales(tmp_path / f"{name}.safetensors")


# ---- the check


Output = make_dataclass("Output", ["y"])


def data() -> Tensor:
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


def hidden(s, x: Tensor) -> Tensor:
    """Reads a weight in a way that the recorder does not see."""
    y = s.b(F.relu(s.a(x)))
    return y if isinstance(x, FakeTensor) else y + s.a.weight.sum()


@pytest.mark.parametrize("wrap", [lambda y: y, Output, lambda y: {"y": (y,)}])
def test_another_function_is_refused_and_the_weights_are_put_back(wrap, monkeypatch):
    """Neither weights, optimizer state nor random numbers change, though the check looks for other reasons too."""
    model = net(lambda s, x: wrap(hidden(s, x)))
    model.other = nn.Linear(8, 3)  # a head that is not used does not turn the check off
    optimizer = optim.Adam(model.parameters())
    hidden(model, data()).sum().backward()
    optimizer.step()
    weights = model.a.weight.clone()
    drawn = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("random state of all GPUs changed"))
    words = r"changed by .* restored.*submodule.*check=False"
    with unchanged(model, optimizer), pytest.raises(pathcond.PathCondError, match=words):
        pathcond.rescale_(model, data(), optimizer=optimizer)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert pathcond.rescale_(model, data(), check=False).units == 8
    assert not torch.equal(model.a.weight, weights)


def test_random_numbers_stay():
    model = net(lambda s, x: s.b(F.dropout(F.relu(s.a(x)))) * random.random() * np.random.rand())  # noqa: NPY002
    python, numpy, drawn = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    report = pathcond.rescale_(model, data())
    assert report.output_change < 1e-5
    assert "draws random numbers of Python or NumPy" in report.notes[0]
    assert random.getstate() == python
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy, strict=True))  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_forward_pass_that_goes_on_from_call_to_call_is_noted():
    count = itertools.count(1)
    model = net(lambda s, x: s.b(F.relu(s.a(x))) * next(count))
    before = model.a.weight.clone()
    report = pathcond.rescale_(model, data())
    assert report.output_change > 0.1
    assert "random" in report.notes[0]
    once = net()
    pathcond.rescale_(once, data())
    assert torch.equal(model.a.weight, once.a.weight)  # rescaled once, not twice
    assert not torch.equal(model.a.weight, before)


def test_outputs_that_cancel_are_no_other_function():
    model = net(lambda s, x: s.b(F.relu(s.a(x))) - s.d(F.relu(s.c(x))))
    model.c, model.d = nn.Linear(5, 8), nn.Linear(8, 2)
    model.c.load_state_dict(model.a.state_dict())
    model.d.load_state_dict(model.b.state_dict())
    report = pathcond.rescale_(model, data())  # zero before, rounding after
    assert report.units == 16


def test_an_input_written_in_place_stays():
    statistics = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    for model in (net(lambda s, x: s.b(F.relu(s.a(x.sub_(1.0))))), statistics):
        x = data()
        assert pathcond.rescale_(model, x).output_change < 1e-5
        assert torch.equal(x, data())


def test_nan_is_seen():
    calls = itertools.count()

    def forward(s, x):
        h = s.b(F.relu(s.a(x)))
        late = not isinstance(x, FakeTensor) and next(calls) == 1
        return h, h * (float("nan") if late else 1.0)

    with pytest.raises(pathcond.PathCondError, match="changed by inf"):
        pathcond.rescale_(net(forward), data())
    report = pathcond.rescale_(net(lambda s, x: (s.b(F.relu(s.a(x))), x * float("nan"))), data())
    assert report.output_change < 1e-5  # it was NaN before
    with pytest.raises(pathcond.PathCondError, match="changed by"):  # beside an infinite entry
        pathcond.rescale_(net(lambda s, x: torch.cat((hidden(s, x), torch.full((3, 1), math.inf)), 1)), data())


@pytest.mark.parametrize("check", [True, False])
def test_weights_that_autocast_keeps_copies_of(check):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)).eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(x)
        report = pathcond.rescale_(model, x, check=check)
        after = model(x)
    assert report.units == 32
    assert (report.output_change or 0.0) < 0.03
    assert (after - before).abs().max() < 0.03 * before.abs().max()


@pytest.mark.parametrize(
    ("call", "error", "raised", "words"),
    [
        *((call, KeyboardInterrupt, KeyboardInterrupt, "only once") for call in (1, 2, 3, 4)),
        (2, RuntimeError, pathcond.RecordError, "only once.*restored"),  # after the weights were written
    ],
)
def test_a_forward_pass_that_stops_leaves_the_weights(call, error, raised, words):
    calls = itertools.count(1)

    def forward(s, x):
        counts = error is KeyboardInterrupt or not isinstance(x, FakeTensor)
        if counts and next(calls) == call:
            raise error("only once")
        return s.b(F.relu(s.a(x)))

    model = net(forward)
    with unchanged(model), pytest.raises(raised, match=words):
        pathcond.rescale_(model, data())


def test_outputs_with_few_digits_left_or_rounded():
    torch.manual_seed(0)
    deep = [layer for _ in range(105) for layer in (nn.Linear(16, 16, bias=False), nn.ReLU())]
    model = nn.Sequential(*deep, nn.Linear(16, 2, bias=False))
    x = torch.randn(3, 16)
    assert 0 < model(x).abs().max() < torch.finfo(torch.float32).tiny
    pathcond.rescale_(model, x)
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), Lambda(lambda s, h: (h * 127).round()))
        pathcond.rescale_(model, torch.randn(1, 3, 48, 48))
        pathcond.rescale_(net(lambda s, x: s.b(F.relu(s.a(x)).bfloat16().float())), data())
