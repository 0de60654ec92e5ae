"""Scales where recorders forget them: constants made from parameters, shared memory, zeros, branches not taken."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import Lambda

IDS, ZERO = torch.tensor([1, 3, 2]), torch.zeros(1, dtype=torch.long)
X, TOKENS = torch.randn(3, 5, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)


def normal(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def linear(n: int, m: int) -> nn.Linear:
    return nn.Linear(n, m)


def change(model: nn.Module, x: Tensor, graph: pathcond.ScaleGraph) -> float:
    """Largest change of an output under random scales, in both modes."""
    u = torch.randn(graph.units, dtype=torch.float64)
    worst = 0.0
    for training in (False, True):
        model.train(training)
        with torch.no_grad():
            before = copy.deepcopy(model(x))
            pathcond.apply_scales_(model, graph, u)
            after = model(x)
            pathcond.apply_scales_(model, graph, -u)
        for a, b in zip(*(out if isinstance(out, tuple) else (out,) for out in (before, after)), strict=True):
            worst = max(worst, float((a - b).abs().amax()))
    return worst


# ---- an embedding of constant indices


EMBEDDED = {
    "relu": lambda s, i: s.c(F.relu(s.e(i))) + s.d(F.relu(s.e(ZERO))),
    "number": lambda s, i: s.c(F.relu(s.e(i))) + s.d(s.e(ZERO) * 0.5),
    "gate": lambda s, i: s.c(F.relu(s.e(i) + s.e(IDS)) * torch.sigmoid(s.e(IDS))) + s.d(s.e(ZERO)),
    "order": lambda s, i: s.c(F.relu(s.e(i))[:, s.e(ZERO)[0].argsort()]) + s.d(s.e(i)),
    "weight": lambda s, i: s.c(F.relu(s.e(i))) + s.d(F.linear(s.e(ZERO), s.d.weight.new_ones(6, 6))),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_embeddings_of_constants_keep_their_scale(name):
    torch.manual_seed(0)
    model = Lambda(EMBEDDED[name], e=nn.Embedding(10, 6), c=linear(6, 4), d=linear(6, 4)).double()
    graph = pathcond.extract_graph(model, IDS)
    assert change(model, IDS, graph) < 1e-12
    assert graph.frozen_units >= 6
    with pytest.raises(pathcond.UnsupportedOpError):
        pathcond.extract_graph(model, IDS, strict=True)


def test_constant_embeddings_do_not_freeze_what_they_multiply():
    model = Lambda(lambda s, x: s.c(F.relu(s.a(x)) * (s.e(ZERO) * 0.5)), a=linear(5, 6), e=nn.Embedding(2, 6),
                   c=linear(6, 2)).double()  # fmt: skip
    graph = pathcond.extract_graph(model, X)
    assert graph.units == 6
    assert change(model, X, graph) < 1e-12


# ---- memory of a parameter that something else shows


def by_buffer(model, weight):
    model.register_buffer("back", weight.t())


def by_attribute(model, weight):
    model.back = weight.t()


def by_other_dtype(model, weight):
    model.kept = {"bits": [weight.view(torch.int64)]}
    model._run = lambda s, x: _tied(s, x, s.kept["bits"][0].view(torch.float64).t())


def by_part(model, weight):
    row = weight[2]
    model._run = lambda s, x: s.o(F.relu(s.a(x))) + s.m(F.relu(s.a(x))).sum() + row.sum()


def _tied(s, x, back):
    return s.o(F.relu(F.linear(F.relu(s.m(F.relu(s.a(x)))), back)))


@pytest.mark.parametrize("share", [by_buffer, by_attribute, by_other_dtype, by_part])
def test_memory_shared_with_other_tensors_is_held(share):
    torch.manual_seed(0)
    model = Lambda(lambda s, x: _tied(s, x, s.back), a=linear(5, 8), m=linear(8, 6), o=linear(8, 5)).double()
    share(model, model.m.weight.detach())
    graph = pathcond.extract_graph(model, X)
    assert "m.weight" not in graph.params
    assert any("'m.weight' shares memory" in f.reason for f in graph.frozen)
    assert change(model, X, graph) < 1e-12


def test_shared_memory_that_is_never_read_holds_nothing():
    model = Lambda(lambda s, x: s.b(F.relu(s.a(x))), a=linear(5, 8), b=linear(8, 2)).double()
    model.register_buffer("other", model.a.weight.detach().t())
    assert pathcond.extract_graph(model, X).units == 8


# ---- zeros that a parameter is added to


def _cat(s, x):
    h = torch.cat([torch.zeros(2, 1, 8, dtype=x.dtype), F.relu(s.a(x))], 1) + s.p
    return s.c(h[:, 1:].mean(1)), h[:, 0]


def _written(s, x):
    h = F.relu(s.a(x)).clone()
    h[:, 0] = 0
    h = s.p + h
    return s.c(h[:, 1:].mean(1)), torch.sigmoid(h[:, 0])


def _maximum(s, x):
    h = torch.zeros(2, 5, 8, dtype=x.dtype)
    h[:, 1:] = s.a(x)
    h = torch.maximum(h, s.p.view(1, 1, -1))
    return s.c(h[:, 1:].mean(1)), h[:, 0].exp()


@pytest.mark.parametrize("forward", [_cat, _written, _maximum])
@pytest.mark.parametrize("entries", [1, 8])
def test_zeros_take_the_scale_of_what_is_added(forward, entries):
    torch.manual_seed(0)
    model = Lambda(forward, a=linear(5, 8), c=linear(8, 3))
    model.p = normal(entries)
    model = model.double()
    graph = pathcond.extract_graph(model, TOKENS)
    assert change(model, TOKENS, graph) < 1e-12
    assert graph.units == 0


def test_padded_tokens_stay_free():
    model = Lambda(lambda s, x: s.c(F.relu(F.pad(F.relu(s.a(x)), (0, 0, 1, 0)) + s.p)), a=linear(5, 8), c=linear(8, 3))
    model.p = normal(5, 8)
    model = model.double()
    graph = pathcond.extract_graph(model, TOKENS)
    assert graph.units == 8
    assert change(model, TOKENS, graph) < 1e-12


# ---- parameters that no pass reads


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = linear(5, 8), nn.ModuleDict({"a": linear(8, 2), "b": linear(8, 3)})

    def forward(self, x: Tensor, task: str = "a") -> Tensor:
        return self.heads[task](F.relu(self.body(x)))


def test_parameters_not_reached_are_named():
    graph = pathcond.extract_graph(Heads().double(), X)
    assert graph.units == 8
    assert not graph.exact
    assert "'heads.b.weight', 'heads.b.bias'" in graph.notes[0]
    both = Lambda(lambda s, x: (s.m(x, "a"), s.m(x, "b")), m=Heads()).double()
    graph = pathcond.extract_graph(both, X)
    assert graph.exact
    assert not graph.notes
    assert change(both, X, graph) < 1e-12


def test_parameters_not_reached_do_not_matter_without_units():
    graph = pathcond.extract_graph(Lambda(lambda s, x: s.a(x), a=linear(5, 2), b=linear(2, 2)).double(), X)
    assert graph.exact
    assert not graph.notes


# ---- counting


def _weight_norm() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(5, 8, bias=False))


UNRULED = {
    "buffer": lambda s, x: F.linear(x, s.fixed),
    "einsum": lambda s, x: torch.einsum("bi,oi->bo", x, s.w),
    "einsum of a view": lambda s, x: torch.einsum("bi,hoi->bho", x, s.w.view(2, 4, 5)).flatten(1),
    "slice": lambda s, x: x @ s.long.t()[:, :8],
    "weight norm": lambda s, x: s.normed(x),
    "lstm": lambda s, x: s.lstm(x)[0],
}


def _unruled(forward) -> nn.Module:
    model = Lambda(forward, normed=_weight_norm(), lstm=nn.LSTM(5, 8), out=linear(8, 2))
    model.w, model.long = normal(8, 5), normal(9, 5)
    model.register_buffer("fixed", torch.randn(8, 5))
    return model.double()


@pytest.mark.parametrize("name", UNRULED)
def test_units_of_layers_without_a_rule_are_counted(name):
    model = _unruled(lambda s, x: s.out(F.relu(UNRULED[name](s, x))))
    graph = pathcond.extract_graph(model, X)
    assert (graph.units, graph.frozen_units) == (0, 4 if name == "einsum of a view" else 8)
    with pytest.raises(pathcond.UnsupportedOpError, match="leaves"):
        pathcond.extract_graph(model, X, strict=True)
    last = _unruled(UNRULED[name])
    assert pathcond.extract_graph(last, X, strict=True).frozen_units == 0


def test_fixed_layers_leave_their_factor_free():
    model = _unruled(lambda s, x: s.out(F.relu(F.linear(x, s.w)) * F.linear(x, s.fixed)))
    graph = pathcond.extract_graph(model, X)
    assert (graph.units, graph.frozen_units) == (8, 8)
    assert change(model, X, graph) < 1e-12


@pytest.mark.parametrize("last", [nn.LogSoftmax(-1), nn.Tanh(), nn.BatchNorm1d(2, affine=False)])
def test_outputs_before_a_last_function_are_no_hidden_units(last):
    model = nn.Sequential(linear(5, 8), nn.ReLU(), linear(8, 2), last).double()
    graph = pathcond.extract_graph(model, X, strict=True)
    assert (graph.units, graph.frozen_units) == (8, 0)
    model.append(linear(2, 2).double())
    assert pathcond.extract_graph(model, X).frozen_units == 2
