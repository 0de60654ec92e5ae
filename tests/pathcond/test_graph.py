"""Scale graphs: which units are free, which are frozen and why, and that any scales keep the function."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pathcond
from pathcond import graph
from tests.cases import BY_NAME, Lambda, assert_function_kept, mlp, outputs, random_scales

X = torch.randn(3, 5, dtype=torch.float64)


# ---- options


def test_strict_and_reasons_name_the_operation_and_the_module():
    case = BY_NAME["mlp_tanh"]
    with pytest.raises(pathcond.UnsupportedOpError, match=r"`tanh` at '1'.*register_rule"):
        pathcond.extract_graph(case.model(), case.input(), strict=True)
    pathcond.extract_graph(BY_NAME["mlp"].model(), BY_NAME["mlp"].input(), strict=True)
    graph = pathcond.extract_graph(case.model(), case.input())
    assert [(f.channels, f.where) for f in graph.frozen] == [(4, "1"), (5, "3")]
    assert {name: entries[0].channels for name, entries in graph.frozen_by_module.items()} == {"0": 4, "2": 5}
    assert all("tanh" in f.reason for f in graph.frozen)


@pytest.mark.parametrize("name", ["mlp", "conv_pools", "residual_conv", "depthwise"])
def test_a_trace_that_depends_on_no_size_serves_inputs_of_others(name, monkeypatch):
    case, model, x = BY_NAME[name], BY_NAME[name].model(), BY_NAME[name].input()
    wanted = [(x, graph.record(model, x, training=False)) for x in (x[:1], torch.cat((x, x)))]
    monkeypatch.setattr(graph, "record", None)
    for x, trace in wanted:
        found = case.graph.trace_of(model, x)
        assert found.calls == trace.calls
        assert [value.shape for value in found.values] == [value.shape for value in trace.values]


@pytest.mark.parametrize("name", ["residual_conv", "tied_autoencoder", "channel_shuffle", "mlp_bn"])
def test_a_graph_on_the_meta_device_is_that_of_the_model(name):
    model, x = BY_NAME[name].model(), BY_NAME[name].input()
    graph, expected = pathcond.extract_graph(copy.deepcopy(model).to("meta"), x), BY_NAME[name].graph
    assert (graph.units, graph.frozen) == (expected.units, expected.frozen)
    assert_function_kept(model, x, graph)
    assert pathcond.rescale_(model, x, graph=graph).units == expected.units
    with pytest.raises(pathcond.PathCondError, match="meta device"):
        pathcond.rescale_(copy.deepcopy(model).to("meta"), x)


# ---- parameters read in unusual ways


def _tied(s, x, back):
    return s.o(F.relu(F.linear(F.relu(s.m(F.relu(s.a(x)))), back)))


def by_buffer(model, weight):
    model.register_buffer("back", weight.t())


def by_attribute(model, weight):
    model.back = weight.t()


def by_other_dtype(model, weight):
    model.kept = {"bits": [weight.view(torch.int64)]}
    model.forward = lambda x: _tied(model, x, model.kept["bits"][0].view(torch.float64).t())


def by_part(model, weight):
    row = weight[2]
    model.forward = lambda x: model.o(F.relu(model.a(x))) + model.m(F.relu(model.a(x))).sum() + row.sum()


@pytest.mark.parametrize("share", [by_buffer, by_attribute, by_other_dtype, by_part])
def test_memory_shared_with_other_tensors_is_frozen(share):
    torch.manual_seed(0)
    model = Lambda(lambda s, x: _tied(s, x, s.back), a=nn.Linear(5, 8), m=nn.Linear(8, 6), o=nn.Linear(8, 5)).double()
    share(model, model.m.weight.detach())
    graph = pathcond.extract_graph(model, X)
    assert "m.weight" not in graph.params
    assert any("'m.weight' shares memory" in f.reason for f in graph.frozen)


def test_parameters_on_one_memory():
    """On the same memory they count as one; where they overlap in part they freeze; unread views freeze nothing."""
    model = Lambda(lambda s, x: s.o(F.relu(s.a(x)) + F.relu(s.b(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 4),
                   o=nn.Linear(4, 2)).double()  # fmt: skip
    model.b.weight = nn.Parameter(model.a.weight.detach())
    x = torch.randn(2, 4).double()
    before = outputs(model, x, False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    model(x).sum().backward()
    optimizer.step()
    graph = pathcond.extract_graph(model, x)
    assert graph.units == 4
    pathcond.apply_scales_(model, graph, random_scales(graph), optimizer=optimizer)
    torch.testing.assert_close(outputs(model, x, False), before)
    optimizer.zero_grad()
    model(x).sum().backward()
    for p in model.parameters():  # each has a state of its own
        torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], p.grad)
    model, both = mlp(4, 4, 4, 4).double(), torch.randn(6, 4).double()
    model[0].weight, model[2].weight = nn.Parameter(both[:4]), nn.Parameter(both[2:])
    assert pathcond.extract_graph(model, x).units == 0
    model = mlp(4, 4, 4).double()
    model.register_buffer("other", model[0].weight.detach().t())
    assert pathcond.extract_graph(model, x).units == 4


def two_heads() -> Lambda:
    heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 3)})
    return Lambda(lambda s, x, task="a": s.heads[task](F.relu(s.body(x))), body=nn.Linear(5, 8), heads=heads)


def test_parameters_that_no_pass_reads_are_named():
    with pytest.warns(pathcond.PathCondWarning, match="not shown to be exact: .*'heads.b.weight'"):
        graph = pathcond.extract_graph(two_heads().double(), X)
    assert graph.units == 8
    assert "'heads.b.weight', 'heads.b.bias'" in graph.notes[0]
    both = Lambda(lambda s, x: torch.cat((s.m(x, "a"), s.m(x, "b")), 1), m=two_heads()).double()
    graph = pathcond.extract_graph(both, X)
    assert graph.exact_for.modes == ("eval", "train")
    assert not graph.notes
    assert_function_kept(both, X, graph)


def test_a_head_used_in_training_only_is_scaled_too():
    model = Lambda(
        lambda s, x: torch.cat((s.b(h := F.relu(s.a(x))), s.c(h)), 1) if s.training else s.b(F.relu(s.a(x))),
        a=nn.Linear(5, 4), b=nn.Linear(4, 2), c=nn.Linear(4, 5),
    ).double()  # fmt: skip
    graph = pathcond.extract_graph(model, X)
    assert graph.units == 4
    assert set(pathcond.compute_diag_g(model, X)) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert_function_kept(model, X, graph)


@pytest.mark.parametrize("last", [nn.LogSoftmax(-1), nn.Tanh(), nn.BatchNorm1d(2, affine=False)])
def test_outputs_before_a_last_function_are_no_hidden_units(last):
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2), last).double()
    graph = pathcond.extract_graph(model, X, strict=True)
    assert (graph.units, graph.frozen_channels) == (8, 0)
    model.append(nn.Linear(2, 2).double())
    assert pathcond.extract_graph(model, X).frozen_channels == 2


def test_smooth_lets_gelu_through_and_says_so():
    case = BY_NAME["mlp_gelu"]
    graph = pathcond.extract_graph(case.model(), case.input(), smooth=True)
    assert graph.units == 4
    assert graph.approximate
    assert any("gelu" in note for note in graph.notes)
