"""Scales of another degree: a scale lambda leaves a squared ReLU as lambda**2."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import Lambda, assert_diag_g_follows, assert_function_kept, outputs
from tests.steps import rescale_by_steps


def relu2(x: Tensor) -> Tensor:
    return F.relu(x) ** 2


def linears(*widths: int, **more: nn.Module) -> dict[str, nn.Module]:
    layers = {name: nn.Linear(n, m) for name, n, m in zip("abcd", widths, widths[1:], strict=False)}
    return {**layers, **more}


def attention_block(s, x: Tensor) -> Tensor:
    y = s.norm1(x)
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in s.qkv(y).chunk(3, -1))
    x = x + s.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return s.head(s.norm3(x + s.down(relu2(s.up(s.norm2(x))))))


def residual(s, x: Tensor) -> Tensor:
    """The channels of the stream carry the square of the scale of those in front of the squared ReLU."""
    y = s.a(x)
    y = y + relu2(s.b(y))
    return s.c(y)


def tied(s, x: Tensor) -> Tensor:
    """One matrix in front of a squared ReLU and, transposed, behind it."""
    return F.linear(relu2(F.linear(x, s.a.weight)), s.a.weight.T, s.b.bias)


# name: (free units, their largest power, frozen units with a word of the reason, forward pass, layers, input shape)
CASES = {
    "pow": (4, 2, 0, "", lambda s, x: s.b(relu2(s.a(x))), linears(3, 4, 2), (5, 3)),
    "square": (4, 2, 0, "", lambda s, x: s.b(torch.square(F.relu(s.a(x)))), linears(3, 4, 2), (5, 3)),
    "method": (4, 2, 0, "", lambda s, x: s.b(s.a(x).clamp(min=0).pow(2.0)), linears(3, 4, 2), (5, 3)),
    "product": (4, 2, 0, "", lambda s, x: s.b((lambda y: F.relu(y) * F.relu(y))(s.a(x))), linears(3, 4, 2), (5, 3)),
    "product with itself": (4, 2, 0, "", lambda s, x: s.b((lambda y: y * y)(F.relu(s.a(x)))), linears(3, 4, 2), (5, 3)),
    "in place": (4, 2, 0, "", lambda s, x: s.b(s.a(x).relu_().clone().square_()), linears(3, 4, 2), (5, 3)),
    "cube": (0, 1, 4, "with power 3", lambda s, x: s.b(F.leaky_relu(s.a(x)) ** 3), linears(3, 4, 2), (5, 3)),
    "chain": (4, 4, 0, "", lambda s, x: s.b(relu2(2 * relu2(s.a(x)))), linears(3, 4, 2), (5, 3)),
    "deep": (9, 2, 0, "", lambda s, x: s.c(relu2(s.b(relu2(s.a(x))))), linears(3, 4, 5, 2), (5, 3)),
    "dropout, permute, reshape": (
        6, 2, 0, "",
        lambda s, x: s.b(s.drop(relu2(s.a(x))).T.flip(0).T.reshape(5, 2, 3).flatten(1)),
        linears(3, 6, 2, drop=nn.Dropout(0.3)), (5, 3)),
    "bias behind": (4, 2, 0, "", lambda s, x: s.b(relu2(s.a(x)) + s.shift[0]),
                    linears(3, 4, 2, shift=nn.ParameterList([torch.ones(4)])), (5, 3)),
    "gain behind": (8, 2, 0, "", lambda s, x: s.b(relu2(s.a(x)) * s.gain[0]),
                    linears(3, 4, 2, gain=nn.ParameterList([torch.rand(4)])), (5, 3)),
    "tied by a sum": (4, 2, 0, "", lambda s, x: s.b(relu2(s.a(x)) + s.c(x[:, :2])),
                      {**linears(3, 4, 2), "c": nn.Linear(2, 4)}, (5, 3)),
    "tied to itself": (0, 1, 4, "another power", lambda s, x: s.b(F.relu(s.a(x)) + relu2(s.a(x))), linears(3, 4, 2),
                       (5, 3)),
    "residual": (4, 2, 0, "", residual, linears(3, 4, 4, 2), (5, 3)),
    "gated": (4, 1, 4, "another scale", lambda s, x: s.b(s.up(x) * relu2(s.a(x))),
              linears(3, 4, 2, up=nn.Linear(3, 4)), (5, 3)),
    "gate first": (4, 1, 4, "another scale", lambda s, x: s.b(relu2(s.a(x)) * s.up(x)),
                   linears(3, 4, 2, up=nn.Linear(3, 4)), (5, 3)),
    "batchnorm behind": (4, 1, 0, "", lambda s, x: s.b(s.norm(relu2(s.a(x)))),
                         linears(3, 4, 2, norm=nn.BatchNorm1d(4)), (5, 3)),
    "layernorm behind": (4, 1, 0, "", lambda s, x: s.b(s.norm(relu2(s.a(x)))),
                         linears(3, 4, 2, norm=nn.LayerNorm(4)), (5, 3)),
    "batchnorm in front": (4, 2, 0, "", lambda s, x: s.b(relu2(s.norm(s.a(x)))),
                           linears(3, 4, 2, norm=nn.BatchNorm1d(4)), (5, 3)),
    "conv": (9, 2, 0, "",
             lambda s, x: s.d(F.avg_pool2d(relu2(s.c(F.max_pool2d(relu2(s.a(x)), 2))), 2).flatten(1)),
             {"a": nn.Conv2d(2, 4, 3, padding=1), "c": nn.Conv2d(4, 5, 1), "d": nn.Linear(20, 3)}, (3, 2, 8, 8)),
    "transformer block": (
        8 * 3 + 8 + 8 + 12, 2, 16, "without scale", attention_block,
        {"norm1": nn.LayerNorm(8), "qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8), "norm2": nn.LayerNorm(8),
         "up": nn.Linear(8, 12), "down": nn.Linear(12, 8), "norm3": nn.LayerNorm(8), "head": nn.Linear(8, 3)},
        (2, 5, 8)),
    "concatenated": (7, 2, 0, "", lambda s, x: s.b(torch.cat((relu2(s.a(x)), F.relu(s.c(x))), 1)),
                     {"a": nn.Linear(3, 4), "c": nn.Linear(3, 3), "b": nn.Linear(7, 2)}, (5, 3)),
    "odd power": (0, 1, 4, "with power 1.5", lambda s, x: s.b(F.relu(s.a(x)) ** 1.5), linears(3, 4, 2), (5, 3)),
    "tied weights": (0, 1, 1, "output", tied, {"a": nn.Linear(3, 4, bias=False), "b": nn.Linear(4, 3)}, (5, 3)),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request):
    *expected, forward, layers, shape = CASES[request.param]
    torch.manual_seed(0)
    model = Lambda(forward, **copy.deepcopy(layers)).double()
    for p in model.parameters():
        p.data.normal_(0.2, 0.6)
    return expected, model, torch.randn(shape, dtype=torch.float64)


def test_any_scales_keep_the_function(case):
    (units, power, frozen, word), model, x = case
    graph = pathcond.extract_graph(model, x)
    found = int(graph.powers[:, 1].max()) if len(graph.powers) else 1
    assert (graph.units, found, graph.frozen_units) == (units, power, frozen)
    assert all(word in entry.reason for entry in graph.frozen)
    assert_function_kept(model, x, graph, 1e-11)


def test_paths_are_tuples_of_paths(case):
    _, model, x = case
    queries = {"qkv.weight", "qkv.bias", "norm1.weight", "norm1.bias"}  # paths end in front of queries and keys
    assert_diag_g_follows(model, x, pathcond.extract_graph(model, x), but=frozenset(queries))


@pytest.mark.parametrize("objective", ["paths", "norms"])
def test_rescale_undo_save_and_load(case, objective, tmp_path):
    _, model, x = case
    model.train(False)
    start, y = copy.deepcopy(model), outputs(model, x, False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    model(x).square().sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.warns(pathcond.PathCondWarning) if not pathcond.extract_graph(model, x).units else nullcontext():
        report = pathcond.rescale_(model, x, objective=objective, optimizer=optimizer, damping=1.0)
    assert report.output_change is not None
    assert report.output_change < 1e-11
    torch.testing.assert_close(outputs(model, x, False), y, rtol=1e-10, atol=1e-10)
    values = report.objective
    assert all(b <= a + 1e-12 * abs(a) for a, b in zip(values, values[1:], strict=False))
    assert isinstance(report.table(), str)
    model.zero_grad()
    model(x).square().sum().backward()  # what Adam would hold had it seen the rescaled model
    for p, held in optimizer.state.items():
        torch.testing.assert_close(held["exp_avg"], 0.1 * p.grad, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(held["exp_avg_sq"], 1e-3 * p.grad**2, rtol=1e-9, atol=1e-14)
    report.save(tmp_path / "scales.safetensors")
    fresh = copy.deepcopy(start)
    pathcond.apply_scales_(fresh, pathcond.load_scales(tmp_path / "scales.safetensors"))
    for p, q in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q)
    report.undo_(model, optimizer=optimizer)
    for p, q in zip(start.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=0)
    for held, before in zip(optimizer.state.values(), state.values(), strict=True):
        torch.testing.assert_close(held["exp_avg"], before["exp_avg"], rtol=1e-12, atol=0)


def test_sweeps_after_sweeps_are_more_sweeps():
    """The objective of the rescaled model is the one that the solver had: nothing drifts when calls are repeated."""
    torch.manual_seed(0)
    model = Lambda(lambda s, x: s.c(relu2(s.b(relu2(s.a(x))))), **linears(3, 6, 5, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    graph = pathcond.extract_graph(model, x)
    twenty = pathcond.solve(graph, pathcond.compute_diag_g(model, x), sweeps=20)
    found = torch.zeros_like(twenty.u)
    schedule = pathcond.Teleport(model, x, every=1, sweeps=5, clamp=None, damping=1.0, graph=graph)
    for _ in range(4):
        found += schedule.step().solution.u
    torch.testing.assert_close(found, twenty.u, rtol=0, atol=1e-9)
    best, again = (rescale_by_steps(model, x, method="optimum", graph=graph).u.abs().amax() for _ in range(2))
    assert float(twenty.u.abs().amax()) > 0.1
    assert float(again) < 1e-9 < float(best)


# ---- roots of the solver


@pytest.mark.parametrize("small", [1e-4, 1e-8, 1e-12])
def test_a_unit_with_tiny_weights(small):
    torch.manual_seed(0)
    model = Lambda(lambda s, x: s.b(relu2(s.a(x))), **linears(5, 4, 1)).double()
    with torch.no_grad():
        model.a.weight[0] *= small
        model.a.bias[0] *= small
    x = torch.randn(3, 5, dtype=torch.float64)
    before = model(x)
    report = pathcond.rescale_(model, x, clamp=None, damping=1.0)
    assert report.moved == 4
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-12)


# ---- groups and exports


def test_groups_and_exports():
    torch.manual_seed(0)
    model = Lambda(lambda s, x: s.c(F.relu(s.b(relu2(s.a(x))))), **linears(3, 4, 5, 2))
    x = torch.randn(4, 3)
    groups = pathcond.scale_groups(model, x)
    assert [(group.name, group.channels, group.degree) for group in groups] == [("a", 4, 2), ("b", 5, 1)]
    assert [(part.parameter, part.degree) for part in groups[0].producers] == [("a.weight", 1), ("a.bias", 1)]
    assert [(part.parameter, part.degree) for part in groups[0].consumers] == [("b.weight", 2)]
    assert "b.weight (power 2)" in str(groups[0])
    assert all(group.verify() < 1e-12 for group in groups)
    mappings = pathcond.groups_to_awq_mappings(groups)
    assert mappings == [{"smooth_layer": "b", "balance_layers": ["c"]}]
    assert pathcond.groups_to_cle_pairs(groups) == [("b", "c")]
    squared = [{"smooth_layer": "a", "balance_layers": ["b"]}]
    assert [found.exact for found in pathcond.verify_mapping(model, x, [*mappings, *squared])] == [True, False]


def test_a_stream_of_squares_has_mixed_degrees():
    torch.manual_seed(0)
    model = Lambda(residual, **linears(3, 4, 4, 2))
    (group,) = pathcond.scale_groups(model, torch.randn(4, 3))
    powers = {part.parameter: part.degree for part in (*group.producers, *group.consumers)}
    assert powers == {"a.weight": 2, "a.bias": 2, "b.weight": 2, "b.bias": 1, "c.weight": 2}
    assert group.degree == 2
    assert group.verify() < 1e-12
