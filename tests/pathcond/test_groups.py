"""Scale groups: what they list, that each keeps the function, what is exported, and mappings that users write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import BY_NAME, Lambda, assert_function_kept, random_scales


class Block(nn.Module):
    """A norm, attention from one fused projection, and a gated MLP, with residual connections."""

    def __init__(self, width: int = 8, hidden: int = 12) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return Block()


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


def test_groups_name_producers_and_consumers(block: nn.Module) -> None:
    groups = pathcond.scale_groups(block, X)
    assert [str(group) for group in groups.free] == [
        "norm1: 8 channels, norm1.weight, norm1.bias -> qkv.weight",
        "qkv: 8 channels, qkv.weight[0:8, :], qkv.weight[8:16, :] (inverse), qkv.bias[0:8], qkv.bias[8:16] (inverse) "
        "-> ",
        "qkv: 8 channels, qkv.weight[16:24, :], qkv.bias[16:24] -> out.weight",
        "norm2: 8 channels, norm2.weight -> gate.weight, up.weight",
        "up: 12 channels, up.weight, up.bias -> down.weight",
    ]
    assert [(group.name, group.channels) for group in groups.frozen] == [("out", 8), ("gate", 12)]
    assert all("silu" in group.reason for group in groups.frozen if group.name == "gate")
    table = str(groups)
    assert all(group.name in table for group in groups)
    assert "qkv.weight[16:24, :]" in table
    weight = groups.free[2].producers[0]
    assert (weight.parameter, weight.axis, weight.index, weight.inverse) == ("qkv.weight", 0, slice(16, 24, 1), False)
    assert weight.channel.tolist() == list(range(8))
    assert weight.module == "qkv"


def test_verify_sees_a_group_that_is_wrong(block: nn.Module) -> None:
    groups = pathcond.scale_groups(block, X)
    block.forward = lambda x: Block.forward(block, x) + block.up(x).mean()  # type: ignore[arg-type, method-assign, operator]
    assert groups.free[-1].verify() > 1e-3
    with pytest.raises(pathcond.PathCondError, match="frozen group 'out'"):
        groups.frozen[0].verify()


def test_exports_are_exact_mappings(block: nn.Module) -> None:
    groups = pathcond.scale_groups(block, X)
    mapping = pathcond.groups_to_awq_mappings(groups)
    assert mapping == [
        {"smooth_layer": "norm1", "balance_layers": ["qkv"]},
        {"smooth_layer": "norm2", "balance_layers": ["gate", "up"]},
        {"smooth_layer": "up", "balance_layers": ["down"]},
    ]  # of a fused projection with bias no tool can scale a part
    assert all(check.exact for check in pathcond.verify_mapping(block, X, mapping))
    assert pathcond.groups_to_cle_pairs(groups) == [("up", "down")]


def test_a_fused_projection_without_bias_is_exported_for_awq_alone() -> None:
    model = Block()
    model.qkv.bias = None
    groups = pathcond.scale_groups(model, X)
    values = {"smooth_layer": "qkv", "balance_layers": ["out"]}
    assert values in pathcond.groups_to_awq_mappings(groups)
    assert pathcond.verify_mapping(model, X, [values])[0].exact
    assert values not in pathcond.groups_to_awq_mappings(groups, fused=False)


def test_convolutions_are_exported_as_pairs_that_can_be_verified() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(4, 8, 1, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1))
    x = torch.randn(2, 3, 8, 8)
    groups = pathcond.scale_groups(model, x)
    pairs = pathcond.groups_to_cle_pairs(groups)
    assert pairs == [("0", "2"), ("2", "4"), ("6", "8")]  # not the grouped convolution's inputs
    assert pathcond.groups_to_awq_mappings(groups) == []
    assert all(check.exact for check in pathcond.verify_mapping(model, x, pairs))


def test_layers_that_multiply_by_the_transposed_weight_are_no_pair() -> None:
    layers = {"a": nn.Linear(4, 4), "b": nn.Linear(3, 4), "c": nn.Linear(4, 2)}
    model = Lambda(lambda s, x: s.c(F.relu(s.b(x) @ s.a.weight)), **layers)
    groups = pathcond.scale_groups(model, torch.randn(2, 3))
    assert len(groups.free) == 2
    assert pathcond.groups_to_cle_pairs(groups) == pathcond.groups_to_awq_mappings(groups) == []


MAPPINGS: list[tuple[Any, str, str]] = [
    ({"smooth_layer": "up", "balance_layers": ["down"]}, "exact", ""),
    (SimpleNamespace(smooth_layer="re:up$", balance_layers=["re:d.*n$"]), "exact", ""),
    (SimpleNamespace(smooth_layers="norm2", balance_layers=["gate", "up"]), "exact", ""),
    ([["re:gate", "re:up"], "re:norm2"], "exact", ""),  # SmoothQuant's lists
    (("norm2$", ["(gate|up)$"]), "exact", ""),  # auto-round's expressions
    ({"norm": "norm1", "linears": ["qkv"]}, "exact", ""),
    (("up", "down"), "exact", ""),
    ({"smooth_layer": "norm2", "balance_layers": ["up"]}, "not exact", "also read or made by gate.weight"),
    ({"smooth_layer": "gate", "balance_layers": ["down"]}, "not exact", "crosses `silu`"),
    ({"smooth_layer": "qkv", "balance_layers": ["out"]}, "exact", ""),
    ({"smooth_layer": "lost", "balance_layers": ["down"]}, "cannot be applied", "no module is named 'lost'"),
    ({"smooth_layer": "up", "balance_layers": ["lost"]}, "cannot be applied", "no module near 'up' is named 'lost'"),
    ({"smooth_layer": "norm1", "balance_layers": ["down"]}, "cannot be applied", "8 outputs of 'norm1' do not fit"),
    ({"smooth_layer": "up", "balance_layers": ["norm2"]}, "cannot be applied", "no weight with input channels"),
]


@pytest.mark.parametrize(("entry", "verdict", "reason"), MAPPINGS)
def test_mappings_are_measured(block: nn.Module, entry: Any, verdict: str, reason: str) -> None:
    (check,) = pathcond.verify_mapping(block, X, [entry])
    assert (check.verdict, check.exact) == (verdict, verdict == "exact")
    assert reason in check.reason
    assert verdict in str(check)
    assert verdict != "not exact" or (check.change or 0.0) > 1e-3


class _ReadInTraining(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self[1](self[0](x))
        return self[2](hidden) + (self[3](hidden) if self.training else 0)


def _zeros(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


HOLDS = {
    "a bounded activation below its bound": nn.Sequential(nn.Linear(3, 4), nn.ReLU6(), nn.Linear(4, 2)),
    "a smooth one before zeros": nn.Sequential(nn.Linear(3, 4), nn.GELU(), _zeros(nn.Linear(4, 2))),
    "a reader in training alone": _ReadInTraining(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("name", HOLDS)
def test_a_change_that_this_input_does_not_show_is_not_called_exact(name: str) -> None:
    (check,) = pathcond.verify_mapping(HOLDS[name].eval(), 0.01 * torch.ones(1, 3), [("0", "2")])
    assert check.change == 0.0
    assert check.verdict == "holds on this input"
    assert check.reason


def test_channels_in_each_others_place_are_not_exported_and_not_exact_by_chance() -> None:
    model = Lambda(lambda s, x: s.b(F.relu(s.a(x)).flip(-1)), a=nn.Linear(3, 2), b=nn.Linear(2, 2))
    x = torch.ones(1, 3)
    groups = pathcond.scale_groups(model, x)
    assert groups[0].verify() < 1e-12
    assert pathcond.groups_to_awq_mappings(groups) == []
    assert not any(pathcond.verify_mapping(model, x, [("a", "b")], seed=seed)[0].exact for seed in range(16))


def test_groups_of_another_model_are_refused() -> None:
    relu, gelu = (nn.Sequential(nn.Linear(3, 4), layer, _zeros(nn.Linear(4, 2))) for layer in (nn.ReLU(), nn.GELU()))
    groups = pathcond.scale_groups(relu, torch.ones(1, 3))
    with pytest.raises(pathcond.ApplyError, match="calls the operations"):
        pathcond.verify_mapping(gelu, torch.ones(1, 3), [("0", "2")], groups=groups)


def test_rounding_of_a_model_without_float64_is_no_change() -> None:
    def forward(s: Lambda, x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise TypeError("no float64")
        return s.fc(F.rms_norm(x, (8,)) * (1 + s.norm.weight))

    torch.manual_seed(0)
    model = Lambda(forward, norm=nn.LayerNorm(8, bias=False), fc=nn.Linear(8, 8))
    nn.init.normal_(model.norm.weight)
    (check,) = pathcond.verify_mapping(model, X, [("norm", "fc")])
    assert check.exact
    assert check.change is not None
    assert 0 < check.change < 1e-5


def test_a_model_without_weights_is_compared_with_its_graph() -> None:
    with torch.device("meta"):
        model = Block()
    found = pathcond.verify_mapping(model, X.to("meta"), [("up", "down"), ("norm2", "up"), ("gate", "down")])
    assert [(check.verdict, check.change) for check in found] == [("exact", None), *[("not shown", None)] * 2]


@pytest.mark.parametrize("name", ["experts_by_where", "experts_by_split"])
def test_experts_are_analyzed_unless_their_sizes_decide(name: str) -> None:
    model, x = BY_NAME[name].model(), BY_NAME[name].input()
    groups = pathcond.scale_groups(model, x).free
    assert [group.name for group in groups] == ["norm", "up.0", "up.1", "up.2"]
    assert {part.module for part in groups[0].consumers} == {"router", "up.0", "up.1", "up.2"}
    router_forgotten = ("norm", ["up.0", "up.1", "up.2"])
    assert pathcond.verify_mapping(model, x, [router_forgotten])[0].omitted == ("router.weight",)
    if name == "experts_by_split":
        model.branch = True
        with pytest.raises(pathcond.RecordError, match="depends on the values"):
            pathcond.scale_groups(model, x)


def test_fused_experts_are_named_as_linear_layers() -> None:
    part = pathcond.ParamSlice
    halves = torch.cat((torch.full((3, 6), -1), torch.arange(18).reshape(3, 6)), 1)[:, :, None]
    up = part("experts.gate_up_proj", (3, 12, 8), None, slice(0, 36, 1), False, 0.0, halves)
    down = part("experts.down_proj", (3, 8, 6), None, slice(0, 18, 1), False, 0.0, torch.arange(18).reshape(3, 1, 6))
    order = torch.arange(8)
    norm = part("norm.weight", (8,), 0, slice(0, 8, 1), False, 1.0, order)
    router = part("router.weight", (3, 8), 1, slice(0, 8, 1), False, 0.0, order)
    read = part("experts.gate_up_proj", (3, 12, 8), 2, slice(0, 8, 1), False, 0.0, order)
    hidden = pathcond.ScaleGroup("experts", 18, (up,), (down,))
    outside = pathcond.ScaleGroup("norm", 8, (norm,), (router, read))
    linear = [f"experts.{i}.{half}" for i in range(3) for half in ("gate_proj", "up_proj")]
    assert pathcond.groups_to_awq_mappings([outside, hidden]) == [
        {"smooth_layer": "norm", "balance_layers": ["router", *linear]},
        *({"smooth_layer": f"experts.{i}.up_proj", "balance_layers": [f"experts.{i}.down_proj"]} for i in range(3)),
    ]
    assert pathcond.groups_to_awq_mappings([outside, hidden], experts="skip") == []
    read_elsewhere = pathcond.ScaleGroup("experts", 18, (up,), (down, router))
    assert pathcond.groups_to_awq_mappings([read_elsewhere]) == []
    for_all = part("experts.up_proj", (3, 8, 6), 2, slice(0, 6, 1), False, 0.0, torch.arange(6))
    back = part("experts.down_proj", (3, 6, 8), 1, slice(0, 6, 1), False, 0.0, torch.arange(6))
    assert pathcond.groups_to_awq_mappings([pathcond.ScaleGroup("experts", 6, (for_all,), (back,))]) == []
    shapes = {"up_proj": (3, 4, 8), "down_proj": (3, 8, 4)}  # not in the order of nn.Linear, which no shape tells
    experts = Lambda(lambda s, x: sum(F.relu(x @ s.up_proj[i]) @ s.down_proj[i] for i in range(3)), **shapes)
    free, x = pathcond.scale_groups(nn.Sequential(experts), torch.ones(2, 4)).free, torch.rand(2, 4)
    assert [group.channels for group in free] == [3 * 8]
    checks = pathcond.verify_mapping(nn.Sequential(experts), x, pathcond.groups_to_awq_mappings(free))
    assert [check.exact for check in checks] == [True] * 3


def test_a_bias_may_have_axes_of_size_one() -> None:
    norm = nn.LayerNorm(8)
    norm.bias = nn.Parameter(torch.rand(8, 1, 1))
    norm.forward = lambda x: F.layer_norm(x, (8,), norm.weight, norm.bias.flatten())  # type: ignore[method-assign]
    assert pathcond.verify_mapping(nn.Sequential(norm, nn.Linear(8, 2)), X, [("0", "1")])[0].exact


def test_names_stay_in_their_block_and_a_whole_name_does_not_stand_for_the_ends_of_others() -> None:
    blocks = nn.Sequential(Block(), Block())
    inner, outer = ({"norm": nn.LayerNorm(8), "fc": nn.Linear(8, 8)} for _ in range(2))
    block = nn.ModuleDict(inner)
    nested = Lambda(lambda s, x: s.fc(s.norm(x + s.block["fc"](s.block["norm"](x)))), block=block, **outer)
    for model, entries, expected in (
        (blocks, [("up", "down")], [("0.up", ("0.down",)), ("1.up", ("1.down",))]),
        (nested, [("norm", "fc"), ("block.norm", "block.fc")], [("norm", ("fc",)), ("block.norm", ("block.fc",))]),
    ):
        found = pathcond.verify_mapping(model, X, entries)
        assert [(check.smooth_layer, check.balance_layers) for check in found] == expected
        assert all(check.exact for check in found)


@pytest.mark.parametrize(
    "entry", [{"smooth_layer": "up"}, {"smooth_layer": "up", "balance_layers": "down"}, ("a", "b", "c"), ("re:(", "b")]
)
def test_a_bad_entry_is_refused(block: nn.Module, entry: Any) -> None:
    with pytest.raises(pathcond.PathCondError, match="smooth_layer|expected a name or a regular expression"):
        pathcond.verify_mapping(block, X, [entry])


# ---- inverse scales, experts


def test_keys_have_the_inverse_scales_of_queries() -> None:
    case = BY_NAME["sdpa"]
    graph = case.graph
    u = random_scales(graph)
    assert torch.equal(graph.by_module(u)["k"], -graph.by_module(u)["q"])
    model = case.model()
    for factor in (100.0, -100.0):  # too large but for logarithms
        pathcond.apply_scales_(model, graph, factor * u, force=True)
    for p, q in zip(model.parameters(), case.model().parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=0)


def _experts(s: Any, x: Tensor, moved: bool) -> Tensor:
    s.seen = object()  # a second call is recorded, which does the same
    chosen, order = s.router(x).argmax(-1).sort()
    offs = F.one_hot(chosen, 3).sum(0).cumsum(0).to(torch.int32)
    y = F.relu(F.grouped_mm(x[order], s.up, offs=offs))
    return F.grouped_mm(y.flip(0) if moved else y, s.down, offs=offs)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch.nn.functional has no grouped_mm")
@pytest.mark.parametrize(("moved", "units"), [(False, 3 * 8), (True, 8)])
def test_experts_have_scales_of_their_own_while_rows_stay_in_place(moved: bool, units: int) -> None:
    torch.manual_seed(0)
    model = Lambda(lambda s, x: _experts(s, x, moved), router=nn.Linear(4, 3), up=(3, 4, 8), down=(3, 8, 4))
    x = torch.randn(12, 4)
    graph = pathcond.extract_graph(model, x)
    assert graph.units == units
    assert_function_kept(model, x, graph, 1e-5)
