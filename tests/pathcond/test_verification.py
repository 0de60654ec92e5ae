"""The check of a rescaling: what it compares, what it leaves alone, and what it does when the function changed."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import pathcond
from pathcond.errors import PathCondError
from pathcond.verification import Check
from tests.cases import Lambda


@dataclass
class Output:
    y: Tensor


def net(forward=lambda s, x: s.b(F.relu(s.a(x))), dtype=torch.float32) -> Lambda:
    torch.manual_seed(0)
    return Lambda(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 2)).to(dtype)


def data(dtype=torch.float32) -> Tensor:
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)


def hidden(s, x: Tensor) -> Tensor:
    """Reads a weight in a way that the recorder does not see."""
    y = s.b(F.relu(s.a(x)))
    return y if isinstance(x, FakeTensor) else y + s.a.weight.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wrap", [lambda y: y, Output, lambda y: {"y": (y,)}])
def test_another_function_is_refused_and_the_weights_are_put_back(dtype, wrap):
    model = net(lambda s, x: wrap(hidden(s, x)), dtype)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(pathcond.PathCondError, match=r"changed by .* restored.*submodule.*check=False"):
        pathcond.rescale_(model, data(dtype))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert pathcond.rescale_(model, data(dtype), check=False).units == 8
    assert not torch.equal(model.a.weight, state["a.weight"])


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


def test_a_failure_after_the_weights_were_written_puts_them_back():
    def forward(s, x):
        if not isinstance(x, FakeTensor) and next(calls) == 1:
            raise RuntimeError("only once")
        return s.b(F.relu(s.a(x)))

    calls = itertools.count()
    model = net(forward)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(pathcond.RecordError, match="only once.*restored"):
        pathcond.rescale_(model, data())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_an_input_written_in_place_stays():
    for forward in (lambda s, x: s.b(F.relu(s.a(x.sub_(1.0)))), lambda s, x: s.b(F.relu(s.a(F.relu(x, inplace=True))))):
        x = data()
        assert pathcond.rescale_(net(forward), x).output_change < 1e-5
        assert torch.equal(x, data())


def test_random_numbers_of_python_and_numpy_stay():
    model = net(lambda s, x: s.b(F.relu(s.a(x))) * random.random() * np.random.rand())  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    report = pathcond.rescale_(model, data())
    assert report.output_change < 1e-5
    assert not report.notes
    assert random.getstate() == python
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy, strict=True))  # noqa: NPY002


@pytest.mark.parametrize("forward", [lambda s, x: s.b(F.dropout(F.relu(s.a(x)))), hidden])
def test_random_numbers_of_torch_stay_also_on_devices_without_the_model(forward, monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("random state of all GPUs changed"))
    model = Lambda(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 2))
    state = torch.get_rng_state()
    if forward is hidden:  # which makes the check look for other reasons, with random numbers of its own
        with pytest.raises(PathCondError, match="restored"):
            pathcond.rescale_(model, data())
    else:
        assert pathcond.rescale_(model, data()).output_change < 1e-5
    assert torch.equal(torch.get_rng_state(), state)


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


def test_a_head_that_is_not_used_does_not_turn_the_check_off():
    model, x = net(), data()
    model.other = nn.Linear(8, 3)
    graph = pathcond.extract_graph(model, x)
    assert (graph.exact, graph.approximate) == (False, False)
    check = Check(model, x)
    check.save(graph.params)
    weight = model.b.weight.detach().clone()

    def spoil():
        with torch.no_grad():
            model.b.weight.mul_(2.0)

    spoil()
    with pytest.raises(PathCondError, match="expected the same function"):
        check.after(graph, spoil)
    assert torch.equal(model.b.weight, weight)


def test_weights_that_autocast_keeps_copies_of():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)).eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(x)
        report = pathcond.rescale_(model, x)
        after = model(x)
    assert report.units == 32
    assert report.output_change < 0.03
    assert (after - before).abs().max() < 0.03 * before.abs().max()


@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_weights(call, error):
    calls = itertools.count(1)

    def forward(s, x):
        if next(calls) == call:
            raise error
        return s.b(F.relu(s.a(x)))

    model = net(forward)
    weight = model.a.weight.detach().clone()
    with pytest.raises(error):
        pathcond.rescale_(model, torch.randn(3, 5))
    assert torch.equal(model.a.weight, weight)


def test_an_interrupt_while_weights_are_written(monkeypatch):
    model = net()
    weights = [p.detach().clone() for p in model.parameters()]

    def half(model, *_, **__):
        with torch.no_grad():
            model.a.weight.mul_(2.0)
        raise KeyboardInterrupt

    monkeypatch.setattr("pathcond.rescale.scale_parameters_", half)
    with pytest.raises(KeyboardInterrupt):
        pathcond.rescale_(model, torch.randn(3, 5))
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))


def test_outputs_with_few_digits_left():
    torch.manual_seed(0)
    deep = [layer for _ in range(105) for layer in (nn.Linear(16, 16, bias=False), nn.ReLU())]
    model = nn.Sequential(*deep, nn.Linear(16, 2, bias=False))
    x = torch.randn(3, 16)
    assert 0 < model(x).abs().max() < torch.finfo(torch.float32).tiny
    pathcond.rescale_(model, x)


def test_outputs_that_are_rounded():
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), Lambda(lambda s, h: (h * 127).round()))
        pathcond.rescale_(model, torch.randn(1, 3, 48, 48))
