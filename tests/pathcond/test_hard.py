"""Code that tempts a recorder to believe too much: the function must hold, and the model must be left as it was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathcond
from tests.cases import Lambda


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


class Net(Lambda):
    """fc1, a few parameters, and a function of the module and fc1's activation."""

    def __init__(self, tail) -> None:
        super().__init__(lambda s, x: tail(s, F.relu(s.fc1(x)), x), fc1=nn.Linear(6, 8), fc2=nn.Linear(8, 5))
        self.w, self.v, self.b, self.one = weight(8, 5), weight(1, 8), weight(8), weight(1)
        self.c, self.zero_dim = weight(4, 8, 1, 1), weight()
        self.register_buffer("state", torch.zeros(3, 8))
        self.cache = None
        self.loose = torch.zeros(4, dtype=torch.float64)
        self.n = 0


def _cached(s, h, x):
    if s.cache is None:
        s.cache = torch.linspace(0.5, 1, 8, dtype=x.dtype)
    return s.fc2(h * s.cache)


def _remember(s, h, x):
    out = s.fc2(h) + (s.cache.sum() if s.cache is not None else 0)
    s.cache = h.detach()
    return out


def _buffer(s, h, x):
    out = s.fc2(h) + s.state.sum()
    s.state.copy_(h)
    return out


def _count(s, h, x):
    s.n += 1
    s.loose += 1
    s.loose.mul_(0.5)
    return s.fc2(h) + s.loose.sum()


def _int_copy(s, h, x):
    q = torch.zeros(3, 8, dtype=torch.long)
    q[:] = h * 10
    return s.fc2(q.double())


TAILS = {
    "flipped weight": lambda s, h, x: h @ s.w.flip(0),
    "rolled weight": lambda s, h, x: h @ s.w.roll(1, 0),
    "rotated weight": lambda s, h, x: h @ s.w.rot90(2),
    "weight by list": lambda s, h, x: h @ s.w[[3, 1, 2, 0, 7, 6, 5, 4]],
    "rolled bias": lambda s, h, x: s.fc2(F.relu(h + s.b.roll(1))),
    "flipped gain": lambda s, h, x: s.fc2(F.relu(h * s.b.flip(0))),
    "shuffled kernel": lambda s, h, x: F.conv2d(h[:, :, None, None], F.channel_shuffle(s.c, 2)).flatten(1),
    "random order": lambda s, h, x: s.fc2(h[:, torch.randperm(8)]),
    "made norm weight": lambda s, h, x: s.fc2(h) + F.layer_norm(x[:, :1].expand(3, 8), (8,), h[0]).sum(),
    "made norm bias": lambda s, h, x: s.fc2(h) + F.layer_norm(s.fc1(x), (8,), None, h[0]).sum(),
    "made batch norm": lambda s, h, x: (
        s.fc2(h) + F.batch_norm(torch.cat([x, x], 1)[:, :8], None, None, h[0], h[1], True).sum()
    ),
    "made slope": lambda s, h, x: s.fc2(h) + F.prelu(torch.cat([x, x], 1)[:, :8], h[0]).sum(),
    "max by keyword": lambda s, h, x: s.fc2(h) + torch.max(x, other=h[:, :6]).sin().sum(),
    "integer copy": _int_copy,
    "integer sum": lambda s, h, x: s.fc2(h.sum(0, dtype=torch.long).double()),
    "expanded weight": lambda s, h, x: F.linear(h, s.v.expand(5, 8)),
    "expanded bias": lambda s, h, x: s.fc2(F.relu(h + s.one.expand(8))),
    "expanded gain": lambda s, h, x: s.fc2(F.relu(h * s.one.expand(8))),
    "one bias for all": lambda s, h, x: s.fc2(F.relu(F.linear(h, s.w @ s.w.T, s.one))),
    "one bias, own weight": lambda s, h, x: F.linear(F.relu(F.linear(h, s.w.t(), s.one)), s.w),
    "bias by row": lambda s, h, x: F.relu(torch.addmm(s.b[:3, None], h, s.w)),
    "bias without axes": lambda s, h, x: s.fc2(F.relu(torch.add(h, s.zero_dim))),
    "empty start": lambda s, h, x: s.fc2(torch.cat([torch.empty(0), h], 1)),
    "other dtype": lambda s, h, x: s.fc2(h) + h.view(torch.int64).sum() * 0,
    "slice, relu, view": lambda s, h, x: s.fc2(F.relu(s.fc1(x)[:, :4]).view(1, 12)[:, :8]),
    "lazy cache": _cached,
    "memory": _remember,
    "buffer as memory": _buffer,
    "loose tensor": _count,
}


def twice(model: nn.Module, x: torch.Tensor, training: bool) -> torch.Tensor:
    model = copy.deepcopy(model).train(training)
    torch.manual_seed(5)
    with torch.no_grad():
        return torch.stack([model(x), model(x)])


@pytest.mark.parametrize("name", TAILS)
def test_function_is_kept(name):
    torch.manual_seed(0)
    model = Net(TAILS[name]).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    graph = pathcond.extract_graph(model, x)
    before = [twice(model, x, mode) for mode in (False, True)]
    pathcond.apply_scales_(model, graph, torch.randn(graph.units, dtype=torch.float64))
    for mode, expected in zip((False, True), before, strict=True):
        torch.testing.assert_close(twice(model, x, mode), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["lazy cache", "memory", "buffer as memory", "loose tensor"])
def test_nothing_is_left_behind(name):
    model, x = Net(TAILS[name]).double(), torch.randn(3, 6, dtype=torch.float64)
    pathcond.extract_graph(model, x)
    pathcond.path_magnitudes(model, x)
    assert model.cache is None
    assert model.n == 0
    assert type(model.loose) is torch.Tensor
    assert model.loose.tolist() == [0.0] * 4
    assert model.state.abs().sum() == 0
    report = pathcond.rescale_(model, x)
    assert report.output_change < 1e-9
    assert type(model(x)) is torch.Tensor


def test_nothing_is_left_behind_by_a_refusal():
    def tail(s, h, x):
        s.cache = h
        return s.fc2(h) if s.cache.sum() > 0 else h

    model = Net(tail).double()
    with pytest.raises(pathcond.RecordError, match="depends on the values"):
        pathcond.extract_graph(model, torch.randn(3, 6, dtype=torch.float64))
    assert model.cache is None


def test_old_style_hooks_and_recurrent_layers_stay_real():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LSTM(4, 3)).double()
    x = torch.randn(2, 4).double()
    pathcond.extract_graph(Lambda(lambda s, x: s.m(x)[0], m=model), x)
    assert all(type(w) is nn.Parameter for w in model[2]._flat_weights)


def test_a_mode_that_cannot_be_recorded_is_no_promise():
    model = Lambda(lambda s, x: s.a(x).sin() if s.training and torch.rand(1).item() < 2 else s.b(F.relu(s.a(x))),
                   a=nn.Linear(3, 4), b=nn.Linear(4, 2)).eval()  # fmt: skip
    graph = pathcond.extract_graph(model, torch.ones(1, 3))
    assert not graph.exact
    assert "training mode" in graph.notes[0]


@pytest.mark.parametrize(("dtype", "u"), [(torch.bfloat16, 3.0), (torch.float64, 100.0)])
def test_parameters_without_axes_are_scaled(dtype, u):
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.s = nn.Linear(6, 1), nn.Linear(1, 5), nn.Parameter(torch.randn(()))

        def forward(self, x):
            return self.b(F.relu(self.a(x) + self.s))

    model, x = Shift().to(dtype), torch.ones(1, 6, dtype=dtype)
    before = model.s.item()
    graph = pathcond.extract_graph(model, x)
    pathcond.apply_scales_(model, graph, torch.full((1,), u))
    assert model.s.item() == pytest.approx(before * float(torch.tensor(u / 2).double().exp()), rel=1e-2)
