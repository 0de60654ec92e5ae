"""Scale graphs of the case list: which units are free, and that any scales keep the function."""

import copy

import pytest
import torch
from torch import nn

import pathcond
from tests.cases import BY_NAME, CASES, Case, Lambda, mlp


def outputs(model: nn.Module, x: torch.Tensor, training: bool) -> torch.Tensor:
    """The output in one mode, with the same random numbers each time and no lasting change of buffers."""
    model = copy.deepcopy(model).train(training)
    torch.manual_seed(7)
    with torch.no_grad():
        return model(x)


def random_scales(graph: pathcond.ScaleGraph, seed: int = 3) -> torch.Tensor:
    return torch.randn(graph.units, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Case):
    model, x = case.model(), case.input()
    state = copy.deepcopy(model.state_dict())
    graph = pathcond.extract_graph(model, x)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert graph.units == case.units, graph.frozen
    assert graph.frozen_units == case.frozen, graph.frozen
    assert graph.exact
    before = {mode: outputs(model, x, mode) for mode in (False, True)}
    pathcond.apply_scales_(model, graph, random_scales(graph))
    if graph.units:
        assert any(not torch.equal(state[k], v) for k, v in model.state_dict().items())
    for mode, expected in before.items():
        torch.testing.assert_close(outputs(model, x, mode), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_free_unit_moves_a_weight(case: Case):
    """A unit's scale alone changes parameters and keeps the function; scales of distinct units are independent."""
    model, x = case.model(), case.input()
    graph = pathcond.extract_graph(model, x)
    touched = []
    for h in range(graph.units):
        changed = copy.deepcopy(model)
        u = torch.zeros(graph.units, dtype=torch.float64)
        u[h] = 1.0
        pathcond.apply_scales_(changed, graph, u)
        theta = [(a / b).log().reshape(-1) for a, b in zip(changed.parameters(), model.parameters(), strict=True)]
        touched.append(torch.cat(theta).detach())
    if touched:
        assert torch.linalg.matrix_rank(torch.stack(touched)) == graph.units


def test_smooth_lets_gelu_through_and_says_so():
    case = BY_NAME["mlp_gelu"]
    graph = pathcond.extract_graph(case.model(), case.input(), smooth=True)
    assert graph.units == 4
    assert not graph.exact
    assert any("gelu" in note for note in graph.notes)


def test_exclude_differs_in_train_mode():
    case = BY_NAME["mlp_bn"]
    model, x = mlp(3, 4, 5, 2, norm=nn.BatchNorm1d).double(), case.input()
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    assert graph.units == 9
    assert not graph.exact
    for name in ("0.bias", "3.bias"):
        model.get_parameter(name).data.zero_()
    before = {mode: outputs(model, x, mode) for mode in (False, True)}
    pathcond.apply_scales_(model, graph, random_scales(graph))
    torch.testing.assert_close(outputs(model, x, False), before[False], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(outputs(model, x, True), before[True], rtol=1e-2)


def test_shortcuts_freeze():
    for name, free in (("residual_mlp", 5), ("stage", 10), ("residual_conv", 7), ("residual_self", 0)):
        case = BY_NAME[name]
        graph = pathcond.extract_graph(case.model(), case.input(), shortcuts="freeze")
        assert graph.units == free, name
        model, x = case.model(), case.input()
        before = outputs(model, x, True)
        pathcond.apply_scales_(model, graph, random_scales(graph))
        torch.testing.assert_close(outputs(model, x, True), before, rtol=1e-9, atol=1e-9)


def test_strict_names_the_operation():
    case = BY_NAME["mlp_tanh"]
    with pytest.raises(pathcond.UnsupportedOpError, match=r"`tanh` at '1'.*register_op"):
        pathcond.extract_graph(case.model(), case.input(), strict=True)
    pathcond.extract_graph(BY_NAME["mlp"].model(), BY_NAME["mlp"].input(), strict=True)


def test_frozen_reasons_are_reported():
    case = BY_NAME["mlp_tanh"]
    graph = pathcond.extract_graph(case.model(), case.input())
    assert [(f.units, f.where) for f in graph.frozen] == [(4, "1"), (5, "3")]
    assert all("tanh" in f.reason for f in graph.frozen)
    assert "tanh" in str(graph.frozen[0])


def test_value_dependent_control_flow_is_refused():
    model = Lambda(lambda s, x: s.a(x) if x.sum() > 0 else s.a(-x), a=nn.Linear(3, 2))
    with pytest.raises(
        pathcond.RecordError, match=r"depends on the values of a tensor.*cases\.py|x\.sum\(\) > 0"
    ) as caught:
        pathcond.extract_graph(model, torch.ones(1, 3))
    assert "torch.where" in str(caught.value)


def test_failing_forward_leaves_the_model_as_found():
    model = mlp(3, 4, 2, norm=nn.BatchNorm1d)
    model[1].eval()
    flags = [m.training for m in model.modules()]
    state = copy.deepcopy(model.state_dict())
    rng = torch.get_rng_state()
    for call in (pathcond.extract_graph, pathcond.path_magnitudes, pathcond.count_paths, pathcond.rescale_):
        with pytest.raises(pathcond.RecordError, match="Check that model|that runs on the example input"):
            call(model, torch.ones(1, 5))
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())


def test_hidden_outputs_are_refused():
    class Box:
        def __init__(self, x):
            self.x = x

    model = Lambda(lambda s, x: Box(s.a(x)), a=nn.Linear(3, 2))
    with pytest.raises(pathcond.RecordError, match="Box"):
        pathcond.extract_graph(model, torch.ones(1, 3))
    with pytest.raises(pathcond.RecordError, match="at least one tensor"):
        pathcond.extract_graph(Lambda(lambda s, x: None, a=nn.Linear(3, 2)), torch.ones(1, 3))


def test_inputs_as_tuple_and_dict():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

        def forward(self, x, *, y):
            return {"out": self.c(torch.relu(self.a(x) + self.b(y))), "n": 3}

    graph = pathcond.extract_graph(Two(), {"x": torch.ones(1, 3), "y": torch.ones(1, 2)})
    assert graph.units == 4
    model = Lambda(
        lambda s, xs: s.c(torch.relu(s.a(xs[0]) + s.b(xs[1]))), a=nn.Linear(3, 4), b=nn.Linear(2, 4), c=nn.Linear(4, 2)
    )
    assert pathcond.extract_graph(model, ((torch.ones(1, 3), torch.ones(1, 2)),)).units == 4


def test_training_only_head_is_scaled_too():
    """What a model computes only in training mode keeps its function as well."""

    class Aux(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.aux = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 5)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return torch.cat((self.b(h), self.aux(h)), 1) if self.training else self.b(h)

    model, x = Aux().double(), torch.randn(3, 3).double()
    graph = pathcond.extract_graph(model, x)
    assert graph.units == 4
    g = pathcond.path_magnitudes(model, x)
    assert set(g) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    before = outputs(model, x, True)
    pathcond.apply_scales_(model, graph, random_scales(graph))
    torch.testing.assert_close(outputs(model, x, True), before)


def test_shared_memory():
    """Two parameters on the same memory count as one; overlapping ones freeze."""
    model = mlp(4, 4, 4, 4).double()
    model[2].weight = nn.Parameter(model[0].weight.detach())
    x = torch.randn(2, 4).double()
    before = outputs(model, x, False)
    graph = pathcond.extract_graph(model, x)
    pathcond.apply_scales_(model, graph, random_scales(graph))
    torch.testing.assert_close(outputs(model, x, False), before)
    model = mlp(4, 4, 4, 4).double()
    both = torch.randn(6, 4).double()
    model[0].weight, model[2].weight = nn.Parameter(both[:4]), nn.Parameter(both[2:])
    graph = pathcond.extract_graph(model, x)
    assert graph.units == 0
    assert any("shares memory" in f.reason for f in graph.frozen)


def test_registered_op():
    def act(x):
        return torch.ops.pathcond_test.act(x)

    @torch.library.custom_op("pathcond_test::act", mutates_args=())
    def custom(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)

    @custom.register_fake
    def _(x):
        return torch.empty_like(x)

    model = Lambda(lambda s, x: s.b(act(s.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    frozen = pathcond.extract_graph(model, torch.ones(1, 3))
    assert frozen.units == 0
    assert "act" in frozen.frozen[0].reason
    for fn in (torch.ops.pathcond_test.act, torch.ops.pathcond_test.act.default):
        pathcond.register_op(fn, like=torch.relu)
    assert pathcond.extract_graph(model, torch.ones(1, 3)).units == 4
    with pytest.raises(pathcond.PathCondError, match="rule"):
        pathcond.register_op(act, like=torch.tanh)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"batchnorm": "no"}, "batchnorm"), ({"shortcuts": "cut"}, "shortcuts")],
)
def test_wrong_options(options, message):
    with pytest.raises(pathcond.PathCondError, match=message):
        pathcond.extract_graph(BY_NAME["mlp"].model(), BY_NAME["mlp"].input(), **options)


def test_models_that_cannot_be_rescaled():
    with pytest.raises(pathcond.PathCondError, match="without any"):
        pathcond.extract_graph(nn.ReLU(), torch.ones(1))
    with pytest.raises(pathcond.PathCondError, match="Module"):
        pathcond.extract_graph(torch.relu, torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(pathcond.PathCondError, match="complex"):
        pathcond.extract_graph(nn.Linear(2, 2, dtype=torch.complex64), torch.ones(1, 2))
    with pytest.raises(pathcond.PathCondError, match="meta"):
        pathcond.extract_graph(nn.Linear(2, 2, device="meta"), torch.ones(1, 2))
    with pytest.raises(pathcond.PathCondError, match="lazy"):
        pathcond.extract_graph(nn.LazyLinear(2), torch.ones(1, 2))
