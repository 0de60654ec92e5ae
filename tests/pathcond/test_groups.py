"""Scale groups: what they list, that each keeps the function, what is exported, and mappings that users write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import Lambda


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


def test_a_slice_says_which_entries_belong_to_which_channel(block: nn.Module) -> None:
    values = pathcond.scale_groups(block, X).free[2]
    weight = values.producers[0]
    assert (weight.parameter, weight.axis, weight.index, weight.inverse) == ("qkv.weight", 0, slice(16, 24, 1), False)
    assert weight.channel.tolist() == list(range(8))
    assert weight.module == "qkv"


def test_every_free_group_keeps_the_function_and_leaves_the_model(block: nn.Module) -> None:
    before = {name: p.clone() for name, p in block.named_parameters()}
    for group in pathcond.scale_groups(block, X).free:
        assert group.verify() < 1e-12
    assert all(torch.equal(p, before[name]) for name, p in block.named_parameters())


def test_verify_sees_a_group_that_is_wrong(block: nn.Module) -> None:
    group = pathcond.scale_groups(block, X).free[-1]
    block.forward = lambda x: Block.forward(block, x) + block.up(x).mean()  # type: ignore[arg-type, method-assign, operator]
    assert group.verify() > 1e-3


def test_a_model_that_cannot_be_copied_is_restored(block: nn.Module) -> None:
    class Stubborn(Block):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    torch.manual_seed(0)
    model = Stubborn()
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert all(group.verify() < 1e-5 for group in pathcond.scale_groups(model, X).free)
    found = pathcond.verify_mapping(model, X, [{"smooth_layer": "gate", "balance_layers": ["down"]}])
    assert found[0].change is not None
    assert not found[0].exact
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_frozen_group_cannot_be_verified(block: nn.Module) -> None:
    with pytest.raises(pathcond.PathCondError, match="frozen group 'out'"):
        pathcond.scale_groups(block, X).frozen[0].verify()


def test_exports_are_exact_mappings(block: nn.Module) -> None:
    groups = pathcond.scale_groups(block, X)
    mapping = pathcond.groups_to_awq_mappings(groups)
    assert mapping == [
        {"smooth_layer": "norm1", "balance_layers": ["qkv"]},
        {"smooth_layer": "qkv", "balance_layers": ["out"]},
        {"smooth_layer": "norm2", "balance_layers": ["gate", "up"]},
        {"smooth_layer": "up", "balance_layers": ["down"]},
    ]
    assert all(check.exact for check in pathcond.verify_mapping(block, X, mapping))
    assert pathcond.groups_to_cle_pairs(groups) == [("up", "down")]


def test_channels_in_another_order_are_not_exported() -> None:
    model = Lambda(lambda s, x: s.b(F.relu(s.a(x)).flip(-1)), a=nn.Linear(3, 6), b=nn.Linear(6, 2))
    groups = pathcond.scale_groups(model, torch.ones(1, 3))
    assert groups[0].channels == 6
    assert groups[0].verify() < 1e-12
    assert pathcond.groups_to_awq_mappings(groups) == []


MAPPINGS: list[tuple[Any, bool, str]] = [
    ({"smooth_layer": "up", "balance_layers": ["down"]}, True, ""),
    (SimpleNamespace(smooth_layer="re:up$", balance_layers=["re:d.*n$"]), True, ""),
    ({"smooth_layer": "norm2", "balance_layers": ["up"]}, False, "function changes"),  # the gate is forgotten
    ({"smooth_layer": "gate", "balance_layers": ["down"]}, False, "function changes"),
    ({"smooth_layer": "lost", "balance_layers": ["down"]}, False, "no module is named 'lost'"),
    ({"smooth_layer": "up", "balance_layers": ["lost"]}, False, "no module near 'up' is named 'lost'"),
    ({"smooth_layer": "norm1", "balance_layers": ["down"]}, False, "8 outputs of 'norm1' do not fit"),
    ({"smooth_layer": "up", "balance_layers": ["norm2"]}, False, "no weight with input channels"),
]


@pytest.mark.parametrize(("entry", "exact", "reason"), MAPPINGS)
def test_mappings_are_measured(block: nn.Module, entry: Any, exact: bool, reason: str) -> None:
    (check,) = pathcond.verify_mapping(block, X, [entry])
    assert check.exact == exact
    assert reason in check.reason
    assert ("exact" in str(check)) == (check.change is not None)
    if not exact and check.change is not None:
        assert check.change > 1e-3


def test_names_that_fit_several_blocks_stay_in_theirs() -> None:
    model = nn.Sequential(Block(), Block())
    found = pathcond.verify_mapping(model, X, [{"smooth_layer": "up", "balance_layers": ["down"]}])
    assert [(check.smooth_layer, check.balance_layers) for check in found] == [
        ("0.up", ("0.down",)),
        ("1.up", ("1.down",)),
    ]
    assert all(check.exact for check in found)


@pytest.mark.parametrize(
    "entry", [{"smooth_layer": "up"}, {"smooth_layer": "up", "balance_layers": "down"}, ("a", "b")]
)
def test_a_bad_entry_is_refused(block: nn.Module, entry: Any) -> None:
    with pytest.raises(pathcond.PathCondError, match="smooth_layer"):
        pathcond.verify_mapping(block, X, [entry])


# ---- published mappings


PUBLISHED: dict[str, dict[str, list[str]]] = {
    "llama": {
        "input_layernorm": ["exact"],
        "self_attn.v_proj": ["cannot be applied"],
        "post_attention_layernorm": ["exact"],
        "mlp.up_proj": ["exact"],
    },
    "gemma2": {
        "input_layernorm": ["not exact"],
        "self_attn.v_proj": ["cannot be applied"],
        "pre_feedforward_layernorm": ["not exact"],
        "mlp.up_proj": ["exact"],
    },
    "opt": dict.fromkeys(("self_attn_layer_norm", "self_attn.v_proj", "final_layer_norm", "fc1"), ["exact"]),
    "phi": {"input_layernorm": ["not exact"] * 2, "self_attn.v_proj": ["exact"], "mlp.fc1": ["not exact"]},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_mappings(name: str) -> None:
    pytest.importorskip("transformers")
    from tests import awq_mappings

    found: dict[str, list[str]] = {}
    for finding in awq_mappings.verify(name)[0]:
        found.setdefault(finding.smooth, []).append(finding.verdict.partition(":")[0])
    assert found == PUBLISHED[name]


def test_a_published_mapping_forgets_the_router() -> None:
    pytest.importorskip("transformers")
    from tests import awq_mappings

    model, x = awq_mappings.ExpertBlock(), torch.randn(3, 16)
    entries = awq_mappings.as_entries(awq_mappings.PUBLISHED["mixtral"][1][2:])
    norm, *experts = pathcond.verify_mapping(model, x, entries)
    assert not norm.exact
    assert len(experts) == 4
    assert all(check.exact for check in experts)
    readers = [*norm.balance_layers, "block_sparse_moe.gate"]
    whole = {"smooth_layer": norm.smooth_layer, "balance_layers": readers}
    assert pathcond.verify_mapping(model, x, [whole])[0].exact


# ---- transformers


FEW = ["gpt2", "llama", "bert", "gemma2", "mixtral", "bloom", "t5", "whisper", "mamba", "nn_transformer"]


@pytest.mark.parametrize("name", FEW)
def test_a_transformer_keeps_its_function(name: str) -> None:
    pytest.importorskip("transformers")
    from tests import transformers_zoo

    row = transformers_zoo.check(name)
    assert row.faults == []
    assert row.free == row.symmetries
